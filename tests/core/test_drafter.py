"""The drafter through the binding: what it gives out is plain decoding, whoever drafts.

The target is a rule on the last tokens, so that both plain decoding and every row of a draft tree
can be answered without a model.
"""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgen_rs._core import (
    CallOrderError,
    Drafter,
    EmptyPromptError,
    InvalidDraftError,
    LookupTable,
    ModelDraft,
    NonFiniteLogitsError,
    OptionError,
    Sampling,
    ShapeError,
    TokenOutOfRangeError,
    top_k,
)
from core_subjects import EvenOnly, step_inputs
from ruled_target import (
    VOCAB_SIZE,
    commits,
    make_drafter,
    plain,
    prompts,
    run_target,
    target,
    uint32,
)


def run(drafter, prompt, seed, max_new_tokens):
    """Generate; what is told of each step agrees with its tree."""
    text, lens = list(prompt), []
    drafter.begin(uint32(prompt), max_new_tokens)
    while drafter.finish_reason is None:
        inputs = drafter.propose(len(text) - 1)
        token_ids, parents = drafter.draft
        accepted = drafter.accept(run_target(text, (token_ids, parents), inputs.rows, seed))
        rows = accepted.rows.tolist()
        assert rows[0] == 0
        assert parents[rows[1:]].tolist() == rows[:-1]
        assert token_ids[rows[1:]].tolist() == accepted.token_ids[:-1].tolist()
        assert accepted.accept_len <= accepted.num_drafted <= len(accepted.token_ids)
        assert accepted.finish_reason == drafter.finish_reason
        text += accepted.token_ids.tolist()
        lens.append(accepted.accept_len)
    assert drafter.accept_histogram == np.bincount(lens).tolist()
    for counts in drafter.per_source.values():
        assert 0 <= counts["accepted"] <= counts["proposed"]
    return text[len(prompt) :]


@settings(max_examples=40)
@given(
    prompts,
    st.integers(0, 4),
    st.integers(1, 40),
    commits,
    st.sampled_from([(), ("automaton",), ("prompt-lookup",), ("prompt-lookup", "automaton")]),
    st.sampled_from([None, [1.0, 1.1, 1.2], [1.0, 1.6, 3.0]]),
    st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=1),
)
def test_output_equals_plain_decoding(
    prompt, seed, max_new_tokens, commit, sources, costs, end_token_ids
):
    drafter = make_drafter(sources=sources, costs=costs, commit=commit, end_token_ids=end_token_ids)
    for _ in range(2):  # a drafter serves one request after the other
        got = run(drafter, prompt, seed, max_new_tokens)
        assert got == plain(prompt, seed, max_new_tokens, end_token_ids)
    assert list(drafter.per_source) == sorted(sources)


def test_a_step_that_does_not_fit_is_never_chosen():
    for costs in (None, [1.0, 100.0]):
        steps = [step_inputs(1, 32), step_inputs(8, 64)]
        drafter = Drafter(steps, VOCAB_SIZE, sources=[], costs=costs)
        drafter.begin(uint32([1, 2]), 60)
        assert [drafter.propose(past_len).rows for past_len in (31, 32, 40)] == [1, 8, 8]
        assert drafter.propose(40, (uint32([2]), uint32([0]))).rows == 8
    model = ModelDraft([step_inputs(1, 4), step_inputs(8, 64)], VOCAB_SIZE)
    drafter = Drafter([step_inputs(8, 64)], VOCAB_SIZE, sources=["draft-model"], model_draft=model)
    drafter.begin(uint32([1, 2, 3, 1, 2]), 9)
    model.take_realignment()
    model.skip(4)
    assert model.next_step(4).rows == 8


@pytest.mark.parametrize("commit", ["canonical", "compact"])
@pytest.mark.parametrize(
    "sampling",
    [None, Sampling(0.5, repetition_penalty=1.2, frequency_penalty=0.3, logit_bias={1: 1}, seed=1)],
)
def test_what_stands_behind_a_drafted_end_is_not_read(commit, sampling):
    drafter = make_drafter(commit=commit, end_token_ids=[2])
    drafter.begin(uint32([1, 0]), 9, sampling)
    drafter.propose(1, (uint32([0, 2]), uint32([0, 0])))
    logits = np.full((4, VOCAB_SIZE), np.nan, np.float32)
    logits[0] = [-60, -60, 60, *[-60] * (VOCAB_SIZE - 3)]
    accepted = drafter.accept(logits)
    assert (accepted.token_ids.tolist(), accepted.finish_reason) == ([2], "stop")
    assert accepted.accept_len == 1


def test_what_is_of_another_vocabulary_is_refused_by_name():
    steps, table = [step_inputs(8, 64)], LookupTable()
    table.learn(uint32([2]), np.zeros((1, 50), np.float32))
    model = ModelDraft(steps, 50)
    message = "has a vocabulary of 50 tokens, but the target has 8"
    for source, name, drawn_on in (
        ("lookup-table", "lookup_table", table),
        ("draft-model", "model_draft", model),
    ):
        with pytest.raises(OptionError, match=f'source "{source}" {message}'):
            Drafter(steps, 8, sources=[source], **{name: drawn_on})
        Drafter(steps, 50, sources=[source], **{name: drawn_on})
    with pytest.raises(OptionError, match=message):
        table.learn(uint32([2]), np.zeros((1, 8), np.float32))
    with pytest.raises(OptionError, match=message):
        table.save("nowhere", 8, bytes(32))


def test_a_failed_accept_may_be_repeated():
    drafter = make_drafter()
    drafter.begin(uint32([1, 2, 3, 1, 2]), 20)
    inputs = drafter.propose(4)
    logits = run_target([1, 2, 3, 1, 2], drafter.draft, inputs.rows, 0)
    broken = logits.copy()
    broken[0, 2] = np.nan
    with pytest.raises(NonFiniteLogitsError, match="row 0"):
        drafter.accept(broken)
    for wrong in (logits[:1], logits[:, :2], logits.astype(np.float64), logits.T, logits.tolist()):
        with pytest.raises(ShapeError):
            drafter.accept(wrong)
    assert drafter.accept(logits[None]).token_ids[0] == target([1, 2, 3, 1, 2], 0)
    with pytest.raises(CallOrderError):
        drafter.accept(logits)


def draft(token_ids, parents):
    return 0, (uint32(token_ids), uint32(parents))


@pytest.mark.parametrize(
    ("method", "arguments", "error"),
    [
        ("begin", (uint32([]), 1), EmptyPromptError),
        ("begin", (uint32([VOCAB_SIZE]), 1), TokenOutOfRangeError),
        ("begin", (uint32([0]), 0), OptionError),
        ("begin", (np.array([0.0]), 1), ShapeError),
        ("propose", draft([1], [0]), InvalidDraftError),
        ("propose", draft([0, 1], [0, 1]), InvalidDraftError),
        ("propose", draft([0, 1], [0]), ShapeError),
        ("propose", draft([], []), ShapeError),
        ("propose", draft([0, VOCAB_SIZE], [0, 0]), TokenOutOfRangeError),
        *(("propose", (past_len,), ShapeError) for past_len in (96, 2**63, 2**64 - 8, 2**64 - 1)),
        *(("model_ran", (cost,), OptionError) for cost in (np.nan, np.inf, -1.0)),
    ],
)
def test_what_is_refused_leaves_nothing_to_accept(method, arguments, error):
    drafter = make_drafter()
    drafter.begin(uint32([0]), 5)
    with pytest.raises(error):
        getattr(drafter, method)(*arguments)
    with pytest.raises(CallOrderError):
        drafter.accept(np.zeros((1, VOCAB_SIZE), np.float32))


@pytest.mark.parametrize(
    "options",
    [
        {"sources": ["oracle"]},
        {"commit": "sometimes"},
        {"costs": [1.0]},
        {"costs": [1.0, 0.0, 1.0]},
        {"costs": [1.0, float("nan"), 1.0]},
        {"widths": []},
        {"widths": [4, 1]},
    ],
)
def test_unusable_options_are_refused(options):
    with pytest.raises(OptionError):
        make_drafter(**options)


def test_a_failed_accept_keeps_what_its_step_has_read_of_experts():
    drafter = make_drafter(costs=[(1.0, 0.0, 2.0, 0.5), (2.0, 0.0, 8.0, 0.5), (3.0, 0.0, 9.0, 0.5)])
    drafter.begin(uint32([0, 1, 2]), 9)
    inputs = drafter.propose(2)
    inputs.experts_read = 2.0, 3.0
    with pytest.raises(NonFiniteLogitsError):
        drafter.accept(np.full((inputs.rows, VOCAB_SIZE), np.nan, np.float32))
    assert inputs.experts_read == (2.0, 3.0)
    drafter.accept(run_target([0, 1, 2], drafter.draft, inputs.rows, 0))
    assert inputs.experts_read is None


def test_a_grammar_that_holds_its_drafter_is_collected():
    grammar, drafter = EvenOnly(), make_drafter()
    grammar.drafter = drafter
    drafter.begin(uint32([0, 2]), 9, grammar=grammar)
    gone = weakref.ref(grammar)
    del grammar, drafter
    gc.collect()
    assert gone() is None


def test_logits_are_read_in_place_or_refused():
    token_ids, probabilities = top_k(np.log(uint32([[1, 6, 3], [2, 4, 4]]), dtype=np.float32))
    assert token_ids[:, :3].tolist() == [[1, 2, 0], [1, 2, 0]]
    np.testing.assert_allclose(probabilities[:, :3], [[0.6, 0.3, 0.1], [0.4, 0.4, 0.2]], rtol=1e-3)
    logits = np.zeros((4, 6), np.float32)
    no_columns = np.zeros((3, 0), np.float32)
    for wrong in (logits[:, ::2], logits.astype(np.float64), logits[0], no_columns):
        with pytest.raises(ShapeError):
            top_k(wrong)


def test_logits_of_a_prompt_that_are_no_such_are_named():
    drafter = make_drafter(sources=("calibration",))
    row = np.zeros((1, VOCAB_SIZE), np.float32)
    with pytest.raises(CallOrderError):
        drafter.prefilled(row)
    drafter.begin(uint32([1, 2]), 5)
    drafter.prefilled(row)
    with pytest.raises(NonFiniteLogitsError, match="row 1 "):
        drafter.prefilled(row * np.nan)
    drafter.prefilled(row)
    with pytest.raises(ShapeError, match="logits of the prompt"):
        drafter.prefilled(row)
    with pytest.raises(ShapeError):
        drafter.prefilled(np.zeros((1, VOCAB_SIZE + 1), np.float32))
    assert not make_drafter(sources=("automaton", "reuse")).reads_prefill
