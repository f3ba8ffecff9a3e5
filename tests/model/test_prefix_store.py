"""Models with a store of prefixes: after a restart the same answers, not computed again."""

import threading

import pytest

from checkpoints import ROOT
from coordgen_rs import Model
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import OptionError
from coordgen_rs.loading import session as loading
from coordgen_rs.store.prefixes.directory import summaries
from genai_folders import write_folder
from hybrids import CONFIGS
from lossless import Bundles
from stored_prefixes import files

TEXTS = [
    (ROOT / "models" / "prompts" / f"{task}.txt").read_text() for task in ("rag", "ui", "reply")
]


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded", "fp32")


@pytest.fixture(scope="module")
def expected(bundle):
    with Model.open(bundle) as model:
        return [model.generate(text, max_new_tokens=12).token_ids for text in TEXTS]


def answered(bundle, path, texts=TEXTS, **options):
    """Answers of a model that was opened anew, and its store's counts."""
    with Model.open(bundle, prefix_store=path, **options) as model:
        answers = [model.generate(text, max_new_tokens=12) for text in texts]
        model.prefix_store.flush()
        return answers, model.prefix_store.counts


@pytest.mark.parametrize(("parallel", "kv_cache"), [(1, "f32"), (3, "f16"), (3, "q8")])
def test_after_a_restart_prompts_are_read_from_disk(bundle, tmp_path, parallel, kv_cache):
    options = {"parallel": parallel, "kv_cache": kv_cache}
    first, counts = answered(bundle, tmp_path, **options)
    assert counts.hits == 0
    assert counts.stored_tokens > 0
    again, counts = answered(bundle, tmp_path, **options)
    assert [it.token_ids for it in again] == [it.token_ids for it in first]
    assert counts.hits == len(TEXTS)
    for answer in again:
        assert answer.stats.prompt_tokens - answer.stats.reused_tokens <= 32
    _, counts = answered(bundle, tmp_path, kv_cache="f32" if kv_cache != "f32" else "f16")
    assert counts.hits == 0


def test_requests_together_store_and_find_what_each_has(bundle, expected, tmp_path):
    for _ in range(2):
        with Model.open(bundle, prefix_store=tmp_path, parallel=3) as model:
            texts = TEXTS * 3
            answers = model.generate_many(texts, max_new_tokens=12)
            assert [it.token_ids for it in answers] == expected * 3
    assert model.prefix_store.counts.hits >= len(TEXTS)
    assert all(it.stats.prompt_tokens - it.stats.reused_tokens <= 32 for it in answers)


def test_no_namespace_finds_what_another_has_stored(bundle, expected, tmp_path):
    for _ in range(2):
        with Model.open(bundle, prefix_store=tmp_path) as model:
            for namespace in ("alice", "bob"):
                answer = model.generate(TEXTS[0], max_new_tokens=12, namespace=namespace)
                assert answer.token_ids == expected[0]
    found = summaries(tmp_path)
    assert {it.namespace for it in found} == {"alice", "bob"}
    with Model.open(bundle, prefix_store=tmp_path) as model:
        model.generate(TEXTS[0], max_new_tokens=2, namespace="eve")
        assert model.prefix_store.counts.hits == 0
        model.generate(TEXTS[0], max_new_tokens=2, namespace="bob")
        assert model.prefix_store.counts.hits == 1


def test_a_request_that_reuses_nothing_leaves_nothing(bundle, tmp_path):
    with Model.open(bundle, prefix_store=tmp_path) as model:
        model.generate(TEXTS[0], max_new_tokens=4, reuse_prefix=False)
    assert files(tmp_path, "*/*") == []


def test_what_a_given_up_request_has_read_is_stored(bundle, tmp_path):
    with Model.open(bundle, prefix_store=tmp_path) as model:
        stream = model.stream(TEXTS[0])
        next(stream)
        stream.close()
    answers, counts = answered(bundle, tmp_path, TEXTS[:1])
    assert counts.hits == 1
    assert answers[0].stats.prompt_tokens - answers[0].stats.reused_tokens <= 32


def test_other_kernels_find_nothing(bundle, tmp_path, monkeypatch):
    answered(bundle, tmp_path, TEXTS[:1])
    for name, value in (("_kernels", lambda: "others"), ("package_version", lambda: "9.9")):
        with monkeypatch.context() as patch:
            patch.setattr(loading, name, value)
            _, counts = answered(bundle, tmp_path / name, TEXTS[:1])
            patch.undo()
            _, counts = answered(bundle, tmp_path / name, TEXTS[:1])
            assert counts.hits == 0
    assert answered(bundle, tmp_path, TEXTS[:1])[1].hits == 1


def test_other_weights_find_nothing(bundle_of, tmp_path):
    answered(bundle_of("embedded", "int8"), tmp_path, TEXTS[:1])
    assert answered(bundle_of("embedded", "int4"), tmp_path, TEXTS[:1])[1].hits == 0
    assert len(summaries(tmp_path)) == 2


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("parallel", [1, 2])
def test_states_of_recurrent_layers_come_back(tmp_path, family, parallel):
    hybrid = Bundles(tmp_path)(family)
    prompt = [3 + number * 7 % 40 for number in range(150)]
    told = []
    for _ in range(2):
        with Model.open(hybrid, prefix_store=tmp_path / "store", parallel=parallel) as model:
            stream = model.stream_tokens(prompt, max_new_tokens=8)
            "".join(piece.text for piece in stream)
            told.append(stream.answer)
    assert told[0].token_ids == told[1].token_ids
    assert told[1].stats.reused_tokens >= len(prompt) - 64
    assert model.prefix_store.counts.hits == 1


def test_a_folder_of_genai_is_stored_as_others_are(bundle, tmp_path):
    folder = write_folder(Bundle.open(bundle), tmp_path / "genai")
    first, _ = answered(folder, tmp_path / "store", TEXTS[:1])
    again, counts = answered(folder, tmp_path / "store", TEXTS[:1])
    assert again[0].token_ids == first[0].token_ids
    assert counts.hits == 1


def test_a_target_that_reuses_nothing_is_refused_by_name(bundle, tmp_path, monkeypatch):
    opened = loading.store_opened

    def inexact(session, *arguments):
        session.is_exact_after_prefill = False
        return opened(session, *arguments)

    monkeypatch.setattr("coordgen_rs.model.store_opened", inexact)
    with pytest.raises(OptionError, match="reuses nothing of earlier prompts"):
        Model.open(bundle, prefix_store=tmp_path)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_no_thread_is_started_to_put_a_kept_prefix_back(bundle_of, tmp_path, monkeypatch, where):
    kept = {"prefix_memory": 10**9} if where == "memory" else {"prefix_store": tmp_path}
    prompts = [" ".join(f"{word}{i}" for i in range(60)) for word in ("one", "two")]
    with Model.open(bundle_of("embedded", "fp32"), **kept) as model:
        answers = [model.generate(it, max_new_tokens=4).text for it in prompts]
        if model.prefix_store is not None:
            model.prefix_store.flush()
        started, start = [], threading.Thread.start

        def recorded(thread):
            started.append(thread.name)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", recorded)
        again = [model.generate(it, max_new_tokens=4).text for it in prompts * 2]
        monkeypatch.undo()
    assert again == answers * 2
    assert started == []
