"""The door for people, with the embedded model: the tokens of `generate`, and threads that wait."""

import copy
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from checkpoints import ROOT
from coordgen_rs import (
    Bundle,
    DraftModel,
    History,
    Model,
    OrtSession,
    PrefixPool,
    Tokenizer,
    generate,
    open_session,
)
from coordgen_rs.errors import (
    BundleError,
    LookupTableError,
    OptionError,
    ProfileError,
    PromptTooLongError,
    SessionClosedError,
    TokenOutOfRangeError,
)
from coordgen_rs.loading import session as loading
from coordgen_rs.loading.self_test import run_self_test
from coordgen_rs.model.stream import collect
from coordgen_rs.runtime.cpu import CpuDevice
from coordgen_rs.store.history.store import HistoryStore

TEXT, OTHER = ((ROOT / "models" / "prompts" / f"{task}.txt").read_text() for task in ("rag", "ui"))


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded", "fp32")


@pytest.fixture(scope="module")
def model(bundle):
    with Model.open(bundle) as model:
        yield model


@pytest.fixture(scope="module")
def answer(model):
    return model.generate(TEXT)


def test_the_tokens_are_those_of_generate(session_of, model, answer):
    session = session_of("embedded", "fp32")
    tokenizer = Tokenizer.of(session.bundle)
    steps = generate(session, tokenizer.encode(TEXT))
    assert list(answer.token_ids) == [token for step in steps for token in step.token_ids]
    assert answer.text == tokenizer.decode(answer.token_ids)
    assert answer.finish_reason == "stop"
    assert answer.stats.new_tokens == len(answer.token_ids) == len(answer.sources)
    cut = model.generate(TEXT, max_new_tokens=5)
    assert (cut.finish_reason, cut.token_ids) == ("length", answer.token_ids[:5])
    most = len(answer.token_ids) + 20
    going_on = model.generate(TEXT, max_new_tokens=most, ignore_eos=True)
    assert (going_on.finish_reason, len(going_on.token_ids)) == ("length", most)
    assert going_on.token_ids[: len(answer.token_ids)] == answer.token_ids


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_model_and_what_it_is_made_of_are_not_copied(bundle, tmp_path, copied):
    session = open_session(bundle)
    with Model(session, prefix_memory=1000) as model:
        history = History(tmp_path, vocab_size=9)
        for one in (model, session, history, DraftModel(session), PrefixPool(9)):
            with pytest.raises(OptionError, match=f"a {type(one).__name__} can be neither copied"):
                copied(one)
        assert model.generate("Hello", max_new_tokens=2).token_ids


def commit_of_a_command(coordgen, bundle, *given):
    request = ("generate", "--model", bundle, "--prompt", "Hello", "--max-new-tokens", 2, "--json")
    return json.loads(coordgen(*request, *given).out)["commit"]


@pytest.mark.parametrize("is_allowed", [True, False])
def test_the_way_to_commit_is_told_as_the_session_chose_it(
    bundle, monkeypatch, coordgen, is_allowed
):
    if not is_allowed:
        monkeypatch.setattr(CpuDevice, "allowed_commits", ("canonical",))
    expected = "compact" if is_allowed else "canonical"
    with Model.open(bundle, commit="compact") as model:
        assert model.commit == expected
    assert commit_of_a_command(coordgen, bundle, "--commit", "compact") == expected


@pytest.mark.parametrize("is_exact", [True, False])
def test_auto_commits_as_the_bundle_was_found_to_be_exact(
    bundle, monkeypatch, tmp_path, coordgen, is_exact
):
    def found(*arguments):
        return replace(run_self_test(*arguments), exact_branches=is_exact)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loading, "run_self_test", found)
    expected = "compact" if is_exact else "canonical"
    for given in ({}, {"commit": "auto"}):
        with Model.open(bundle, **given) as model:  # the second time from the record
            assert model.commit == expected
    for words in ((), ("--commit", "auto")):
        assert commit_of_a_command(coordgen, bundle, *words) == expected


def test_a_prompt_of_token_ids_is_read_as_it_is(model, answer):
    ids = model.tokenizer.encode(TEXT)
    assert collect(model.stream_tokens(ids)).token_ids == answer.token_ids
    assert (
        collect(model.stream_tokens(ids.tolist(), max_new_tokens=3)).token_ids
        == (answer.token_ids[:3])
    )
    with pytest.raises(TokenOutOfRangeError):
        model.stream_tokens([model.vocab_size])
    with pytest.raises(PromptTooLongError):
        collect(model.stream_tokens([1] * (model.context + 1)))


def test_an_answer_ends_before_a_stop_string(model, bundle, answer):
    tokenizer = Tokenizer.of(Bundle.open(bundle))
    stop = answer.text[24:29]
    cut = model.generate(TEXT, stop=["no such text", stop])
    assert cut.text == answer.text.partition(stop)[0]
    assert cut.finish_reason == cut.stats.finish_reason == "stop"
    assert cut.token_ids == answer.token_ids[: len(cut.token_ids)]
    assert stop in tokenizer.decode(cut.token_ids)
    assert stop not in tokenizer.decode(cut.token_ids[:-1])
    assert model.generate(TEXT, stop="no such text").text == answer.text


def test_a_right_prediction_saves_steps_and_is_named_in_spans(bundle, answer):
    with Model.open(bundle, draft=["earlier-requests"], remember=False) as model:
        alone = model.generate(TEXT)
        predicted = model.generate(TEXT, prediction=answer.text)
    assert predicted.token_ids == alone.token_ids == answer.token_ids
    assert predicted.stats.steps < alone.stats.steps
    assert {span.source for span in predicted.spans} == {"target", "prediction"}


def test_earlier_requests_are_drafted_from_unless_told_otherwise(bundle):
    steps = {}
    for remember in (True, False):
        with Model.open(bundle, remember=remember) as model:
            answers = [model.generate(TEXT) for _ in range(2)]
        assert answers[0].token_ids == answers[1].token_ids
        steps[remember] = [answer.stats.steps for answer in answers]
    assert steps[True][0] == steps[False][0]
    assert steps[True][1] < steps[False][1]


def test_closing_lets_go_of_the_draft_model_too(bundle, bundle_of, monkeypatch):
    closed, real = [], OrtSession.close
    monkeypatch.setattr(OrtSession, "close", lambda self: (closed.append(self), real(self)))
    smaller = bundle_of("embedded-draft", "fp32")
    Model.open(bundle, draft_model=smaller).close()
    assert len(closed) == 2
    closed.clear()
    with pytest.raises(OptionError, match="guess"):  # refused after all was opened
        Model.open(bundle, draft=["guess"], draft_model=smaller)
    assert len(closed) == 2


def test_after_close_use_is_an_error_and_an_open_stream_has_ended(bundle):
    with Model.open(bundle) as model:
        stream, later = model.stream(TEXT), model.stream(OTHER)
        first = next(stream)
    assert list(stream) == []
    assert stream.answer.text == str(first)
    assert stream.answer.finish_reason is None
    with pytest.raises(SessionClosedError, match="closed"):
        next(later)
    with pytest.raises(SessionClosedError, match="closed"):
        model.generate(TEXT)
    model.close()


def test_a_history_keeps_what_finished_and_drafts_from_it(bundle, answer, tmp_path):
    options = {"history": tmp_path / "answers", "namespace": "rag"}
    with Model.open(bundle, **options) as model:
        cut = model.generate(TEXT, stop=answer.text[40:48])  # a stop string finishes a request, too
        for _ in model.stream(TEXT, max_new_tokens=900, ignore_eos=True):
            break  # given up
    (kept,) = HistoryStore(options["history"]).read()
    assert kept.namespace == "rag"
    assert np.frombuffer(kept.token_ids, "<u4")[kept.prompt_len :].tolist() == list(cut.token_ids)
    with Model.open(bundle, **options) as model:
        again = model.generate(TEXT)
    assert again.token_ids == answer.token_ids
    assert again.stats.per_source["recent"]["accepted"] > 0


def test_a_draft_model_and_plain_decoding_change_no_token(bundle, bundle_of, answer):
    with Model.open(
        bundle, draft="edgellm", draft_model=bundle_of("embedded-draft", "fp32")
    ) as model:
        drafted = model.generate(TEXT)
    assert drafted.token_ids == answer.token_ids
    assert "draft-model" in drafted.sources
    with Model.open(bundle, draft="plain") as model:
        plain = model.generate(TEXT, prediction=answer.text)  # of no use without drafts
        assert plain.token_ids == answer.token_ids
        assert model.provider == "cpu"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"remember": False, "history": "kept"}, "remember is False"),
        ({"remember": False, "prefix_memory": 1}, "remember is False"),
        ({"history": "answers", "draft": "plain"}, "history needs drafts"),
        ({"draft_model": "smaller", "draft": "plain"}, "draft model needs drafts"),
        ({"lookup_table": "table", "draft": "plain"}, "look-up table needs drafts"),
        ({"draft": []}, "draft names no source; without drafts it is 'plain'"),
        ({"draft": ()}, "draft names no source"),
        ({"draft": "guess"}, "guess"),
        ({"draft": ["automaton", "guess"]}, "guess"),
        ({"threads": 0}, "threads"),
        ({"prefix_store_size": 5}, "needs a prefix_store"),
        ({"prefix_store": "p", "prefix_store_size": 0}, "prefix_store_size"),
        ({"prefix_store": "p", "remember": False}, "remember is False"),
        ({"prefix_store": ""}, "prefix_store"),
    ],
)
def test_options_that_cannot_be_are_refused_at_opening(bundle, options, named, tmp_path):
    if "history" in options:
        options = options | {"history": tmp_path / options["history"]}
    with pytest.raises(OptionError, match=named):
        Model.open(bundle, **options)
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_not_there_are_named(bundle):
    for name, error in (
        ("draft_model", BundleError),
        ("lookup_table", LookupTableError),
        ("profile", ProfileError),
    ):
        with pytest.raises(error, match="nowhere"):
            Model.open(bundle, **{name: "nowhere"})
    with pytest.raises(BundleError, match="nowhere"):
        Model.open("nowhere")


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"stop": ""}, OptionError, "stop"),
        ({"max_new_tokens": 0}, OptionError, "max_new_tokens"),
        ({"text": "word " * 5000}, PromptTooLongError, "cache"),
    ],
)
def test_a_refused_request_leaves_the_model_usable(model, answer, options, error, named):
    with pytest.raises(error, match=named):
        model.generate(**{"text": TEXT} | options)
    assert model.generate(TEXT, max_new_tokens=4).token_ids == answer.token_ids[:4]
