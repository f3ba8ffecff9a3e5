"""The cache on CPU: what is committed stays in its slots, and rows that are moved are the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordgen_rs.target.kv_cache import KvCache

NUM_SLOTS = 1000
ACTIONS = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 300)), st.tuples(st.just("rewind"), st.floats(0, 1))
)


@given(st.lists(ACTIONS, max_size=12))
def test_committed_tokens_stay_in_their_slots(actions):
    cache = KvCache(num_layers=1, num_kv_heads=2, num_slots=NUM_SLOTS, head_dim=3)
    expected: list[float] = []
    for number, (action, amount) in enumerate(actions):
        if action == "rewind":
            del expected[int(amount * len(expected)) :]
            cache.rewind(len(expected))
        elif cache.length + amount <= NUM_SLOTS:
            new = [float(100 * number + row) for row in range(amount)]
            ((keys, values),) = cache.values
            for held in (keys.numpy(), values.numpy()):
                assert held.shape == (1, 2, NUM_SLOTS, 3)
            for array in cache._all:
                array[:, :, cache.length : cache.length + amount] = np.array(new)[:, np.newaxis]
            cache.commit(np.arange(amount, dtype=np.uint32))
            expected += new
    for held in cache.values[0]:
        found = held.numpy()[0, :, : len(expected)]
        assert (found == np.array(expected, np.float32).reshape(-1, 1)).all()


@given(st.integers(0, 20), st.sets(st.integers(0, 9)))
def test_rows_of_any_branch_are_moved_together(length, rows):
    cache = KvCache(num_layers=2, num_kv_heads=2, num_slots=40, head_dim=3)
    before = [
        np.random.default_rng(layer).standard_normal((2, 1, 2, 40, 3), np.float32)
        for layer in range(2)
    ]
    for pair, numbers in zip(cache.values, before, strict=True):
        for value, array in zip(pair, numbers, strict=True):
            value.update_inplace(array)
    cache.length = length
    kept = [*range(length), *(length + row for row in sorted(rows))]
    cache.commit(np.array(sorted(rows), np.uint32))
    assert cache.length == len(kept)
    for pair, numbers in zip(cache.copied(cache.length), before, strict=True):
        for found, array in zip(pair, numbers, strict=True):
            np.testing.assert_array_equal(found, array[:, :, kept])


@pytest.mark.parametrize("weights", ["fp32", "int8", "int4"])
def test_what_stands_in_other_slots_changes_no_bit(session_of, weights):
    session = session_of("embedded", weights)
    tokens = np.random.default_rng(1).integers(session.vocab_size, size=400).astype(np.uint32)
    for length in (20, 63, 64, 127, 390):
        for inputs in session.step_inputs:
            chain = tokens[length : length + min(inputs.rows, 8)]
            found = []
            for stale in (0.0, np.nan):
                session.rewind(0)
                for array in session.cache._all:
                    array[:] = stale
                session.prefill(tokens[:length])
                inputs.fill_chain(chain, session.length)
                found.append(session.step(inputs)[: len(chain)].copy())
            assert np.isfinite(found[0]).all()
            assert np.array_equal(*found)
    for array in session.cache._all:
        array[:] = 0
    session.rewind(0)
