"""Every option of every public function, with values of every wrong type."""

import inspect
from pathlib import Path

import pytest

from coordgen_rs import (
    Dialogue,
    DraftModel,
    Model,
    OpenOptions,
    RequestOptions,
    SessionOptions,
    generate,
    make_drafter,
    open_session,
    plain,
)
from coordgen_rs.errors import CoordgenError, OptionError
from coordgen_rs.store.cache import cache_directory

WRONG = (object(), 3.5, ["x", 3], {"a": 1}, b"x", "no such", "\udcff", -7, True)
FITS = {
    "stop": ("no such",),
    "namespace": ("no such",),
    "prediction": ("no such",),
    "system": ("no such",),
    "temperature": (3.5,),
    "repetition_penalty": (3.5,),
    "history": ("no such", "\udcff"),
    "fleet_history": ("no such", "\udcff"),
    "prefix_store": ("no such", "\udcff"),
    "template_variables": ({"a": 1},),
}
"""Those of `WRONG` that are not wrong there; for flags, it is True."""

FLAGS = {
    *("ignore_eos", "drafts", "trees", "reuse_prefix", "remember", "provisional"),
    *("earlier_requests", "free_rows"),
}


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded", "fp32")


@pytest.fixture(scope="module")
def session(bundle):
    return open_session(bundle)


@pytest.fixture(scope="module")
def model(bundle):
    with Model.open(bundle) as model:
        yield model


def options(function):
    others = ("self", "cls", "session", "options", "model")
    return [name for name in inspect.signature(function).parameters if name not in others]


def calls(bundle, session, model):
    """Public functions, their options, and how they are called with one of them."""
    prompt = {"prompt_ids": [1, 2], "max_new_tokens": 2}
    yield (
        "open",
        ["path", *OpenOptions.__annotations__],
        lambda one: Model.open(**({"path": bundle} | one)),
    )
    yield (
        "open_session",
        ["path", *SessionOptions.__annotations__],
        lambda o: open_session(**({"path": bundle} | o)),
    )
    yield "generate", options(generate), lambda one: next(generate(session, **(prompt | one)))
    yield "plain", options(plain), lambda one: next(plain(session, **(prompt | one)))
    yield "make_drafter", options(make_drafter), lambda one: make_drafter(session, **one)
    yield "DraftModel", options(DraftModel), lambda one: DraftModel(session, **one)
    yield "Model", options(Model), lambda one: Model(session, **one)
    yield "Dialogue", options(Dialogue), lambda one: Dialogue(model, **one)
    asked = {"max_new_tokens": 2}
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


def test_none_asks_for_the_default(model):
    expected = model.generate("Hello", max_new_tokens=4).token_ids
    nothing = dict.fromkeys(("stop", "seed", "grammar", "prediction", "on_read", "namespace"))
    assert model.generate("Hello", max_new_tokens=4, **nothing).token_ids == expected


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
