"""States of recurrent layers: commits in parts, ways back, interrupts, and snapshots of turns."""

import numpy as np
import pytest

from answers import step_of, token_by_token, tokens_of
from coordgen_rs import OrtSession, Stats, generate, make_drafter, open_session, plain
from coordgen_rs.errors import ShapeError
from coordgen_rs.runtime.caches.kv_cache import KvCache
from coordgen_rs.runtime.caches.states import SNAPSHOT_TOKENS
from coordgen_rs.runtime.cpu import CpuDevice
from lossless import HYBRIDS, fresh_logits, logits_behind, prompt_of

MOST_READ_AGAIN = 64


@pytest.fixture(scope="module", params=HYBRIDS)
def bundle(request, bundles):
    return bundles(request.param)


@pytest.fixture(scope="module")
def session(bundle):
    return open_session(bundle)


def interrupted(*_):
    raise KeyboardInterrupt


def stepped(session, tokens, parents):
    """A step of a tree behind 40 tokens."""
    session.forget()
    session.prefill(prompt_of(3, 120)[:40])
    step_of(session, tokens, parents)


def assert_fresh(bundle, session):
    tokens = np.append(session.reusable_ids, 77).astype(np.uint32)
    expected = fresh_logits(open_session(bundle), tokens)
    np.testing.assert_array_equal(logits_behind(session, tokens), expected)


@pytest.mark.parametrize(
    ("parts", "length", "said"),
    [
        ([[0, 1], [0, 1]], 44, [5, 6, 7, 8]),
        ([[0, 1], [0, 1]], 42, [5, 6]),
        ([[0, 1, 2, 3, 4]], 43, [5, 6, 7]),
        ([[0]], 41, [5]),
    ],
)
def test_commits_in_parts_and_rewinds_into_a_step(bundle, session, parts, length, said):
    stepped(session, [5, 6, 7, 8, 9, 10], [0, 0, 1, 2, 3, 4])
    for rows in parts:
        session.commit(np.array(rows, np.uint32))
    session.rewind(length)
    assert session.reusable_ids[40:].tolist() == said
    assert_fresh(bundle, session)


def test_rows_are_not_committed_behind_a_rewind(session):
    """Which of them fit to the states is not known there."""
    for commits, length in (([[0, 2, 3]], 41), ([[0, 1]], 40), ([], 24)):
        stepped(session, [5, 6, 7, 8], [0, 0, 0, 2])
        for rows in commits:
            session.commit(np.array(rows, np.uint32))
        session.rewind(length)
        with pytest.raises(ShapeError):
            session.commit(np.zeros(1, np.uint32))


def test_a_step_is_not_committed_behind_a_prompt_that_failed(bundle, session):
    stepped(session, [5, 6, 7, 8], [0, 0, 1, 2])

    def fail(logits):
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        session.prefill(prompt_of(4)[:20], on_logits=fail)
    with pytest.raises(ShapeError):
        session.commit(np.zeros(1, np.uint32))
    assert session.length == 40
    assert_fresh(bundle, session)


def test_a_prefix_that_was_put_back_leaves_no_snapshot_of_other_tokens(bundle, session):
    session.forget()
    session.prefill(prompt_of(1, 300))
    saved = session.saved_prefix()
    assert [it.length for it in saved.states][-1] == 300
    session.restore_prefix(saved, 100)
    session.prefill(prompt_of(2, 300))
    session.rewind(300)
    assert session.reusable_ids[100:].tolist() == prompt_of(2, 300)[:200].tolist()
    assert_fresh(bundle, session)


@pytest.mark.parametrize("what", ["put", "rewind", "commit"])
def test_interrupts_between_states_and_keys_leave_no_stale_snapshot(
    bundle, session, monkeypatch, what
):
    session.forget()
    session.prefill(prompt_of(1, 300))
    saved = session.saved_prefix()

    calls = {
        "put": (KvCache, "put", lambda: session.restore_prefix(saved, 300)),
        "rewind": (session.cache.states, "_restore", lambda: session.rewind(150)),
        "commit": (KvCache, "commit", lambda: session.prefill(prompt_of(2, 90))),
    }
    owner, name, call = calls[what]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            call()
    session.prefill(prompt_of(5, 330))
    session.rewind(min(session.length, 320))
    assert_fresh(bundle, session)


def test_an_interrupted_way_back_is_mended_by_the_next(session, monkeypatch):
    states, tokens = session.cache.states, prompt_of(1, 300)
    expected = fresh_logits(session, tokens[:200])
    session.forget()
    session.prefill(tokens)

    with monkeypatch.context() as patch:
        patch.setattr(states, "_forget_pending", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.rewind(199)
    np.testing.assert_array_equal(logits_behind(session, tokens[:200]), expected)


def test_snapshots_stay_within_their_budget_and_keep_where_turns_end(session, monkeypatch):
    states = session.cache.states
    monkeypatch.setattr(states, "_most_snapshots", 6)
    session.forget()
    for turn in range(3):
        session.prefill(prompt_of(turn, 90))
        token_by_token(session, prompt_of(turn, 60))
        assert len(states.snapshots) <= 6
        assert session.length - states.snapshots[-1].length <= SNAPSHOT_TOKENS
    assert [it.length for it in states.snapshots if it.is_turn] == [74, 224, 374]
    assert states.nbytes > 3 * states.snapshots[0].nbytes


@pytest.mark.parametrize("is_stripped", [False, True])
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("options", [{}, {"switch": "just_in_time"}, {"memory_budget": 1 << 20}])
def test_a_dialogue_reads_little_again(bundle, is_stripped, drafts, options):
    """Ten turns; where thinking is stripped, a prompt leaves the one before at its answer."""
    session = open_session(bundle, **options)
    random = np.random.default_rng(2)
    drafter = make_drafter(session, "auto")
    header = np.array([9, 10, 11, 12], np.uint32)
    history, again = prompt_of(0, 240), []
    for _ in range(10):
        question = random.integers(3, 128, random.integers(5, 60)).astype(np.uint32)
        prompt, stats = np.concatenate([history, question, header]), Stats()
        options = {"max_new_tokens": 20, "ignore_eos": True, "stats": stats, "reuse_prefix": True}
        if drafts:
            answer = tokens_of(generate(session, prompt, drafter=drafter, **options))
        else:
            answer = tokens_of(plain(session, prompt, **options))
        again.append(stats.read_again_tokens)
        kept = answer[12:] if is_stripped else answer
        history = np.concatenate([prompt[: -2 if is_stripped else None], kept]).astype(np.uint32)
        assert stats.reused_tokens + stats.read_again_tokens <= len(prompt)
    assert again[0] == 0 or again[0] <= MOST_READ_AGAIN
    assert max(again[1:]) <= MOST_READ_AGAIN
    assert f"{again[-1]:,} read again" in str(stats) or again[-1] == 0


def test_where_turns_end_is_kept_also_where_there_is_room_for_two(session, monkeypatch):
    states = session.cache.states
    monkeypatch.setattr(states, "_most_snapshots", 2)
    session.forget()
    session.prefill(prompt_of(0, 120))
    token_by_token(session, prompt_of(1, 150))
    assert [it.is_turn for it in states.snapshots] == [True, False]
    assert session.length - states.snapshots[-1].length <= SNAPSHOT_TOKENS


def test_a_graph_that_lacks_a_state_is_refused(bundle, tmp_path):
    bundle = open_session(bundle).bundle
    wrong = bundle.manifest.recurrent.states[0]
    object.__setattr__(wrong, "numbers", wrong.numbers + 16)
    with pytest.raises(Exception, match=r"does not fit its manifest: .*state"):
        OrtSession(CpuDevice(bundle))
