"""The next request reuses what the session holds of its prompt: the same tokens as from nothing."""

import numpy as np
import pytest

from answers import tokens_of
from coordgen_rs import Stats, Tokenizer, generate, make_drafter, plain
from coordgen_rs.generation.drafting.proposer import WrappedDrafter
from coordgen_rs.lab.check import SideBranchDrafter
from corpus import HELD_OUT_SEEDS, TASKS, example

LOGIT_READERS = ("automaton", "calibration", "lookup-table")


def turns(session, index):
    """Prompts of one dialogue, each beginning with the one before: three questions on one text."""
    tokenizer = Tokenizer.of(session.bundle)
    first = tokenizer.encode(example(TASKS[index % 4], HELD_OUT_SEEDS[index]).prompt)
    more = [
        tokenizer.encode(example(TASKS[at % 4], HELD_OUT_SEEDS[at]).prompt, special_tokens=False)
        for at in (index + 1, index + 2)
    ]
    return first, more


@pytest.mark.parametrize("weights", ["fp32", "int4"])
def test_what_is_reused_is_the_longest_common_prefix(session_of, weights):
    session = session_of("embedded", weights)
    first, (second, other) = turns(session, 0)
    answer = tokens_of(plain(session, first, max_new_tokens=9))
    follow_up = np.concatenate([first, answer, second])
    edited = follow_up.copy()
    edited[20] = (edited[20] + 1) % 100
    for prompt, kept in ((follow_up, len(first) + 8), (edited, 20), (first, 20), (other, None)):
        stats = Stats()
        got = tokens_of(plain(session, prompt, max_new_tokens=9, reuse_prefix=True, stats=stats))
        if kept is not None:
            assert stats.reused_tokens == kept
        assert stats.reused_tokens < len(prompt)
        assert got == tokens_of(plain(session, prompt, max_new_tokens=9))
        if prompt is follow_up or prompt is edited:
            session.rewind(len(prompt))
    stats = Stats()
    tokens_of(plain(session, other, max_new_tokens=1, reuse_prefix=True, stats=stats))
    assert stats.reused_tokens == len(other) - 1  # the last is the root of the first step


def test_an_answer_that_was_given_up_is_reused_as_far_as_it_went(session_of):
    session = session_of("embedded", "fp32")
    first, (second, _) = turns(session, 2)
    expected = tokens_of(plain(session, first, max_new_tokens=30))
    steps = generate(session, first, max_new_tokens=30)
    said = next(steps).token_ids + next(steps).token_ids
    steps.close()
    prompt = np.concatenate([first, expected[: len(said)], second])
    stats = Stats()
    got = tokens_of(generate(session, prompt, max_new_tokens=20, reuse_prefix=True, stats=stats))
    assert stats.reused_tokens >= len(first) + len(said) - 1
    assert got == tokens_of(plain(session, prompt, max_new_tokens=20))


@pytest.mark.parametrize("is_exact", [False, True])
def test_rows_that_a_compact_commit_moved_are_reused_where_they_are_exact(
    session_of, monkeypatch, is_exact
):
    session = session_of("embedded", "fp32")
    monkeypatch.setattr(session, "is_exact_on_branches", is_exact)
    first, _ = turns(session, 1)
    answer = tokens_of(plain(session, first, max_new_tokens=20))
    text = np.array([first[-1], *answer], np.uint32)
    drafter = SideBranchDrafter(make_drafter(session, (), "compact"), text, session.vocab_size)
    tokens_of(generate(session, first, max_new_tokens=20, drafter=drafter))
    assert session.length > len(first)
    reusable = len(session.reusable_ids)
    assert len(first) - 1 <= reusable <= session.length
    assert (reusable == session.length) is is_exact
    assert session.reusable_ids[: len(first) - 1].tolist() == first[:-1].tolist()


def test_graphs_that_differ_reuse_nothing(session_of, monkeypatch):
    session = session_of("embedded", "fp32")
    monkeypatch.setattr(session, "is_exact_after_prefill", False)
    first, _ = turns(session, 0)
    tokens_of(plain(session, first, max_new_tokens=4))
    stats = Stats()
    tokens_of(plain(session, first, max_new_tokens=4, reuse_prefix=True, stats=stats))
    assert stats.reused_tokens == 0


@pytest.mark.parametrize("draft", [None, "auto", LOGIT_READERS])
def test_a_prompt_that_is_given_up_between_chunks_is_gone_on_with(session_of, draft):
    """What was read stays, and nothing else."""
    session = session_of("embedded", "fp32")
    first, more = turns(session, 0)
    prompt = np.concatenate([first, *more])
    expected = tokens_of(plain(session, prompt, max_new_tokens=8))
    drafter = None if draft is None else make_drafter(session, draft)
    read = []

    def give_up(num_tokens):
        read.append(num_tokens)
        raise KeyboardInterrupt

    def steps(**options):
        options = {"max_new_tokens": 8, "reuse_prefix": True} | options
        if drafter is None:
            return plain(session, prompt, **options)
        return generate(session, prompt, drafter=drafter, **options)

    session.rewind(0)
    with pytest.raises(KeyboardInterrupt):
        next(steps(on_read=give_up))
    assert [session.length] == read
    stats, later = Stats(), []
    assert tokens_of(steps(stats=stats, on_read=later.append)) == expected
    assert stats.reused_tokens == read[0]
    assert later[-1] == len(prompt) - 1 - read[0]


def test_a_drafter_is_told_that_its_prompt_was_given_up(session_of):
    session, told = session_of("embedded", "fp32"), []

    class Told(WrappedDrafter):
        def end(self):
            told.append("end")
            self.drafter.end()

    def give_up(num_tokens):
        raise KeyboardInterrupt

    prompt, _ = turns(session, 0)
    steps = generate(session, prompt, drafter=Told(make_drafter(session)), on_read=give_up)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert told == ["end"]
    assert session.gap_work is None
