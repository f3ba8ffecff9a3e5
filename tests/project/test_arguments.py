"""What callers pass in: refused by name where it is wrong, never converted silently."""

import inspect
from pathlib import Path

import numpy as np
import pytest

from coordgen_rs import (
    Dialogue,
    DraftModel,
    History,
    Model,
    OpenOptions,
    RequestOptions,
    SessionOptions,
    generate,
    make_drafter,
    open_session,
    plain,
)
from coordgen_rs.errors import CoordgenError, OptionError, ShapeError, TokenOutOfRangeError
from coordgen_rs.errors.arguments import commit_rows, count, number, one_of, path, text, token_ids
from coordgen_rs.generation.drafting.warm_up import warm_up
from coordgen_rs.loading.directory import ProviderChoice
from coordgen_rs.store.cache import cache_directory

NAN, INFINITE = float("nan"), float("inf")
NOT_TOKENS = {
    OptionError: [
        *([1.5, 2.0], np.array([1.0, 2.0]), [True, False], [3, True], np.array([True])),
        *("12", b"12", ["12"], [1, "2"], None),
    ],
    ShapeError: [12, [[1, 2], [3, 4]], np.ones((1, 3), np.int64), [[1], [2, 3]]],
    TokenOutOfRangeError: [[1, -1], [50], [1, 2**70], np.array([2**64 - 1], np.uint64)],
}
"""With a vocabulary of 50."""


@pytest.mark.parametrize(
    ("error", "ids"), [(error, ids) for error, wrong in NOT_TOKENS.items() for ids in wrong]
)
def test_what_is_no_row_of_token_ids_is_refused(error, ids):
    with pytest.raises(error, match="the prompt"):
        token_ids("the prompt", ids, 50)


@pytest.mark.parametrize(
    "ids",
    [
        *([1, 49], (1, 49), range(1, 50, 48), np.array([1, 49], np.int8)),
        *(np.array([1, 0, 49])[::2], [np.int64(1), np.uint8(49)]),
    ],
)
def test_integers_of_any_kind_are_token_ids_and_are_copied(ids):
    found = token_ids("the prompt", ids, 50)
    assert (found.dtype, found.tolist()) == (np.uint32, [1, 49])
    assert not np.shares_memory(found, np.asarray(ids))


CHECKS = (
    (
        lambda value: count("width", value, most=10),
        r"^width ",
        [None, 1.0, "1", True, 0, -1, 10**100, np.float32(1), 11],
    ),
    (
        lambda value: number("share", value, least=0, most=1),
        r"^share ",
        [None, "1", True, NAN, INFINITE, 10**400, -0.1, 1.1, [1.0]],
    ),
    (
        lambda value: text("stop", value, may_be_empty=False),
        r"^stop ",
        [None, b"x", 3, "\ud800", "half \udcff", ""],
    ),
    (lambda value: text("it", value), r"character 2 is the surrogate U\+D800", ["ab\ud800"]),
    (lambda value: path("history", value), r"^history ", [None, "", b"x", 3, "a\0b", "\ud800"]),
    (
        lambda value: one_of("commit", value, ("canonical", "compact")),
        "canonical, compact",
        [None, "", "guess", ["canonical"]],
    ),
    (
        lambda value: commit_rows(value, 4),
        "row",
        [[1, 0], [0, 0], [-1], [4], [[0]], [0.0], [True], "0"],
    ),
    (lambda value: ProviderChoice(value), "cpu, qnn", ["gpu"]),
    (lambda value: History(vocab_size=50, namespace=value), "namespace", ["", None, "\udcff"]),
    (lambda value: History(vocab_size=50).add([1], value), "the answer", [[0.5], "12", [[1, 2]]]),
    (lambda value: History(vocab_size=50).add(value, [1]), "the prompt", [[-1]]),
)


@pytest.mark.parametrize(
    ("check", "message", "value"),
    [(check, message, value) for check, message, values in CHECKS for value in values],
)
def test_a_wrong_value_is_refused_by_name(check, message, value):
    with pytest.raises((OptionError, ShapeError, TokenOutOfRangeError), match=message):
        check(value)


def test_what_fits_is_taken():
    for nothing in ([], (), np.zeros(0), np.zeros(0, np.uint32)):
        assert token_ids("the prompt", nothing, 50).shape == (0,)
    assert (count("width", np.uint8(3)), count("width", 0, least=0)) == (3, 0)
    assert (number("share", 1), number("share", np.float32(0.5), least=0.5)) == (1.0, 0.5)


def test_messages_stay_on_one_short_line():
    with pytest.raises(OptionError) as refused:
        one_of("commit", "x\n" * 5_000, ("canonical",))
    assert len(str(refused.value)) < 200
    assert "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded-draft", "fp32")


@pytest.fixture(scope="module")
def session(bundle):
    with_room = open_session(bundle)
    yield with_room
    with_room.close()


@pytest.fixture(scope="module")
def model(bundle):
    with Model.open(bundle) as opened:
        yield opened


OF_SESSIONS = (
    (lambda session, ids: next(generate(session, ids)), "^the prompt", [[1.5], "12", [[1, 2]]]),
    (lambda session, ids: next(plain(session, ids)), "^the prompt", ["12"]),
    (
        lambda session, most: next(generate(session, [1], max_new_tokens=most)),
        "max_new_tokens",
        [None, 1.5, "3", True, 0],
    ),
    (
        lambda session, ids: next(generate(session, [1], prediction=ids)),
        "the prediction",
        [[0.5], "12", [[1]]],
    ),
    (lambda session, ids: session.prefill(ids), "prefill", [[10**6], [[1, 2]], [1.5]]),
    (
        lambda session, rows: session.commit(rows),
        "row",
        [np.arange(5_000), [2], [1, 0], [0.0], [[0, 1]], [-1]],
    ),
    (lambda session, length: session.rewind(length), "length", [0.5, None, "1", True, -1]),
    (lambda session, ids: warm_up(session, [ids]), "a text", [[0.5, 1.0], "12", [[1, 2]]]),
    (
        lambda session, model: make_drafter(session, "automaton", draft_model=model(session)),
        "does not use a draft model",
        [DraftModel],
    ),
    (lambda session, commit: make_drafter(session, commit=commit), "commit", ["both"]),
)


@pytest.mark.parametrize(
    ("call", "message", "value"),
    [(call, message, value) for call, message, values in OF_SESSIONS for value in values],
)
def test_what_a_session_refuses_leaves_it_as_it_was(session, call, message, value):
    session.rewind(0)
    session.prefill([1, 2, 3])
    inputs = session.step_inputs[-1]
    inputs.fill_chain(np.array([4, 5], np.uint32), session.length)
    session.step(inputs)
    with pytest.raises((OptionError, ShapeError, TokenOutOfRangeError), match=message):
        call(session, value)
    assert session.length == 3
    session.commit([0, 1])
    assert session.length == 5


OF_REQUESTS = {
    "stop": [b"", [None], 3],
    "max_new_tokens": [None, 2.5],
    "temperature": [None, NAN, -1],
    "top_k": [-7, 1.5],
    "top_p": [5, NAN, 0],
    "presence_penalty": [3],
    "frequency_penalty": ["1"],
    "logit_bias": [[(5, 1)], {"5": 1}, {5: "1"}, {5: 101}],
    "logprobs": [21],
    "seed": [-1, 2**70],
    "prediction": ["\udcff", b"x"],
}


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: value} for name, values in OF_REQUESTS.items() for value in values),
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


OF_OPENING = {
    "width": [0, 1.5],
    "threads": [0, 3_000, 99_999_999_999],
    "memory_budget": [-1, 1.5],
    "draft": [None, ["automaton", None]],
    "history": [""],
    "draft_model": [""],
    "lookup_table": [""],
    "provider": ["gpu"],
    "kv_cache": ["q4", None],
}


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: value} for name, values in OF_OPENING.items() for value in values),
        {"lookup_table": "x", "draft": "automaton"},
        {"commit": "both", "draft": "plain"},
        {"namespace": "", "history": "x"},
    ],
    ids=str,
)
def test_opening_a_model_names_the_option_that_is_wrong(bundle, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "look-up table|x" if wrong.get("lookup_table") else next(iter(wrong))
    with pytest.raises(CoordgenError, match=name):
        Model.open(bundle, **wrong)


WRONG = (object(), 3.5, ["x", 3], {"a": 1}, b"x", "no such", "\udcff", -7, True)
FITS = {
    **dict.fromkeys(("stop", "namespace", "prediction", "system"), ("no such",)),
    **dict.fromkeys(("temperature", "repetition_penalty"), (3.5,)),
    **dict.fromkeys(("history", "fleet_history", "prefix_store"), ("no such", "\udcff")),
    "template_variables": ({"a": 1},),
}
"""Those of `WRONG` that are not wrong there; for flags, it is True."""

FLAGS = {
    *("ignore_eos", "drafts", "trees", "reuse_prefix", "remember", "provisional"),
    *("earlier_requests", "free_rows"),
}


def options(function):
    others = ("self", "cls", "session", "options", "model")
    return [name for name in inspect.signature(function).parameters if name not in others]


def calls(bundle, session, model):
    """Public functions, their options, and how they are called with one of them."""
    path, asked = {"path": bundle}, {"max_new_tokens": 2}
    prompt = {"prompt_ids": [1, 2], **asked}
    opened, of_sessions = OpenOptions.__annotations__, SessionOptions.__annotations__
    yield "open", ["path", *opened], lambda one: Model.open(**(path | one))
    yield "open_session", ["path", *of_sessions], lambda one: open_session(**(path | one))
    yield "generate", options(generate), lambda one: next(generate(session, **(prompt | one)))
    yield "plain", options(plain), lambda one: next(plain(session, **(prompt | one)))
    yield "make_drafter", options(make_drafter), lambda one: make_drafter(session, **one)
    yield "DraftModel", options(DraftModel), lambda one: DraftModel(session, **one)
    yield "Model", options(Model), lambda one: Model(session, **one)
    yield "Dialogue", options(Dialogue), lambda one: Dialogue(model, **one)
    for name in ("generate", "stream", "stream_tokens", "chat", "stream_chat"):
        method = getattr(model, name)
        first = [1, 2] if "tokens" in name else [{"role": "user", "content": "Hello"}]
        text = first if "chat" in name or "tokens" in name else "Hello"
        names = [*RequestOptions.__annotations__, *options(method)[1:]]
        yield name, names, lambda one, m=method, t=text: m(t, **(asked | one))


def test_a_value_of_a_wrong_type_is_an_error_with_a_name(
    bundle, session, model, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(type(model._prompts), "render", lambda *_: "Hello")
    session.rewind(0)
    unnamed = []
    for function, names, call in calls(bundle, session, model):
        for name in names:
            for value in WRONG:
                if value in FITS.get(name, ()) or (value is True and name in FLAGS):
                    continue
                if name in ("tools", "template_variables") and "chat" in function:
                    continue  # `test_chat_template.py` has those
                try:
                    call({name: value})
                except CoordgenError:
                    pass
                except Exception as error:
                    unnamed.append(f"{function}({name}={value!r:.20}): {error!r:.60}")
                else:
                    unnamed.append(f"{function}({name}={value!r:.20}) is accepted")
    assert not unnamed, "\n".join(unnamed)


@pytest.mark.parametrize("name", ["generate", "stream", "stream_tokens", "chat", "stream_chat"])
def test_an_option_that_is_not_there_names_the_function_and_what_was_meant(model, name):
    with pytest.raises(OptionError, match=rf"Model\.{name} has no option max_token: did you mean"):
        getattr(model, name)("Hello", max_token=3)
    with pytest.raises(OptionError, match="Dialogue has no option nonsense"):
        Dialogue(model, nonsense=3)


@pytest.mark.parametrize(
    "default",
    [
        dict.fromkeys(("stop", "seed", "grammar", "prediction", "on_read", "namespace")),
        {"top_k": 3, "top_p": 0.5, "seed": 9},  # limits on sampling, where nothing is sampled
    ],
)
def test_what_asks_for_the_default_changes_nothing(model, default):
    expected = model.generate("Hello", max_new_tokens=4).token_ids
    assert model.generate("Hello", max_new_tokens=4, **default).token_ids == expected


def test_a_model_shows_what_it_is(bundle):
    with Model.open(bundle, context=99) as model:
        assert repr(model) == f"<Model {str(bundle)!r} on cpu, context 99>"
    assert repr(model) == f"<Model {str(bundle)!r} on cpu, closed>"


@pytest.mark.parametrize("chosen", ["relative/cache", ".", ""])
def test_a_relative_cache_directory_is_ignored(monkeypatch, tmp_path, chosen):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", chosen)
    assert cache_directory() == tmp_path / ".cache" / "coordgen_rs"
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("/elsewhere")))
    assert cache_directory() == Path("/elsewhere/coordgen_rs")


def test_a_seed_is_drawn_and_told_and_repeats_the_answer(model):
    sampled = {"temperature": 1.5, "max_new_tokens": 20}
    answers = [model.generate("Hello", **sampled) for _ in range(2)]
    assert answers[0].seed != answers[1].seed
    for answer in answers:
        assert answer.seed == answer.stats.seed == answer.stats.to_json()["seed"]
        again = model.generate("Hello", seed=answer.seed, **sampled)
        assert again.token_ids == answer.token_ids
    assert model.generate("Hello", seed=7, **sampled).seed == 7
    assert model.generate("Hello", max_new_tokens=1).seed is None


def test_answers_and_stats_print_as_people_read_them(model):
    answer = model.generate("Hello", max_new_tokens=20, temperature=1.0, seed=3)
    assert f"{answer}" == answer.text
    lines = str(answer.stats).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        *("prompt tokens", "new tokens", "steps", "finish_reason", "seed")
    ]
    assert "drafting_us" not in repr(answer)
