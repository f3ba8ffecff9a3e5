"""Gemma 4's published drafter: what it drafts, beside lookups and alone. It changes nothing."""

import json

import numpy as np
import pytest

from answers import tokens_of
from assistants import chain, compared, config_of, write_pair
from coordgen_rs import (
    Bundle,
    Model,
    Sampling,
    Stats,
    generate,
    make_drafter,
    open_session,
    plain,
)
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import BundleDamagedError, BundleError, OptionError
from coordgen_rs.runtime.heads.assistant import AssistantSession, ClusteredOutput
from coordgen_rs.runtime.session import StepCost
from families import needs_transformers
from gemma4 import CONFIGS, write_gemma4
from lossless import (
    COMMITS,
    check_drafts,
    check_sampled,
    check_streamed,
    prompt_of,
)

LOOKUPS = ("automaton", "resumed-copy", "reuse", "earlier-requests")
DRAFTS = ("auto", "blend", "mtp")
CHOICE = Sampling(1.0, seed=4)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("assistant"), {}

    def bundle(family, kind="random", weights="fp32", blocks=1):
        source, key = folder / f"{family}-{kind}", (family, kind, weights, blocks)
        if key not in made:
            target, assistant = source / "target", source / "assistant"
            if not source.exists():
                write_pair(source, family, "random" if kind == "none" else kind)
            made[key] = folder / "-".join(map(str, key))
            how = {"weights": weights, "blocks": blocks, "context": 1024}
            beside = None if kind == "none" else assistant
            export_checkpoint(target, made[key], assistant=beside, **how)
        return made[key]

    return bundle


@pytest.fixture(scope="module", params=CONFIGS)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def session(bundles, family):
    return priced(bundles(family))


@pytest.fixture(scope="module")
def fitted(bundles, family):
    return priced(bundles(family, "fitted"))


def priced(bundle, **options):
    """A session whose steps cost so much that what a drafter takes here does not count."""
    session = open_session(bundle, **options)
    costs = [StepCost(1e6 * (1 + (width - 1) / 20), 0.0) for width in session.widths]
    session.select(session.widths, costs)
    return session


def figures(session, draft, max_new_tokens=120):
    """Tokens of the answers, tokens a step, and rows that the target computed."""
    said, steps, rows = [], 0, 0
    drafter, random = make_drafter(session, draft), np.random.default_rng(3)
    for _ in range(4):
        prompt, stats = random.integers(100, 1500, 60).astype(np.uint32), Stats()
        options = {"max_new_tokens": max_new_tokens, "sampling": CHOICE, "ignore_eos": True}
        for step in generate(session, prompt, drafter=drafter, stats=stats, **options):
            said += step.token_ids
            rows += step.num_rows
        steps += stats.steps
    return said, len(said) / steps, rows, drafter


@pytest.mark.parametrize("commit", COMMITS)
def test_drafts_change_nothing(session, commit):
    check_drafts(session, commit, num_prompts=2)


def test_an_answer_ends_where_plain_decoding_ends_it(fitted, monkeypatch):
    prompt = prompt_of(0)
    answer = tokens_of(plain(fitted, prompt, max_new_tokens=40, ignore_eos=True))
    ends = (answer[17],)
    monkeypatch.setattr(fitted, "end_token_ids", ends)
    expected = answer[: answer.index(ends[0]) + 1]
    for draft in DRAFTS:
        stats, drafter = Stats(), make_drafter(fitted, draft)
        steps = generate(fitted, prompt, max_new_tokens=40, drafter=drafter, stats=stats)
        assert tokens_of(steps) == expected
        assert stats.finish_reason == "stop"


def test_sampled_answers_and_those_under_a_grammar_are_the_same(session):
    check_sampled(session)


def test_blocks_that_are_streamed_say_the_same(bundles, family):
    check_streamed(bundles(family, "random", "fp32", 2))


@pytest.mark.parametrize("kind", ["fitted", "random"])
@pytest.mark.parametrize("weights", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("form", ["f32", "q8"])
def test_no_token_depends_on_the_drafter(bundles, family, kind, weights, form):
    session = priced(bundles(family, kind, weights), kv_cache=form)
    for sampling in (None, CHOICE):
        prompt = prompt_of(1)
        options = {"max_new_tokens": 40, "sampling": sampling, "ignore_eos": True}
        expected = tokens_of(plain(session, prompt, **options))
        for draft in DRAFTS:
            for commit in COMMITS:
                drafter = make_drafter(session, draft, commit)
                assert tokens_of(generate(session, prompt, drafter=drafter, **options)) == expected
                if (draft, kind) == ("mtp", "fitted"):
                    assert drafter.per_source["draft-model"]["proposed"] > 0


def test_a_fitted_drafter_is_accepted_and_auto_takes_it_beside_lookups(fitted):
    said, alone, _, drafter = figures(fitted, "mtp")
    told = drafter.per_source["draft-model"]
    assert told["accepted"] > 0.25 * told["proposed"]
    lookups, auto = figures(fitted, LOOKUPS), figures(fitted, "auto")
    assert said == lookups[0] == auto[0]
    assert alone > 1.5
    assert auto[1] >= max(alone, lookups[1])


def test_a_fitted_drafter_keeps_being_accepted_in_fewer_bits(bundles, family):
    for weights in ("int8", "int4"):
        assert figures(priced(bundles(family, "fitted", weights)), "mtp")[1] > 1.5


def test_a_useless_drafter_costs_next_to_nothing(bundles, family, session):
    without = priced(bundles(family, "none"))
    said, without, rows, _ = figures(without, "auto", max_new_tokens=400)
    again, beside, rows_beside, _ = figures(session, "auto", max_new_tokens=400)
    assert again == said
    assert beside >= 0.99 * without
    assert rows_beside <= 1.02 * rows


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
    inputs = next(it for it in head.step_inputs if it.rows == 4)
    tree = np.array([prompt[-1], 200, 300, 301], np.uint32)
    inputs.fill(tree, np.array([0, 0, 0, 2], np.uint32), head.length)
    rows = head.step(inputs).copy()
    length = head.length
    for path in ([0, 1], [0, 2, 3]):
        head.rewind(length)
        np.testing.assert_array_equal(chain(head, tree[path]), rows[path])


def test_states_are_the_targets_where_they_are_committed_and_else_its_own(bundles, family):
    """A drafter that says again what the state says: of a token what the target said before it."""
    session = priced(bundles(family, "echo"))
    head, prompt = AssistantSession(session), prompt_of(3, 42)
    session.rewind(0)
    session.prefill(prompt)
    inputs = next(it for it in session.step_inputs if it.rows == 8)
    tokens = np.array([5, 700, 300, 301, 302, 303], np.uint32)
    inputs.fill(tokens, np.array([0, 0, 0, 2, 3, 4], np.uint32), 42)
    said = session.step(inputs)[:6].argmax(axis=1)
    session.commit(np.array([0, 2, 3], np.uint32))  # a side branch, whose rows are moved
    head.prefill(session.reusable_ids)
    echoed = chain(head, [9, 11]).argmax(axis=1)
    assert echoed.tolist() == [said[3], said[3]]
    session.rewind(43)
    head.rewind(43)
    assert chain(head, [9]).argmax() == said[0]


def test_it_has_nothing_to_read_before_it_drafts(fitted, monkeypatch):
    """Of a long prompt no row is computed, so one that was not drafted for costs nothing."""
    prompt = prompt_of(4, 300)
    drafter, runs = make_drafter(fitted, "mtp"), []
    head = drafter.model.session
    run = head._compute
    monkeypatch.setattr(head, "_compute", lambda *given: runs.append(given[1]) or run(*given))
    steps = generate(fitted, prompt, drafter=drafter, max_new_tokens=20, ignore_eos=True)
    assert len(tokens_of(steps)) == 20
    assert min(runs) == len(prompt) - 1
    assert len(runs) <= 4 * 20


def test_the_first_token_of_a_text_has_nothing_to_draft_from(session):
    head = AssistantSession(session)
    session.rewind(0)
    assert not chain(head, [5]).any()
    for draft in DRAFTS:
        options = {"max_new_tokens": 10, "ignore_eos": True}
        prompt = np.array([7], np.uint32)
        expected = tokens_of(plain(session, prompt, **options))
        drafter = make_drafter(session, draft)
        assert tokens_of(generate(session, prompt, drafter=drafter, **options)) == expected


def test_it_drafts_on_in_dialogues_and_behind_prefixes_that_were_put_back(bundles, family):
    with Model.open(bundles(family, "fitted"), prefix_memory=64 << 20) as model:
        expected = [model.generate(text, max_new_tokens=20).text for text in ("Anna ran", "Who is")]
        for namespace in (None, "other", None):
            options = {} if namespace is None else {"namespace": namespace}
            for text, said in zip(("Anna ran", "Who is"), expected, strict=True):
                assert model.generate(text, max_new_tokens=20, **options).text == said


def test_one_that_gives_nan_drafts_nothing_and_says_so(session):
    prompt = prompt_of(1)
    expected = tokens_of(plain(session, prompt, max_new_tokens=20, ignore_eos=True))
    drafter = make_drafter(session, "mtp")
    real = drafter.model.session.step
    drafter.model.session.step = lambda inputs: real(inputs) * np.float32(np.nan)
    steps = generate(session, prompt, max_new_tokens=20, drafter=drafter, ignore_eos=True)
    with pytest.warns(UserWarning, match="head for further tokens"):
        assert tokens_of(steps) == expected


def test_bundles_without_one_say_so(tmp_path, family):
    target = write_gemma4(tmp_path / "target", family)
    export_checkpoint(target, tmp_path / "bundle", context=256, prefill_rows=32)
    session = open_session(tmp_path / "bundle")
    with pytest.raises(OptionError, match=r"'mtp' needs a head for further tokens \(MTP\)"):
        make_drafter(session, "mtp")
    with pytest.raises(BundleError, match="has no drafter beside the model"):
        AssistantSession(session)


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
        ({"reads": []}, r"manifest.assistant.reads is \[\]"),
        ({"reads": [2, 1]}, r"manifest.assistant.reads is \[2, 1\]"),
        ({"reads": [5]}, r"reads is \[5\], expected ascending numbers of the 3 layers"),
        ({"hidden_size": 0}, "assistant.hidden_size is 0"),
        ({"graph": "gone.onnx"}, "lacks gone.onnx"),
        ({"clusters__num": 47}, "47 clusters do not share 1536 tokens"),
        ({"clusters__chosen": 49}, "clusters.chosen is 49, expected 1 to 48"),
        ({"clusters__output": "head.onnx"}, "head.onnx has .* bytes, 1536 tokens take"),
    ],
)
def test_manifests_that_contradict_themselves_are_refused(bundles, tmp_path, fields, why):
    with pytest.raises(BundleError, match=why):
        Bundle.open(changed(bundles("gemma4"), tmp_path / "bundle", **fields))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"graph": "head.onnx"}, "one of them lacks"),
        ({"reads": [1]}, "one of them lacks key_2"),
        ({"clusters": None}, "one of them lacks"),
    ],
)
def test_graphs_that_do_not_fit_the_manifest_are_refused(bundles, tmp_path, fields, why):
    session = open_session(changed(bundles("gemma4"), tmp_path / "bundle", **fields))
    with pytest.raises(BundleError, match=f"does not fit its manifest: {why}"):
        AssistantSession(session)


def test_clusters_with_ids_outside_the_vocabulary_are_refused(bundles, tmp_path):
    path = changed(bundles("gemma4"), tmp_path / "bundle")
    content = (path / "assistant_tokens.bin").read_bytes()
    (path / "assistant_tokens.bin").unlink()
    (path / "assistant_tokens.bin").write_bytes(b"\xff" * len(content))
    with pytest.raises(BundleDamagedError, match="a cluster holds ids outside the vocabulary"):
        ClusteredOutput(Bundle.open(path))


def test_configurations_of_both_kinds_are_covered():
    assert [config_of(family)["use_ordered_embeddings"] for family in CONFIGS] == [True, False]
