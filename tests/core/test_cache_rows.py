"""Rows of a commit that are moved: what is refused leaves every cache as it was."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordgen_rs._core import copy_rows, move_rows
from coordgen_rs.errors import OptionError, ShapeError

SHAPE = (1, 2, 12, 3)


def caches(num=2):
    return [np.random.default_rng(n).integers(256, size=SHAPE, dtype=np.uint8) for n in range(num)]


def u32(*rows):
    return np.array(rows, np.uint32)


def assert_refused(message, call, arrays, *arguments):
    before = [np.array(array) for array in arrays]
    with pytest.raises(ShapeError, match=message):
        call(arrays, *arguments)
    for array, kept in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, kept)


def read_only(arrays):
    arrays[-1].flags.writeable = False
    return arrays


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: read_only(caches()), "a cache cannot be written"),
        (lambda: [*caches(1) * 2], "a cache cannot be written"),
        (lambda: [caches()[0].astype(np.float32)], "C-contiguous uint8"),
        (lambda: [np.asfortranarray(caches()[0])], "strided"),
        (lambda: [caches()[0][:, :, ::2]], "strided"),
        (lambda: [*caches(), caches()[0][:, :1].copy()], "shapes"),
        (lambda: [np.zeros((2, 2, 12, 3), np.uint8)], r"\(1, kv_heads, slots, row_bytes\)"),
        (lambda: [np.zeros((1, 2, 12, 0), np.uint8)], r"\(1, kv_heads, slots, row_bytes\)"),
        (lambda: [np.zeros((12, 3), np.uint8)], r"\(1, kv_heads, slots, row_bytes\)"),
        (lambda: [None], "not <class 'NoneType'>"),
    ],
)
def test_caches_that_cannot_be_moved_in_are_refused(make, message):
    assert_refused(message, move_rows, make(), u32(0, 2), 1)


@pytest.mark.parametrize(
    ("rows", "past_len", "message"),
    [
        (u32(0, 3, 2), 0, "row 2 cannot be committed behind row 3"),
        (u32(1, 1), 0, "row 1 cannot be committed behind row 1"),
        (u32(0, 8), 4, "4 committed tokens and 9 rows exceed 12"),
        (u32(2**32 - 1), 2**63, "exceed 12"),
        (np.array([0.0, 2.0]), 0, "rows must be integers"),
    ],
)
def test_rows_that_no_step_can_have_are_refused(rows, past_len, message):
    assert_refused(message, move_rows, caches(), rows, past_len)


def test_a_negative_length_is_refused():
    with pytest.raises(OptionError, match="past_len is -1"):
        move_rows(caches(), u32(1), -1)
    with pytest.raises(OptionError, match="num_rows"):
        copy_rows(caches(), caches(), -1)


def test_rows_are_moved_in_place():
    moved, before = caches(3), caches(3)
    move_rows(moved, u32(0, 2, 5), 4)
    for found, cache in zip(moved, before, strict=True):
        cache[:, :, 4:7] = cache[:, :, [4, 6, 9]]
        np.testing.assert_array_equal(found, cache)


@pytest.mark.parametrize("rows", [u32(), u32(0), u32(0, 1, 2)])
def test_rows_in_their_slots_touch_no_cache(rows):
    move_rows(read_only(caches()), rows, 9)


@given(st.integers(0, 12), st.integers(12, 15), st.booleans())
def test_first_rows_of_other_arrays_are_copied_and_nothing_else(num_rows, num_slots, is_view):
    copied, (heads, size) = caches(3), (SHAPE[1], SHAPE[3])
    sources = [np.full((1, heads, num_slots, size), 7 + n, np.uint8) for n in range(3)]
    copy_rows(copied, [it[:, :, :num_rows] for it in sources] if is_view else sources, num_rows)
    for found, before, source in zip(copied, caches(3), sources, strict=True):
        before[:, :, :num_rows] = source[:, :, :num_rows]
        np.testing.assert_array_equal(found, before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: (read_only(caches()), caches()), "a cache cannot be written"),
        (lambda: (caches(1) * 2, caches()), "a cache cannot be written"),
        (lambda: (caches(), caches(1)), "sources must have 2 rows"),
        (lambda: (caches(), [it[:, :, :1] for it in caches()]), "sources must have 2 rows"),
        (lambda: (caches(), [it[:, :1] for it in caches()]), "sources must have 2 rows"),
        (lambda: (caches(), [np.asfortranarray(it) for it in caches()]), "sources must have 2"),
        (lambda: ([it[:, :, ::2] for it in caches()], caches()), "sources must have 2 rows"),
        (lambda: ([it[:, :, :, :2] for it in caches()], caches()), "sources must have 2 rows"),
        (lambda: (caches(), [it.astype(np.int8) for it in caches()]), "uint8 arrays of shape"),
        (lambda: (caches(), [it[0] for it in caches()]), "uint8 arrays of shape"),
        (lambda: (caches(), None), "uint8 arrays of shape"),
    ],
)
def test_rows_that_cannot_be_copied_are_refused(make, message):
    arrays, sources = make()
    assert_refused(message, copy_rows, arrays, sources, 2)


@pytest.mark.parametrize(
    "strided", [lambda it: it[:, :, ::2], lambda it: np.broadcast_to(it[:, :, :1], SHAPE)]
)
def test_sources_may_be_strided(strided):
    copied, sources = caches(1), [strided(it) for it in caches(2)[1:]]
    copy_rows(copied, sources, 5)
    np.testing.assert_array_equal(copied[0][:, :, :5], sources[0][:, :, :5])
