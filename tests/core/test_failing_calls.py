"""A call that fails changes nothing: every method of every class, by wrong arguments."""

import inspect

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordgen_rs import _core
from coordgen_rs.errors import CoordgenError, NonFiniteLogitsError, ShapeError
from core_subjects import (
    KEY,
    STATELESS,
    SUBJECTS,
    VOCAB_SIZE,
    EvenOnly,
    OfDrafter,
    OfLookupTable,
    logits,
    step_inputs,
    text,
    tokens,
)

CLASSES = {
    name: found
    for name, found in vars(_core).items()
    if isinstance(found, type) and not issubclass(found, BaseException)
}
METHODS = sorted(
    (name, method)
    for name, found in CLASSES.items()
    if name not in STATELESS
    for method, member in vars(found).items()
    if callable(getattr(found, method)) and not method.startswith("__")
    and not inspect.isgetsetdescriptor(member)
)  # fmt: skip

NOT_FINITE = logits(3)
NOT_FINITE[1, 2] = np.nan
HUGE = (2**31, 2**32 - 1, 2**40, 2**61, 2**63 - 1, 2**63, 2**64 - 1)
VALUES = st.one_of(
    st.sampled_from([0, 1, 2, 5, 8, 9, 13, -1, *HUGE]),
    st.sampled_from([None, True, 0.5, float("nan"), float("inf"), "", "prefill", "sync", b"", KEY]),
    st.sampled_from(["/nowhere/there is none", object(), _core.Sampling(), EvenOnly()]),
    st.builds(text, st.integers(0, 5), st.integers(0, 6)),
    st.sampled_from([tokens(VOCAB_SIZE), tokens(1, 2**32 - 1), tokens(1, 2, 3).astype(np.int32)]),
    st.sampled_from([tokens(0, 0), tokens(0, 7), tokens(1, 2)[::2], tokens(1, 2).reshape(1, 2)]),
    st.builds(logits, st.integers(0, 5)),
    st.sampled_from([NOT_FINITE, NOT_FINITE[:, :5], logits(1)[0], logits(2).astype(np.float64)]),
    st.sampled_from([[], ["/nowhere/a"], [(0, 0, 1)], [(0, 0, 2**40)], [(0, 2**61, 2**61)]]),
    st.tuples(st.builds(text, st.just(1), st.integers(0, 9)), st.just(tokens(0, 0, 1))),
)

TEXTS = st.builds(text, st.integers(0, 5), st.integers(1, 9))
COUNTS = st.integers(0, 12)
LIKELY = {
    **dict.fromkeys(["prompt_ids", "token_ids", "tokens", "answer", "contexts"], TEXTS),
    **dict.fromkeys(["max_new_tokens", "num_reused", "past_len", "num_tokens", "row"], COUNTS),
    **dict.fromkeys(["block", "number", "max_tokens", "context"], COUNTS),
    **dict.fromkeys(["sampling", "prediction", "grammar", "draft"], st.none()),
    **dict.fromkeys(["ignore_eos", "provisional"], st.booleans()),
    **dict.fromkeys(["graph", "graphs"], st.sampled_from(["prefill", "decode"])),
    "logits": st.builds(logits, st.integers(2, 4)),
    "num_nodes": st.integers(1, 3),
    "parents": st.just(tokens(0, 0, 1)),
}
"""What is right for a parameter in most calls: so that one that is looked at later is wrong."""


def drawn(data, method):
    """Arguments for a method's parameters, all but one of them likely."""
    places, names = [], {}
    parameters = inspect.signature(method).parameters.values()
    wild = data.draw(st.integers(-1, len(parameters) - 1), label="wild")
    for index, each in enumerate(parameters):
        values = VALUES if index == wild else LIKELY.get(each.name, VALUES)
        value = data.draw(values, label=each.name)
        if each.kind is each.KEYWORD_ONLY:
            names[each.name] = value
        else:
            places.append(value)
    return places, names


def test_every_class_has_a_subject_or_no_state():
    assert {each.__name__ for each in SUBJECTS} | STATELESS == set(CLASSES)
    for name in STATELESS:
        names = [each for each in vars(CLASSES[name]) if not each.startswith("_")]
        methods = {each for each in names if callable(getattr(CLASSES[name], each))}
        assert methods <= {
            "draw",
            "check_tokens",
            "guessed",
            "with_load_delay",
            "sources",
            "to_json",
            "memory_bytes",
        }


@pytest.mark.parametrize(("name", "method"), METHODS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 19), data=st.data())
def test_a_call_that_fails_changes_nothing(name, method, seed, data):
    subject = SUBJECTS[CLASSES[name]]
    failed, untouched = subject(seed), subject(seed)
    call = getattr(failed.object, method)
    places, names = drawn(data, call)
    try:
        call(*places, **names)
    except (CoordgenError, TypeError, ValueError, OverflowError):
        assert failed.seen() == untouched.seen()


def test_a_refused_request_leaves_the_grammar_and_the_sampling_of_the_one_before():
    drafter = OfDrafter(0).object
    sampling = _core.Sampling(5.0, seed=3)
    drafter.begin(tokens(2, 4, 6), 5, sampling, grammar=EvenOnly())
    twin = OfDrafter(0).object
    twin.begin(tokens(2, 4, 6), 5, sampling, grammar=EvenOnly())
    with pytest.raises(ShapeError, match="reused tokens"):
        drafter.begin(tokens(4, 5), 5, num_reused=9, grammar=EvenOnly())
    said = []
    for each in (drafter, twin):
        rows = each.propose(2).rows
        said.append(each.accept(logits(rows, 1)).token_ids.tolist())
    assert said[0] == said[1]
    assert all(token % 2 == 0 for token in said[0])


def test_a_proposal_that_cannot_be_written_leaves_the_one_before():
    inputs = step_inputs()
    drafter = _core.Drafter([inputs], VOCAB_SIZE)
    drafter.begin(text(0, 9), 9)
    drafter.propose(8)
    draft = [each.tolist() for each in drafter.draft]
    inputs.mask.flags.writeable = False
    with pytest.raises(Exception, match=r"writeable|read-only|readonly"):
        drafter.propose(8, (tokens(int(text(0, 9)[-1])), tokens(0)))
    assert [each.tolist() for each in drafter.draft] == draft
    assert len(drafter.accept(logits(inputs.rows)).token_ids) > 0


def test_a_table_learns_no_row_of_logits_of_which_one_is_not_finite():
    subject, twin = OfLookupTable(3), OfLookupTable(3)
    with pytest.raises(NonFiniteLogitsError):
        subject.object.learn(tokens(1, 2, 3), NOT_FINITE)
    assert subject.seen() == twin.seen()


@pytest.mark.parametrize("num_tokens", [2**31, 2**40, 2**61, 2**62, 2**63, 2**64 - 1])
def test_a_place_of_any_length_is_refused_before_memory_is_taken_for_it(tmp_path, num_tokens):
    source = tmp_path / "tokens"
    source.write_bytes(bytes(40))
    write = _core.SharedHistory.write_gathered_index
    with pytest.raises(_core.HistoryIndexError, match="tokens"):
        write(tmp_path / "index", [source], [(0, 0, num_tokens)] * 3, 10, KEY)
    assert not (tmp_path / "index").exists()
