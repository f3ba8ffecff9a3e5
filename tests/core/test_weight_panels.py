"""The order in which products read weights: nothing is lost, and what does not fit is named."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgen_rs._core import OptionError, ShapeError, kernel_processor, weight_panels
from dequantized import blocks_of_panels

BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


def any_blocks(weight_type, outputs, blocks, seed=0):
    shape = (outputs, blocks, BLOCK_BYTES[weight_type])
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([*BLOCK_BYTES]), st.integers(1, 40), st.integers(1, 5), st.integers(0, 1 << 30)
)
def test_panels_hold_each_byte_and_what_fills_them_up_counts_nothing(
    weight_type, outputs, blocks, seed
):
    rows = any_blocks(weight_type, outputs, blocks, seed)
    panels = weight_panels(weight_type, rows)
    assert (panels.dtype, panels.ndim) == (np.uint8, 1)
    assert len(panels) == -(-outputs // 16) * 16 * blocks * BLOCK_BYTES[weight_type]
    assert np.array_equal(blocks_of_panels(weight_type, panels, outputs, blocks * 32), rows)


@pytest.mark.parametrize("weight_type", ["Q4_K", "q4_0", "", "Q4_0\0", "Q4_0,Q8_0"])
def test_unknown_types_are_named(weight_type):
    with pytest.raises(OptionError, match=r"weight_type is .*, expected one of Q4_0, Q4_1, Q8_0"):
        weight_panels(weight_type, any_blocks("Q4_0", 2, 2))


@pytest.mark.parametrize("weight_type", BLOCK_BYTES)
@pytest.mark.parametrize("shape", [(0, 2, None), (2, 0, None), (2, 2, 0), (2, 2, 19), (0, 0, 0)])
def test_shapes_that_are_no_matrix_of_the_type_are_named(weight_type, shape):
    shape = tuple(BLOCK_BYTES[weight_type] if size is None else size for size in shape)
    with pytest.raises(ShapeError, match=f"rows of {weight_type} have shape"):
        weight_panels(weight_type, np.zeros(shape, np.uint8))


@pytest.mark.parametrize(
    "rows",
    [
        any_blocks("Q4_0", 2, 2).astype(np.int8),
        any_blocks("Q4_0", 2, 2).astype(np.float32),
        any_blocks("Q4_0", 2, 2)[0],
        any_blocks("Q4_0", 2, 2)[None],
        any_blocks("Q4_0", 4, 2)[::2],
        any_blocks("Q4_0", 2, 4)[:, ::2],
        any_blocks("Q4_0", 2, 36)[..., ::2],
        np.asfortranarray(any_blocks("Q4_0", 2, 2)),
        np.uint8(3),
    ],
    ids=lambda rows: f"{rows.dtype}-{rows.shape}",
)
def test_other_arrays_are_named(rows):
    with pytest.raises(ShapeError, match="rows"):
        weight_panels("Q4_0", rows)


@pytest.mark.parametrize("rows", [None, [[[1, 2]]], b"bytes"])
def test_what_is_no_array_is_named(rows):
    with pytest.raises((ShapeError, TypeError), match="rows"):
        weight_panels("Q4_0", rows)


def test_the_processor_of_the_kernels_is_one_of_those_that_there_are():
    assert kernel_processor() in ("AVX-512 VNNI", "AVX2", "portable")
