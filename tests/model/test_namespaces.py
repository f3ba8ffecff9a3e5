"""Requests of one namespace tell those of another nothing, not even in how fast they come."""

from contextlib import closing
from threading import Thread

import numpy as np
import pytest

from checkpoints import ROOT
from coordgen_rs import LookupTable, Model
from coordgen_rs.errors import OptionError, PromptTooLongError
from coordgen_rs.store.history.nearest import MOST_GRAMS, MOST_NAMES, Likeness, NearestNamespaces
from coordgen_rs.store.history.store import HistoryStore, StoredRequest

TEXT = (ROOT / "models" / "prompts" / "rag.txt").read_text()


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded", "fp32")


def told(answer):
    """What shows of an answer but for its times."""
    return answer.token_ids, answer.sources, answer.stats.steps, answer.stats.reused_tokens


@pytest.mark.parametrize(
    ("draft", "prefix_memory"), [("auto", 1 << 28), ("blend", 0), ("token-recycling", 1 << 28)]
)
def test_another_namespace_is_answered_as_by_a_new_model(bundle, draft, prefix_memory):
    options = {"draft": draft, "prefix_memory": prefix_memory}
    with Model.open(bundle, **options) as model:
        new = told(model.generate(TEXT, namespace="a"))
        again = told(model.generate(TEXT, namespace="a"))
        other = told(model.generate(TEXT, namespace="b"))
    assert again[0] == other[0] == new[0]
    assert (again[3] > 0, other[3]) == (True, 0)
    assert other == new


def test_without_reuse_nothing_is_left_for_another_namespace(bundle):
    with Model.open(bundle, prefix_memory=1 << 28) as model:
        model.generate(TEXT, namespace="a", max_new_tokens=4)
        model.generate(TEXT, namespace="b", max_new_tokens=4, reuse_prefix=False)
        found = model.generate(TEXT, namespace="a", max_new_tokens=4)
        other = model.generate(TEXT, namespace="c", max_new_tokens=4)
    assert found.stats.reused_tokens > 0
    assert other.stats.reused_tokens == 0


@pytest.mark.parametrize(("parallel", "prefix_memory"), [(1, 1 << 28), (2, 1 << 28), (2, 0)])
def test_a_request_that_reuses_nothing_takes_nothing_from_others(bundle, parallel, prefix_memory):
    """Of several places, one that nobody goes on with is taken first."""
    with Model.open(bundle, prefix_memory=prefix_memory, parallel=parallel) as model:
        model.generate(TEXT, max_new_tokens=4)
        for text in (TEXT[::-1], TEXT[9:], TEXT[18:]):
            model.generate(text, max_new_tokens=4, reuse_prefix=False)
        again = model.generate(TEXT, max_new_tokens=4)
    assert again.stats.reused_tokens == again.stats.prompt_tokens - 1


def test_a_model_that_does_not_remember_answers_each_request_alike(bundle):
    with Model.open(bundle, draft="blend", remember=False) as model:
        first, second = (told(model.generate(TEXT)) for _ in range(2))
    assert first == second
    assert first[3] == 0


def test_a_given_table_learns_for_each_namespace_alone(bundle, tmp_path):
    from coordgen_rs.generation.drafting.warm_up import _key

    with Model.open(bundle) as model:
        table, key = LookupTable(), _key(model._session.bundle)
        table.learn(np.zeros(1, np.uint32), np.eye(1, model.vocab_size, dtype=np.float32))
        table.save(tmp_path / "table", model.vocab_size, key)
    with Model.open(bundle, draft="diaa", lookup_table=tmp_path / "table") as model:
        runs = [told(model.generate(TEXT, namespace=name)) for name in "aab"]
    assert runs[0] == runs[2]
    assert runs[1][2] < runs[0][2]


def test_a_history_keeps_namespaces_apart(bundle, tmp_path):
    with Model.open(bundle, history=tmp_path, namespace="own") as model:
        first = told(model.generate(TEXT, namespace="a"))
        other = told(model.generate(TEXT, namespace="b"))
        model.generate(TEXT)
    assert other == first
    with closing(HistoryStore(tmp_path, read_only=True)) as store:
        assert {found.namespace: found.num_requests for found in store.namespaces()} == {
            "a": 1,
            "b": 1,
            "own": 1,
        }


def test_a_request_without_a_namespace_drafts_from_the_nearest_and_is_kept_in_its_own(
    bundle, tmp_path
):
    far, near = TEXT[::-1], f"Once more: {TEXT}"
    with Model.open(bundle, history=tmp_path) as model:
        new = told(model.generate(near, namespace="new"))
    with Model.open(bundle, history=tmp_path, namespace="own", nearest_namespace=True) as model:
        model.generate(far, namespace="far", max_new_tokens=9)
        model.generate(far, namespace="third", max_new_tokens=9)
        first, again = (told(model.generate(near)) for _ in range(2))
        other = told(model.generate(near, namespace="other"))
    assert first[0] == again[0] == other[0] == new[0]
    assert first[2] < new[2] == other[2]
    with closing(HistoryStore(tmp_path, read_only=True)) as store:
        kept = {found.namespace: found.num_requests for found in store.namespaces()}
    assert kept == {"new": 1, "far": 1, "third": 1, "own": 2, "other": 1}


def test_the_nearest_namespace_is_only_looked_for_where_there_is_a_history(bundle, coordgen):
    with pytest.raises(OptionError, match="nearest_namespace needs a history"):
        Model.open(bundle, nearest_namespace=True)
    given = ("--model", bundle, "--nearest-namespace")
    refused = coordgen("generate", *given, "--prompt", "a", code=2).err
    assert "--nearest-namespace needs --history" in refused
    served = coordgen(
        "serve", bundle, *given[2:], "--history", bundle.parent / "history", code=2
    ).err
    assert "--nearest-namespace is for one user" in served


def test_the_nearest_namespace_holds_most_of_what_few_others_hold():
    numbers = np.random.default_rng(0)
    common, own = numbers.integers(0, 1000, 40), numbers.integers(0, 1000, (3, 40))
    likeness = Likeness()
    assert likeness.nearest(common) is None
    for name, tokens in zip("abc", own, strict=True):
        likeness.add(name, np.concatenate([common, tokens]))
    assert likeness.nearest(np.concatenate([common, own[0][:9], own[1][:20]])) == "b"
    assert likeness.nearest(common) == "c"
    assert likeness.nearest(common[:2]) is None
    assert likeness.nearest(np.arange(1000, 1009)) is None
    for number in range(MOST_NAMES - 1):
        likeness.add(str(number), own[2])
    assert likeness.nearest(own[1]) is None
    assert len(likeness.grams) == MOST_NAMES


def test_what_is_cleared_is_near_to_nothing(tmp_path):
    tokens = np.arange(20, dtype=np.uint32)
    nearest = NearestNamespaces(tmp_path)
    assert nearest.nearest(tokens) is None
    with closing(HistoryStore(tmp_path, fingerprint="f", vocab_size=99)) as store:
        store.add([StoredRequest(name, 1.0, 5, tokens + at) for at, name in enumerate("ab")])
        assert nearest.nearest(tokens) == "a"
        store.clear("a")
        assert nearest.nearest(tokens) == "b"
        store.add([StoredRequest("a", 2.0, 5, tokens + 70)])  # before anybody looked
        store.clear("b")
        store.add([StoredRequest("b", 3.0, 5, tokens + 40)])
        assert nearest.nearest(tokens) is None
        store.max_tokens = 20
        store.add([StoredRequest("c", 4.0, 5, tokens)])  # evicts both
        assert nearest.nearest(tokens + 40) is None


def test_a_large_namespace_is_as_near_as_what_is_kept_of_it_tells():
    tokens = np.random.default_rng(0).integers(0, 1 << 31, 4 * MOST_GRAMS)
    likeness = Likeness()
    likeness.add("large", tokens)
    likeness.add("half", tokens[:300])
    assert len(likeness.grams["large"]) == MOST_GRAMS
    assert likeness.nearest(tokens[:600]) == "large"
    likeness.add("whole", tokens[:600])
    assert likeness.nearest(tokens[:600]) == "whole"


def test_another_request_begins_while_the_nearest_is_looked_for(bundle, tmp_path, monkeypatch):
    with Model.open(bundle, history=tmp_path, nearest_namespace=True) as model:

        def nearest(*_):
            other = Thread(target=model._drafters.acquire, args=("other",), daemon=True)
            other.start()
            other.join(20)
            assert not other.is_alive()

        monkeypatch.setattr(NearestNamespaces, "nearest", nearest)
        model.generate(TEXT, max_new_tokens=1)


def test_a_context_limits_prompt_and_answer_together(bundle):
    with Model.open(bundle) as model:
        most, num_prompt = model.context, len(model.tokenizer.encode(TEXT))
        expected = model.generate(TEXT, ignore_eos=True)
    with Model.open(bundle, context=num_prompt + 4) as model:
        assert model.context == num_prompt + 4
        cut = model.generate(TEXT, ignore_eos=True)
        with pytest.raises(PromptTooLongError):
            model.generate(TEXT + TEXT)
    assert (cut.token_ids, cut.finish_reason) == (expected.token_ids[:5], "capacity")
    with pytest.raises(OptionError, match=f"made for {most} tokens"):
        Model.open(bundle, context=most + 1)


def test_trees_hold_what_each_step_verified(bundle):
    with Model.open(bundle) as model:
        answer = model.generate(TEXT, max_new_tokens=40)
        with model.stream(TEXT, max_new_tokens=40, namespace="new", trees=True) as stream:
            gains = list(iter(stream.step, None))
    assert stream.answer.token_ids == answer.token_ids
    agreed = 0
    for gain in gains:
        tree = gain.step.tree
        assert len(tree.token_ids) == gain.step.num_drafted + 1
        assert tree.sources[0] == "target"
        assert all(parent < node for node, parent in enumerate(tree.parents) if node)
        path = tree.path(gain.step.token_ids)
        assert [tree.token_ids[node] for node in path] == gain.step.token_ids[: len(path)]
        assert tuple(tree.sources[node] for node in path) == gain.sources[: len(path)]
        assert gain.step.accept_len <= len(path)
        agreed += len(path)
    assert agreed > 0
