"""Models with recurrent layers: drafts change nothing, and every way back leads to the same states.

A state cannot be cut as a cache can, so whatever was drafted, committed, rewound, cancelled or
failed before, the next answer must be that of a session which has done nothing else.
"""

import numpy as np
import pytest

from answers import tokens_of
from coordgen_rs import (
    Model,
    OrtSession,
    PrefixPool,
    Stats,
    Tokenizer,
    generate,
    make_drafter,
    open_session,
    plain,
)
from coordgen_rs.errors import ShapeError
from coordgen_rs.runtime.caches.kv_cache import KvCache
from coordgen_rs.runtime.caches.states import SNAPSHOT_TOKENS
from coordgen_rs.runtime.cpu.device import CpuDevice
from hybrids import CONFIGS, write_hybrid
from lossless import (
    ALL_SOURCES,
    COMMITS,
    Bundles,
    check_adversarial_drafts,
    check_drafts,
    check_ends,
    check_sampled,
    check_streamed,
    prompt_of,
)
from scripted import SCRIPTS

MOST_READ_AGAIN = 64
WEIGHTS = ("fp32", "int8")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrids")
    return Bundles(folder, lambda path, family: write_hybrid(path, family, seed=3))


@pytest.fixture(scope="module", params=CONFIGS)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def session(bundles, family):
    return open_session(bundles(family))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("commit", COMMITS)
def test_drafts_change_nothing(bundles, family, weights, commit):
    check_drafts(open_session(bundles(family, weights)), commit, 4)


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_adversarial_drafts_change_nothing(session, script, commit):
    check_adversarial_drafts(session, script, commit)


def test_an_answer_ends_where_plain_decoding_ends_it(session, monkeypatch):
    check_ends(session, SCRIPTS, monkeypatch)


def test_sampled_answers_and_those_under_a_grammar_are_the_same(session):
    check_sampled(session)


def test_blocks_that_are_streamed_say_the_same(bundles, family):
    check_streamed(bundles(family))


def fresh_logits(session, tokens):
    """Logits behind all of the tokens, of a session that forgets all it held before."""
    session.forget()
    return logits_behind(session, tokens)


def logits_behind(session, tokens):
    session.prefill(tokens[session.length : -1])
    inputs = session.step_inputs[0]
    inputs.fill_chain(tokens[-1:], session.length)
    return session.step(inputs)[0].copy()


class Failing:
    """Makes the nth run of a block from now on fail."""

    def __init__(self, session, monkeypatch):
        self._run, self._left = session.device.run, None
        monkeypatch.setattr(session.device, "run", self._counted)

    def within(self, runs):
        self._left = runs

    def _counted(self, *arguments):
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self._left = None
                raise OSError("gone")
        self._run(*arguments)


def test_random_rewinds_cancels_and_failures_leave_what_a_fresh_session_has(
    bundles, family, session, monkeypatch
):
    other = open_session(bundles(family))
    pool, random = PrefixPool(8 << 20), np.random.default_rng(7)
    failing = Failing(session, monkeypatch)
    drafters = [make_drafter(session, draft) for draft in ("auto", "sam", ALL_SOURCES)]
    prompts = [prompt_of(seed, 120) for seed in range(4)]
    saved, failures = None, 0
    for _ in range(200):
        what = random.integers(6)
        held = session.reusable_ids
        try:
            if what in (0, 1):  # a request, given up half-way, or one of whose runs fails
                prompt = prompts[random.integers(len(prompts))][: random.integers(2, 121)]
                drafter = drafters[random.integers(len(drafters))]
                steps = generate(
                    session, prompt, drafter=drafter, reuse_prefix=True, prefixes=pool,
                    max_new_tokens=int(random.integers(1, 40)), ignore_eos=True,
                )  # fmt: skip
                if what == 1:
                    failing.within(int(random.integers(40)))
                for _ in range(random.integers(1, 20)):
                    next(steps, None)
                steps.close()
            elif what == 2:
                session.rewind(int(random.integers(session.length + 1)))
            elif what == 3:  # a prompt that is read in parts, and given up between them
                tokens = random.integers(3, 128, random.integers(1, 400)).astype(np.uint32)
                tokens = tokens[: session.capacity - session.length - 60]
                failing.within(int(random.integers(1, 8)))
                session.prefill(tokens)
            elif what == 4:
                saved = session.saved_prefix()
            elif saved is not None:
                session.restore_prefix(saved, int(random.integers(len(saved.token_ids) + 1)))
        except OSError:
            failures += 1
        failing.within(1 << 30)
        if what == 2:
            assert session.reusable_ids.tolist() == held[: session.length].tolist()
        tokens = np.append(session.reusable_ids, random.integers(3, 128)).astype(np.uint32)
        tokens = tokens[: session.capacity - 40]
        if len(tokens) <= session.length:
            session.rewind(len(tokens) - 1)
        np.testing.assert_array_equal(logits_behind(session, tokens), fresh_logits(other, tokens))
    assert failures > 20


def stepped(session, tokens, parents):
    """A step of a tree behind 40 tokens."""
    session.forget()
    session.prefill(prompt_of(3, 120)[:40])
    inputs = next(it for it in session.step_inputs if it.rows >= len(tokens))
    inputs.fill(np.array(tokens, np.uint32), np.array(parents, np.uint32), 40)
    session.step(inputs)


def assert_fresh(bundles, family, session):
    tokens = np.append(session.reusable_ids, 77).astype(np.uint32)
    expected = fresh_logits(open_session(bundles(family)), tokens)
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
def test_commits_in_parts_and_rewinds_into_a_step(bundles, family, session, parts, length, said):
    stepped(session, [5, 6, 7, 8, 9, 10], [0, 0, 1, 2, 3, 4])
    for rows in parts:
        session.commit(np.array(rows, np.uint32))
    session.rewind(length)
    assert session.reusable_ids[40:].tolist() == said
    assert_fresh(bundles, family, session)


def test_rows_are_not_committed_behind_a_rewind(session):
    """Which of them fit to the states is not known there."""
    for commits, length in (([[0, 2, 3]], 41), ([[0, 1]], 40), ([], 24)):
        stepped(session, [5, 6, 7, 8], [0, 0, 0, 2])
        for rows in commits:
            session.commit(np.array(rows, np.uint32))
        session.rewind(length)
        with pytest.raises(ShapeError):
            session.commit(np.zeros(1, np.uint32))


def test_a_step_is_not_committed_behind_a_prompt_that_failed(bundles, family, session):
    stepped(session, [5, 6, 7, 8], [0, 0, 1, 2])

    def fail(logits):
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        session.prefill(prompt_of(4)[:20], on_logits=fail)
    with pytest.raises(ShapeError):
        session.commit(np.zeros(1, np.uint32))
    assert session.length == 40
    assert_fresh(bundles, family, session)


def test_a_prefix_that_was_put_back_leaves_no_snapshot_of_other_tokens(bundles, family, session):
    session.forget()
    session.prefill(prompt_of(1, 300))
    saved = session.saved_prefix()
    assert [it.length for it in saved.states][-1] == 300
    session.restore_prefix(saved, 100)
    session.prefill(prompt_of(2, 300))
    session.rewind(300)
    assert session.reusable_ids[100:].tolist() == prompt_of(2, 300)[:200].tolist()
    assert_fresh(bundles, family, session)


@pytest.mark.parametrize("what", ["put", "rewind", "commit"])
def test_interrupts_between_states_and_keys_leave_no_stale_snapshot(
    bundles, family, session, monkeypatch, what
):
    session.forget()
    session.prefill(prompt_of(1, 300))
    saved = session.saved_prefix()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if what == "put":
            patch.setattr(KvCache, "put", interrupted)
            calls = (lambda: session.restore_prefix(saved, 300),)
        elif what == "rewind":
            patch.setattr(session.cache.states, "_restore", interrupted)
            calls = (lambda: session.rewind(150),)
        else:
            patch.setattr(KvCache, "commit", interrupted)
            calls = (lambda: session.prefill(prompt_of(2, 90)),)
        for call in calls:
            with pytest.raises(KeyboardInterrupt):
                call()
    session.prefill(prompt_of(5, 330))
    session.rewind(min(session.length, 320))
    assert_fresh(bundles, family, session)


def test_an_interrupted_way_back_is_mended_by_the_next(session, monkeypatch):
    states, tokens = session.cache.states, prompt_of(1, 300)
    expected = fresh_logits(session, tokens[:200])
    session.forget()
    session.prefill(tokens)

    def interrupted(*_):
        raise KeyboardInterrupt

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
        for token in prompt_of(turn, 60):
            inputs = session.step_inputs[0]
            inputs.fill_chain(np.array([token], np.uint32), session.length)
            session.step(inputs)
            session.commit(np.zeros(1, np.uint32))
        assert len(states.snapshots) <= 6
        assert session.length - states.snapshots[-1].length <= SNAPSHOT_TOKENS
    assert [it.length for it in states.snapshots if it.is_turn] == [74, 224, 374]
    assert states.nbytes > 3 * states.snapshots[0].nbytes


@pytest.mark.parametrize("is_stripped", [False, True])
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("options", [{}, {"switch": "just_in_time"}, {"memory_budget": 1 << 20}])
def test_a_dialogue_reads_little_again(bundles, family, is_stripped, drafts, options):
    """Ten turns; where thinking is stripped, a prompt leaves the one before at its answer."""
    session = open_session(bundles(family), **options)
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
    for token in prompt_of(1, 150):
        inputs = session.step_inputs[0]
        inputs.fill_chain(np.array([token], np.uint32), session.length)
        session.step(inputs)
        session.commit(np.zeros(1, np.uint32))
    assert [it.is_turn for it in states.snapshots] == [True, False]
    assert session.length - states.snapshots[-1].length <= SNAPSHOT_TOKENS


def test_models_open_and_answer_in_turns(bundles, family):
    with Model.open(bundles(family), prefix_memory=64 << 20) as model:
        prompts = [Tokenizer.of(model._session.bundle).decode(prompt_of(n, 150)) for n in (1, 2)]
        expected = [model.generate(prompt, max_new_tokens=12).text for prompt in prompts]
        again = [model.generate(prompt, max_new_tokens=12) for prompt in prompts * 2]
        assert [answer.text for answer in again] == expected * 2
        assert min(answer.stats.reused_tokens for answer in again) > 0
        other = model.generate(prompts[0], max_new_tokens=12, namespace="other")
        assert (other.text, other.stats.reused_tokens) == (expected[0], 0)


def test_a_graph_that_lacks_a_state_is_refused(bundles, family, tmp_path):
    bundle = open_session(bundles(family)).bundle
    wrong = bundle.manifest.recurrent.states[0]
    object.__setattr__(wrong, "numbers", wrong.numbers + 16)
    with pytest.raises(Exception, match=r"does not fit its manifest: .*state"):
        OrtSession(CpuDevice(bundle))
