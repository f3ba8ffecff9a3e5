"""The cache on CPU: what is committed stays in its slots, and rows that are moved are the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordgen_rs.errors import OptionError
from coordgen_rs.runtime.caches.kv_cache import KvCache, row_bytes

NUM_SLOTS, HEAD_DIM = 1000, 8
ROW_BYTES = {"f32": 32, "f16": 16, "q8": 12}
FORMS = st.sampled_from(list(ROW_BYTES))
ACTIONS = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 300)), st.tuples(st.just("rewind"), st.floats(0, 1))
)


@given(st.lists(ACTIONS, max_size=12), FORMS)
def test_committed_tokens_stay_in_their_slots(actions, form):
    cache = KvCache([(2, HEAD_DIM)], NUM_SLOTS, form)
    expected: list[int] = []
    for number, (action, amount) in enumerate(actions):
        if action == "rewind":
            del expected[int(amount * len(expected)) :]
            cache.rewind(len(expected))
        elif cache.length + amount <= NUM_SLOTS:
            new = [(100 * number + row) % 251 for row in range(amount)]
            ((keys, values),) = cache.values
            for held in (keys.numpy(), values.numpy()):
                assert held.shape == (1, 2, NUM_SLOTS, ROW_BYTES[form])
            for array in cache._all:
                array[:, :, cache.length : cache.length + amount] = np.array(new)[:, np.newaxis]
            cache.commit(np.arange(amount, dtype=np.uint32))
            expected += new
    for held in cache.values[0]:
        found = held.numpy()[0, :, : len(expected)]
        assert (found == np.array(expected, np.uint8).reshape(-1, 1)).all()


@given(st.integers(0, 20), st.sets(st.integers(0, 9)), FORMS)
def test_rows_of_any_branch_are_moved_together(length, rows, form):
    heads = [(2, HEAD_DIM), (1, 3 * HEAD_DIM), (2, HEAD_DIM)]
    cache = KvCache(heads, 40, form)
    before = [
        np.random.default_rng(layer).integers(
            256, size=(2, 1, count, 40, row_bytes(form, size)), dtype=np.uint8
        )
        for layer, (count, size) in enumerate(heads)
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


def test_fewer_bits_take_less_memory_and_are_refused_where_they_would_not():
    sizes = {form: KvCache([(2, HEAD_DIM)] * 3, 40, form).nbytes for form in ROW_BYTES}
    assert sizes == {form: 3 * 2 * 2 * 40 * size for form, size in ROW_BYTES.items()}
    assert KvCache([(1, 5)], 1, "q8").nbytes < KvCache([(1, 5)], 1, "f16").nbytes
    for head_dim in (1, 4):
        with pytest.raises(OptionError, match=rf"'q8', but the model's heads have {head_dim} numb"):
            KvCache([(1, head_dim)], 1, "q8")


@pytest.mark.parametrize(
    ("weights", "form"),
    [("fp32", "f32"), ("int8", "f32"), ("int4", "f32"), ("fp32", "f16"), ("int8", "q8")],
)
def test_what_stands_in_other_slots_changes_no_bit(session_of, weights, form):
    session = session_of("embedded", weights, kv_cache=form)
    tokens = np.random.default_rng(1).integers(session.vocab_size, size=400).astype(np.uint32)
    for length in (20, 64, 390):
        for inputs in session.step_inputs:
            chain = tokens[length : length + min(inputs.rows, 8)]
            found = []
            for stale in (0, 0xFF):  # the latter is no number in any form
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
