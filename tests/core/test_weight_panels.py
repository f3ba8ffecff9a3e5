"""The order in which products read weights: nothing is lost, and what does not fit is named."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgen_rs._core import (
    OptionError,
    ShapeError,
    kernel_processor,
    weight_panels,
    weight_rows,
    weight_types,
)
from dequantized import blocks_of_panels

BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
OF_BLOCKS = "expected one of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL"
"""The first of all."""


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


@pytest.mark.parametrize("weight_type", ["IQ2_S", "q4_0", "", "Q4_0\0", "Q4_0,Q8_0"])
def test_unknown_types_are_named(weight_type):
    with pytest.raises(OptionError, match=f"weight_type is .*, {OF_BLOCKS}"):
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
    on_x86 = ("AVX-512 VNNI", "AVX-VNNI", "AVX2")
    on_arm64 = ("NEON I8MM", "NEON DotProd", "NEON")
    assert kernel_processor() in (*on_x86, *on_arm64, "portable")


def test_blocks_are_as_large_as_in_files():
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    for name, sizes in weight_types().items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == sizes


def test_rows_that_are_not_there_are_named():
    panels = weight_panels("Q4_K", np.zeros((20, 1, 144), np.uint8))
    numbers = np.array([0, 19, 20], np.uint32)
    assert not weight_rows("Q4_K", panels, 20, 256, numbers[:2]).any()
    assert weight_rows("Q4_K", panels, 20, 256, numbers[:0]).shape == (0, 256)
    with pytest.raises(OptionError, match="numbers holds 20, expected 0 to 19"):
        weight_rows("Q4_K", panels, 20, 256, numbers)
    for outputs, columns in [(20, 255), (20, 0), (0, 256), (33, 256), (1 << 40, 256), (20, 512)]:
        with pytest.raises(ShapeError, match="are no panels of Q4_K"):
            weight_rows("Q4_K", panels, outputs, columns, numbers[:1])
    with pytest.raises(ShapeError, match="are no panels of Q4_K"):
        weight_rows("Q4_K", panels[1:], 20, 256, numbers[:1])
