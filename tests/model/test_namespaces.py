"""Requests of one namespace tell those of another nothing, not even in how fast they come."""

from contextlib import closing

import pytest

from checkpoints import ROOT
from coordgen_rs import LookupTable, Model
from coordgen_rs.errors import OptionError, PromptTooLongError
from coordgen_rs.store.history.store import HistoryStore

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
    import numpy as np

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
