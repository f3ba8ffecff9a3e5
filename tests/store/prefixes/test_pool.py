"""Prefixes that are saved and put back: bit-equal, by the longest, the oldest out first."""

from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import ROOT
from coordgen_rs import Model, Stats, Tokenizer, generate, plain
from coordgen_rs.bundle.qnn import Encoding
from coordgen_rs.errors import OptionError, ShapeError
from coordgen_rs.runtime.qnn.kv_cache import IntegerCache
from coordgen_rs.store.prefixes.pool import LEAST_TOKENS, PrefixPool, reused
from coordgen_rs.store.prefixes.prefix import SavedPrefix

TEXTS = [
    (ROOT / "models" / "prompts" / f"{task}.txt").read_text() for task in ("rag", "ui", "reply")
]
SLOT_BYTES = 8


class FakeSession:
    """Holds tokens; the key of a token is its number and its place."""

    def __init__(self):
        self.held = np.zeros(0, np.uint32)

    @property
    def reusable_ids(self):
        return self.held

    def reachable(self, length):
        return length

    def saved_prefix(self):
        keys = (self.held * 100 + np.arange(len(self.held))).astype(np.float32)
        keys = keys.reshape(1, 1, -1, 1)
        return SavedPrefix(self.held.copy(), [(keys, keys.copy())])

    def restore_prefix(self, prefix, num_tokens):
        self.held = prefix.token_ids[:num_tokens].copy()

    def read(self, prompt, prefixes):
        kept = reused(self, prompt, prefixes).num_tokens
        assert np.array_equal(self.held[:kept], prompt[:kept])
        self.held = prompt
        return kept


def ids(*numbers):
    return np.array(numbers, np.uint32)


def run_of(number, length=LEAST_TOKENS + 4):
    return np.full(length, number, np.uint32)


def test_a_dialogue_that_comes_back_is_put_back():
    session, pool = FakeSession(), PrefixPool(1 << 20)
    first, second = run_of(1), run_of(2)
    assert session.read(first, pool) == 0
    assert session.read(second, pool) == 0
    assert session.read(np.append(first, ids(5, 6)), pool) == len(first)
    assert session.read(np.append(second, ids(7)), pool) == len(second)
    assert len(pool) == 2  # each is kept once, in its longest form
    assert pool.nbytes == SLOT_BYTES * (len(first) + 2 + len(second))


def test_what_is_used_least_recently_goes_first():
    session, pool = FakeSession(), PrefixPool(SLOT_BYTES * 2 * (LEAST_TOKENS + 4))
    prompts = [run_of(number) for number in (1, 2, 3)]
    for number in (0, 1, 2, 0, 2, 1):
        session.read(np.append(prompts[number], ids(9)), None)
        session.held = prompts[number]
        session.read(run_of(50 + number, 2), pool)
    assert pool.nbytes <= SLOT_BYTES * 2 * (LEAST_TOKENS + 4)
    kept = [reused(session, np.append(prompt, ids(9)), pool).num_tokens for prompt in prompts]
    assert kept == [0, len(prompts[1]), len(prompts[2])]


def test_short_and_known_prefixes_are_not_saved():
    session, pool = FakeSession(), PrefixPool(1 << 20)
    for prompt in (run_of(1, LEAST_TOKENS - 1), run_of(2, 3), run_of(3)):
        session.read(prompt, pool)
    assert len(pool) == 0
    session.read(run_of(4), pool)
    session.read(np.append(run_of(3), ids(1)), pool)
    session.held = run_of(3)[:-1]  # as after an answer that was given up
    session.read(run_of(4, 3), pool)
    assert len(pool) == 2


def test_a_prefix_that_is_too_large_is_not_kept_and_throws_none_out():
    first = run_of(1)
    session, pool = FakeSession(), PrefixPool(SLOT_BYTES * len(first))
    session.read(first, pool)
    session.read(run_of(2, len(first) + 1), pool)
    session.read(run_of(3), pool)
    assert (len(pool), pool.nbytes) == (1, SLOT_BYTES * len(first))
    assert session.read(np.append(first, ids(4)), pool) == len(first)
    with pytest.raises(OptionError):
        PrefixPool(-1)


words = st.sampled_from([[1] * LEAST_TOKENS, [2] * LEAST_TOKENS, [3], [4, 5]])
prompts = st.lists(words, min_size=1, max_size=4).map(lambda parts: ids(*chain(*parts)))


@given(st.lists(prompts, max_size=12), st.integers(0, 200))
def test_never_less_is_reused_than_without_a_pool(asked, num_slots):
    pooled, alone, pool = FakeSession(), FakeSession(), PrefixPool(SLOT_BYTES * num_slots)
    for prompt in asked:
        held = alone.read(prompt, None)
        assert pooled.read(prompt, pool) >= held
        assert pool.nbytes <= SLOT_BYTES * num_slots


@pytest.mark.parametrize("weights", ["fp32", "int4"])
def test_keys_and_values_come_back_bit_by_bit(session_of, weights):
    session = session_of("embedded", weights)
    tokenizer = Tokenizer.of(session.bundle)
    prompt, other = (tokenizer.encode(text) for text in TEXTS[:2])
    expected = [step.token_ids for step in plain(session, prompt, max_new_tokens=12)]
    saved = session.saved_prefix()
    assert len(saved.token_ids) == len(prompt) + 11
    list(plain(session, other, max_new_tokens=3))
    for length in (len(saved.token_ids), len(prompt), 40, 0):
        session.restore_prefix(saved, length)
        assert session.length == length
        again = session.saved_prefix()
        assert np.array_equal(again.token_ids, saved.token_ids[:length])
        for pair, was in zip(again.layers, saved.layers, strict=True):
            for array, before in zip(pair, was, strict=True):
                assert np.array_equal(array, before[:, :, :length])
        stats = Stats()
        answer = generate(session, prompt, max_new_tokens=12, reuse_prefix=True, stats=stats)
        told = [token for step in answer for token in step.token_ids]
        assert told == [*chain(*expected)]
        assert stats.reused_tokens == min(length, len(prompt) - 1)
    with pytest.raises(ShapeError):
        session.restore_prefix(saved, len(saved.token_ids) + 1)
    assert session.length == len(prompt) + 11


def test_dialogues_that_take_turns_are_read_once(bundle_of):
    bundle = bundle_of("embedded", "fp32")
    asked = {text: [text] for text in TEXTS}
    with Model.open(bundle, prefix_memory=64 << 20) as pooled, Model.open(bundle) as alone:
        for turn in range(3):
            for text in TEXTS:
                prompt = "".join(asked[text])
                options = {"max_new_tokens": 10, "temperature": 0.7 * turn, "seed": turn}
                answer = pooled.generate(prompt, **options)
                assert answer.token_ids == alone.generate(prompt, **options).token_ids
                if turn:
                    assert answer.stats.reused_tokens > 0.8 * answer.stats.prompt_tokens
                asked[text] += [answer.text, "\nAnd?\n"]


def test_integers_come_back_too():
    encoding = Encoding("uint8", 0.1, 128)
    layer = SimpleNamespace(key=encoding, value=encoding, key_new=encoding, value_new=encoding)
    cache = IntegerCache([layer], 2, 4, {1: 8})
    cache.past(1)[0][0][:] = np.arange(64, dtype=np.uint8).reshape(1, 2, 8, 4)
    cache.length = 5
    copies, before = cache.copied(5), cache.past(1)[0][0].copy()
    cache.past(1)[0][0][:] = 0
    cache.put(copies, 3)
    assert cache.length == 3
    assert np.array_equal(cache.past(1)[0][0][:, :, :3], before[:, :, :3])
