"""What callers pass in: refused where it is wrong, never converted silently."""

import numpy as np
import pytest

from coordgen_rs import (
    DraftModel,
    History,
    Model,
    Sampling,
    generate,
    make_drafter,
    open_session,
    plain,
)
from coordgen_rs.drafting.warm_up import warm_up
from coordgen_rs.errors import OptionError, ShapeError, TokenOutOfRangeError
from coordgen_rs.errors.arguments import commit_rows, count, number, one_of, path, text, token_ids
from coordgen_rs.loading.directory import ProviderChoice

NOT_TOKENS = {
    "floats": ([1.5, 2.0], OptionError),
    "whole floats": (np.array([1.0, 2.0]), OptionError),
    "bools": ([True, False], OptionError),
    "a bool among them": ([3, True], OptionError),
    "an array of bools": (np.array([True]), OptionError),
    "text": ("12", OptionError),
    "bytes": (b"12", OptionError),
    "strings": (["12"], OptionError),
    "a number and a string": ([1, "2"], OptionError),
    "None": (None, OptionError),
    "a number": (12, ShapeError),
    "a batch": ([[1, 2], [3, 4]], ShapeError),
    "a batch of one": (np.ones((1, 3), np.int64), ShapeError),
    "ragged": ([[1], [2, 3]], ShapeError),
    "negative": ([1, -1], TokenOutOfRangeError),
    "unknown": ([50], TokenOutOfRangeError),
    "beyond 64 bits": ([1, 2**70], TokenOutOfRangeError),
    "beyond 63 bits": (np.array([2**64 - 1], np.uint64), TokenOutOfRangeError),
}
"""With a vocabulary of 50."""


@pytest.mark.parametrize(("ids", "error"), NOT_TOKENS.values(), ids=NOT_TOKENS)
def test_what_is_no_row_of_token_ids_is_refused(ids, error):
    with pytest.raises(error, match="the prompt"):
        token_ids("the prompt", ids, 50)


@pytest.mark.parametrize(
    "ids",
    [
        [1, 49],
        (1, 49),
        range(1, 50, 48),
        np.array([1, 49], np.int8),
        np.array([1, 0, 49])[::2],
        [np.int64(1), np.uint8(49)],
    ],
)
def test_integers_of_any_kind_are_token_ids_and_are_copied(ids):
    found = token_ids("the prompt", ids, 50)
    assert found.dtype == np.uint32
    assert found.tolist() == [1, 49]
    assert not np.shares_memory(found, np.asarray(ids))


@pytest.mark.parametrize("nothing", [[], (), np.zeros(0), np.zeros(0, np.uint32)])
def test_no_tokens_are_token_ids_too(nothing):
    assert token_ids("the prompt", nothing, 50).shape == (0,)


@pytest.mark.parametrize("value", [None, 1.0, "1", True, 0, -1, 10**100, np.float32(1), 11])
def test_a_count_is_an_integer_within_its_bounds(value):
    with pytest.raises(OptionError, match=r"^width "):
        count("width", value, most=10)


def test_integers_of_any_kind_are_counts():
    assert count("width", np.uint8(3)) == 3
    assert count("width", 0, least=0) == 0


@pytest.mark.parametrize(
    "value", [None, "1", True, float("nan"), float("inf"), 10**400, -0.1, 1.1, [1.0]]
)
def test_a_number_is_finite_and_within_its_bounds(value):
    with pytest.raises(OptionError, match=r"^share "):
        number("share", value, least=0, most=1)


def test_whole_numbers_and_those_of_numpy_are_numbers():
    assert number("share", 1) == 1.0
    assert number("share", np.float32(0.5), least=0.5) == 0.5


@pytest.mark.parametrize("value", [None, b"x", 3, "\ud800", "half \udcff", ""])
def test_text_is_valid_unicode(value):
    with pytest.raises(OptionError, match=r"^stop "):
        text("stop", value, may_be_empty=False)


def test_a_lone_surrogate_is_named_with_its_place():
    with pytest.raises(OptionError, match=r"character 2 is the surrogate U\+D800"):
        text("the prompt", "ab\ud800")


@pytest.mark.parametrize("value", [None, "", b"x", 3, "a\0b", "\ud800"])
def test_a_path_can_be_handed_to_the_system(value):
    with pytest.raises(OptionError, match=r"^history "):
        path("history", value)


@pytest.mark.parametrize("value", [None, "", "guess", ["canonical"]])
def test_a_name_is_one_of_those_that_there_are(value):
    with pytest.raises(OptionError, match="canonical, compact"):
        one_of("commit", value, ("canonical", "compact"))


@pytest.mark.parametrize("rows", [[1, 0], [0, 0], [-1], [4], [[0]], [0.0], [True], "0"])
def test_rows_to_commit_ascend_and_were_written(rows):
    with pytest.raises((OptionError, ShapeError), match="row"):
        commit_rows(rows, 4)


def test_messages_stay_on_one_short_line():
    with pytest.raises(OptionError) as refused:
        one_of("commit", "x\n" * 5_000, ("canonical",))
    assert len(str(refused.value)) < 200
    assert "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def session(bundle_of):
    with_room = open_session(bundle_of("embedded-draft", "fp32"))
    yield with_room
    with_room.close()


@pytest.mark.parametrize("start", [generate, plain])
@pytest.mark.parametrize("ids", [[1.5, 2.0], "12", [[1, 2]], [True]])
def test_requests_refuse_what_are_no_token_ids(session, start, ids):
    with pytest.raises((OptionError, ShapeError), match="the prompt"):
        next(start(session, ids))


@pytest.mark.parametrize("wrong", [None, 1.5, "3", True, 0])
def test_requests_refuse_what_is_no_number_of_tokens(session, wrong):
    with pytest.raises(OptionError, match="max_new_tokens"):
        next(generate(session, [1], max_new_tokens=wrong))


@pytest.mark.parametrize("ids", [[0.5], "12", [[1]]])
def test_a_prediction_is_a_row_of_token_ids(session, ids):
    with pytest.raises((OptionError, ShapeError), match="the prediction"):
        next(generate(session, [1], prediction=ids))


def test_a_session_reads_known_tokens_only(session):
    session.rewind(0)
    for ids, error in (
        ([session.vocab_size], TokenOutOfRangeError),
        ([[1, 2]], ShapeError),
        ([1.5], OptionError),
    ):
        with pytest.raises(error):
            session.prefill(ids)
        assert session.length == 0


def test_a_session_commits_only_rows_that_a_step_has_written(session):
    session.rewind(0)
    session.prefill([1, 2, 3])
    inputs = session.step_inputs[-1]
    inputs.fill_chain(np.array([4, 5], np.uint32), session.length)
    session.step(inputs)
    for rows in (np.arange(5_000), [2], [1, 0], [0.0], [[0, 1]], [-1]):
        with pytest.raises((OptionError, ShapeError)):
            session.commit(rows)
        assert session.length == 3
    session.commit([0, 1])
    assert session.length == 5


def test_a_session_rewinds_to_a_whole_number_of_tokens(session):
    session.rewind(0)
    session.prefill([1, 2, 3])
    for length in (0.5, None, "1", True, -1):
        with pytest.raises(OptionError, match="length"):
            session.rewind(length)
    assert session.length == 3


def test_warm_up_reads_token_ids_only(session):
    for wrong in ([0.5, 1.0], "12", [[1, 2]]):
        with pytest.raises((OptionError, ShapeError), match="a text"):
            warm_up(session, [wrong])


def test_a_history_stores_token_ids_only():
    history = History(vocab_size=50)
    for wrong in ([0.5], "12", [[1, 2]]):
        with pytest.raises((OptionError, ShapeError), match="the answer"):
            history.add([1], wrong)
    with pytest.raises(TokenOutOfRangeError):
        history.add([-1], [1])


@pytest.mark.parametrize("namespace", ["", None, "\udcff"])
def test_a_namespace_has_a_name(namespace):
    with pytest.raises(OptionError, match="namespace"):
        History(vocab_size=50, namespace=namespace)


def test_a_drafter_refuses_what_it_would_not_use(session):
    with pytest.raises(OptionError, match="does not use a draft model"):
        make_drafter(session, "automaton", draft_model=DraftModel(session))
    with pytest.raises(OptionError, match="commit"):
        make_drafter(session, commit="both")


def test_a_provider_has_a_known_name():
    with pytest.raises(OptionError, match="cpu, qnn"):
        ProviderChoice("gpu")


@pytest.fixture(scope="module")
def model(bundle_of):
    with Model.open(bundle_of("embedded-draft", "fp32")) as opened:
        yield opened


@pytest.mark.parametrize(
    "wrong",
    [
        {"stop": b""},
        {"stop": [None]},
        {"stop": 3},
        {"max_new_tokens": None},
        {"max_new_tokens": 2.5},
        {"temperature": None},
        {"temperature": float("nan")},
        {"temperature": -1},
        {"top_k": -7},
        {"top_k": 1.5},
        {"top_p": 5},
        {"top_p": float("nan")},
        {"top_p": 0},
        {"presence_penalty": 3},
        {"frequency_penalty": "1"},
        {"logit_bias": [(5, 1)]},
        {"logit_bias": {"5": 1}},
        {"logit_bias": {5: "1"}},
        {"logit_bias": {5: 101}},
        {"logprobs": 21},
        {"seed": -1},
        {"seed": 2**70},
        {"prediction": "\udcff"},
        {"prediction": b"x"},
        {"prediction": "\ud800", "drafts": False},
    ],
    ids=str,
)
def test_a_model_names_the_option_that_is_wrong(model, wrong):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        model.generate("Hello", **wrong)


@pytest.mark.parametrize("prompt", ["\ud800", None, b"Hello", 3])
def test_a_model_answers_valid_text_only(model, prompt):
    with pytest.raises(OptionError, match="prompt"):
        model.generate(prompt)


def test_limits_on_sampling_change_nothing_where_nothing_is_sampled(model):
    limits = {"top_k": 3, "top_p": 0.5, "seed": 9}
    plainly = model.generate("Hello", max_new_tokens=4)
    assert model.generate("Hello", max_new_tokens=4, **limits).token_ids == plainly.token_ids


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 0},
        {"width": 1.5},
        {"threads": 0},
        {"threads": 3_000},
        {"threads": 99_999_999_999},
        {"memory_budget": -1},
        {"memory_budget": 1.5},
        {"draft": None},
        {"draft": ["automaton", None]},
        {"draft": "automaton", "lookup_table": "x"},
        {"commit": "both", "draft": "plain"},
        {"history": ""},
        {"namespace": "", "history": "x"},
        {"draft_model": ""},
        {"lookup_table": ""},
        {"provider": "gpu"},
        {"kv_cache": "q4"},
        {"kv_cache": None},
    ],
    ids=str,
)
def test_opening_a_model_names_the_option_that_is_wrong(bundle_of, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "look-up table|x" if wrong.get("lookup_table") else next(iter(wrong))
    with pytest.raises(Exception, match=name) as refused:
        Model.open(bundle_of("embedded-draft", "fp32"), **wrong)
    assert type(refused.value).__module__.startswith("coordgen_rs")


def test_sampling_at_a_temperature_is_as_before(model):
    drawn = model.generate("Hello", max_new_tokens=4, temperature=0.8, top_k=5, seed=3)
    again = model.generate("Hello", max_new_tokens=4, temperature=0.8, top_k=5, seed=3)
    assert drawn.token_ids == again.token_ids
    assert Sampling(0.8, top_k=5, seed=3)
