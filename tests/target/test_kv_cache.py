"""The cache on CPU: what it holds outlives every new layout, and no layout changes a bit."""

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
            cache.fit(cache.length + amount)
            new = [float(100 * number + row) for row in range(amount)]
            ((keys, values),) = cache.values
            for held in (keys.numpy(), values.numpy()):
                assert held.shape == (1, 2, cache.num_slots, 3)
            for array in (array for pair in cache._arrays for array in pair):
                array[:, :, cache.length : cache.length + amount] = np.array(new)[:, np.newaxis]
            cache.commit(np.arange(amount, dtype=np.uint32))
            expected += new
    for held in cache.values[0]:
        found = held.numpy()[0, :, : len(expected)]
        assert (found == np.array(expected, np.float32).reshape(-1, 1)).all()
    assert len(expected) <= cache.num_slots <= NUM_SLOTS


def test_slots_are_few_while_a_request_is_short():
    cache = KvCache(num_layers=1, num_kv_heads=1, num_slots=NUM_SLOTS, head_dim=2)
    cache.rewind(0)
    assert cache.num_slots == 128
    cache.fit(129)
    assert cache.num_slots == 256
    cache.fit(NUM_SLOTS)
    assert cache.num_slots == NUM_SLOTS
    cache.rewind(0)
    assert cache.num_slots == 128


def test_all_slots_are_given_where_fewer_are_not_exact():
    cache = KvCache(num_layers=1, num_kv_heads=1, num_slots=NUM_SLOTS, head_dim=2)
    cache.rewind(0)
    with cache.attending_to_all():
        cache.rewind(0)
        assert cache.num_slots == NUM_SLOTS
    cache.rewind(0)
    assert cache.num_slots == 128
    cache.attend_to_all()
    cache.rewind(0)
    assert cache.num_slots == NUM_SLOTS


@pytest.mark.parametrize("weights", ["fp32", "int8", "int4", "w8a8"])
def test_the_number_of_slots_changes_no_bit(session_of, weights):
    session = session_of("embedded", weights)
    tokens = np.random.default_rng(1).integers(session.vocab_size, size=400).astype(np.uint32)
    for length in (20, 127, 128, 250, 390):
        session.rewind(0)
        session.prefill(tokens[:length])
        for inputs in session.step_inputs:
            chain = tokens[length : length + min(inputs.rows, 8)]
            inputs.fill_chain(chain, session.length)
            few = session.step(inputs)[: len(chain)].copy()
            slots = session.cache.num_slots
            with session.cache.attending_to_all():
                many = session.step(inputs)[: len(chain)].copy()
            assert session.cache.num_slots > slots
            session.rewind(length)
            assert np.array_equal(few, many)
