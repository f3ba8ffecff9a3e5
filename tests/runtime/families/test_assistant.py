"""Gemma 4's assistant: which states it reads, and what a bundle may say of it."""

import json

import numpy as np
import pytest

from answers import step_of, token_by_token, tokens_of
from assistants import compared, config_of
from coordgen_rs import Bundle, generate, make_drafter, open_session, plain
from coordgen_rs.errors import BundleDamagedError, BundleError
from coordgen_rs.runtime.heads.assistant import AssistantSession, ClusteredOutput
from families import needs_transformers
from gemma4 import CONFIGS
from lossless import prompt_of


@pytest.fixture(scope="module", params=CONFIGS)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def session(with_head, family):
    return open_session(with_head(family))


@needs_transformers
@pytest.mark.parametrize("has_clusters", [False, True])
@pytest.mark.parametrize("length", [2, 25, 26, 200])
def test_logits_are_those_of_transformers(tmp_path, family, has_clusters, length):
    """Of prompts within the window of 24 tokens, at its edge and beyond it."""
    prompt = np.random.default_rng(1).integers(3, 1500, length).astype(np.uint32)
    expected, got = compared(tmp_path, family, prompt, has_clusters=has_clusters)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


def test_a_tree_is_drafted_as_its_paths(session):
    prompt = prompt_of(2, 30)
    head = AssistantSession(session)
    session.rewind(0)
    session.prefill(prompt[:-1])
    head.prefill(prompt[:-1])
    tree = np.array([prompt[-1], 200, 300, 301], np.uint32)
    rows, length = step_of(head, tree, [0, 0, 0, 2]), head.length
    for path in ([0, 1], [0, 2, 3]):
        head.rewind(length)
        np.testing.assert_array_equal(token_by_token(head, tree[path]), rows[path])


def test_states_are_the_targets_where_they_are_committed_and_else_its_own(with_head, family):
    """A drafter that says again what the state says: of a token what the target said before it."""
    session = open_session(with_head(family, "echo"))
    head, prompt = AssistantSession(session), prompt_of(3, 42)
    session.rewind(0)
    session.prefill(prompt)
    tree = [5, 700, 300, 301, 302, 303], [0, 0, 0, 2, 3, 4]
    said = step_of(session, *tree).argmax(axis=1)
    session.commit(np.array([0, 2, 3], np.uint32))  # a side branch, whose rows are moved
    head.prefill(session.reusable_ids)
    echoed = token_by_token(head, [9, 11]).argmax(axis=1)
    assert echoed.tolist() == [said[3], said[3]]
    session.rewind(43)
    head.rewind(43)
    assert token_by_token(head, [9]).argmax() == said[0]


def test_it_has_nothing_to_read_before_it_drafts(session, monkeypatch):
    """Of a long prompt no row is computed, so one that was not drafted for costs nothing."""
    prompt = prompt_of(4, 300)
    drafter, runs = make_drafter(session, "mtp"), []
    head = drafter.model.session
    run = head._compute
    monkeypatch.setattr(head, "_compute", lambda *given: runs.append(given[1]) or run(*given))
    steps = generate(session, prompt, drafter=drafter, max_new_tokens=20, ignore_eos=True)
    assert len(tokens_of(steps)) == 20
    assert min(runs) == len(prompt) - 1
    assert len(runs) <= 4 * 20


def test_the_first_token_of_a_text_has_nothing_to_draft_from(session):
    head = AssistantSession(session)
    session.rewind(0)
    assert not token_by_token(head, [5]).any()
    for draft in ("auto", "blend", "mtp"):
        options = {"max_new_tokens": 10, "ignore_eos": True}
        prompt = np.array([7], np.uint32)
        expected = tokens_of(plain(session, prompt, **options))
        drafter = make_drafter(session, draft)
        assert tokens_of(generate(session, prompt, drafter=drafter, **options)) == expected


def changed(bundle, path, **fields):
    """A copy of a bundle whose manifest tells something else of the drafter."""
    path.mkdir()
    for file in bundle.iterdir():
        (path / file.name).hardlink_to(file)
    manifest = json.loads((path / "manifest.json").read_text())
    for name, value in fields.items():
        where, _, field = name.rpartition("__")
        (manifest["assistant"][where] if where else manifest["assistant"])[field] = value
    (path / "manifest.json").unlink()
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"graph": "head.onnx"}, "one of them lacks"),
        ({"reads": [1]}, "one of them lacks key_2"),
        ({"clusters": None}, "one of them lacks"),
    ],
)
def test_graphs_that_do_not_fit_the_manifest_are_refused(with_head, tmp_path, fields, why):
    session = open_session(changed(with_head("gemma4"), tmp_path / "bundle", **fields))
    with pytest.raises(BundleError, match=f"does not fit its manifest: {why}"):
        AssistantSession(session)


def test_clusters_with_ids_outside_the_vocabulary_are_refused(with_head, tmp_path):
    path = changed(with_head("gemma4"), tmp_path / "bundle")
    content = (path / "assistant_tokens.bin").read_bytes()
    (path / "assistant_tokens.bin").unlink()
    (path / "assistant_tokens.bin").write_bytes(b"\xff" * len(content))
    with pytest.raises(BundleDamagedError, match="a cluster holds ids outside the vocabulary"):
        ClusteredOutput(Bundle.open(path))


def test_configurations_of_both_kinds_are_covered():
    assert [config_of(family)["use_ordered_embeddings"] for family in CONFIGS] == [True, False]
