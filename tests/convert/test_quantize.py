"""Rounding of weights to 8 and to 4 bits: what is exact, and what is never exceeded."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordgen_rs.convert.quantize import BLOCK_SIZE, quantize_rows, search_grids
from coordgen_rs.errors import CheckpointError
from dequantized import dequantized, scales_of

SIZES = [0.0, 1e-45, 1e-38, 1e-6, 1e-4, 1.0, 4e4]
SMALLEST_HALF = 2.0**-24


def block_of(draw_from, seed, size):
    rng = np.random.default_rng(seed)
    return (rng.choice(draw_from, BLOCK_SIZE) * size).astype(np.float32)


def rounded(rows, bits):
    """Rows as blocks of so many bits have them."""
    return dequantized(quantize_rows(rows, bits, "w"), bits)


def squared_error(block, got):
    return float(np.square((got - block).astype(np.float64)).sum())


def symmetric_4(block):
    """Symmetric 4 bits, as in Q4_0: the largest magnitude is -8 steps."""
    step = np.float64(max(block, key=abs)) / -8
    return np.clip(np.rint(block / step), -8, 7) * step if step else block


def range_4(block):
    """The range with zero in 15 steps."""
    low, high = min(float(block.min()), 0.0), max(float(block.max()), 0.0)
    step = (high - low) / 15
    if not step:
        return block
    zero = np.rint(-low / step)
    return (np.clip(np.rint(block / step) + zero, 0, 15) - zero) * step


EVEN = list(np.linspace(-2, 1, 40))


@settings(max_examples=100)
@given(
    st.sampled_from([[-1, 1], [0, 1], [-3, -2], [0.3], [0], EVEN]),
    st.integers(0, 1 << 30),
    st.sampled_from([2e-3, 0.1, 1.0, 1e3, 2e4]),
)
@example(EVEN, 247, 2e-3)
def test_the_error_of_4_bits_is_never_above_symmetric_ones_or_the_ranges(values, seed, size):
    block = block_of(values, seed, size)
    error = squared_error(block, rounded(block[None], 4)[0])
    most = min(squared_error(block, symmetric_4(block)), squared_error(block, range_4(block)))
    # Steps and minima are float16: each is off by a share of 2^-11, of numbers that may be a little
    # larger than all weights.
    size = len(block) * float(np.ptp([*block, 0])) ** 2
    assert np.sqrt(error) <= np.sqrt(most) + 2.0**-10 * np.sqrt(size)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 15), st.integers(0, 1 << 30), st.floats(2.0**-14, 2.0**12, width=16))
def test_values_that_4_bits_can_hold_stay_exactly_what_they_are(zero, seed, step):
    numbers = np.random.default_rng(seed).integers(0, 16, BLOCK_SIZE)
    numbers[:2] = 0, 15  # the block uses its whole range
    block = (numbers - zero).astype(np.float32) * np.float32(step)
    # The minimum has as many digits as float16: half of the last may be lost.
    most_off = np.spacing(np.float16(zero * step)) / 2 if zero else 0
    np.testing.assert_allclose(rounded(block[None], 4)[0], block, rtol=1e-6, atol=most_off)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 30), st.floats(2.0**-14, 2.0**12, width=16))
def test_blocks_of_q4_0_stay_bit_for_bit_what_they_are(seed, step):
    numbers = np.random.default_rng(seed).integers(-8, 8, BLOCK_SIZE)
    numbers[0] = -8  # so does llama.cpp choose the step
    block = numbers.astype(np.float32) * np.float32(step)
    assert np.array_equal(rounded(block[None], 4)[0], block)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", SIZES)
def test_constant_blocks_and_zeros_and_denormals_are_finite_and_near(bits, size):
    mixed = np.where(np.arange(BLOCK_SIZE) % 2, size, -size)
    rows = np.stack([np.full(BLOCK_SIZE, size), np.full(BLOCK_SIZE, -size), mixed])
    rows = rows.astype(np.float32)
    got = rounded(rows, bits)
    assert np.isfinite(got).all()
    # What is below float16's smallest step is lost, once for each step up to the weight.
    np.testing.assert_allclose(got, rows, rtol=0.07, atol=(1 << bits) * SMALLEST_HALF / 2)


@pytest.mark.parametrize(
    ("bits", "largest"), [(4, 6e4), (8, 65504 * 128)], ids=["4 bits", "8 bits"]
)
def test_the_largest_weights_are_held_and_larger_ones_refused_by_name(bits, largest):
    rows = np.array([[-1, 0.5, 0, 0] * 8], np.float32) * np.float32(largest)
    np.testing.assert_allclose(rounded(rows, bits), rows, rtol=0.07)
    for weights in (rows * 2, rows * 1e30):
        with pytest.raises(CheckpointError, match=f"^q holds weights too large for {bits} bits"):
            quantize_rows(weights.astype(np.float32), bits, "q")


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_below_the_smallest_step_are_zero(bits):
    rows = np.full((2, BLOCK_SIZE), SMALLEST_HALF / 4, np.float32)
    assert not rounded(rows, bits).any()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([4, 8]),
    st.integers(1, 5),
    st.integers(1, 100),
    st.integers(0, 1 << 30),
    st.sampled_from([0.0, 1e-6, 1.0, 5e3]),
)
def test_quantised_weights_are_near_the_weights_and_padding_is_zero(
    bits, rows, columns, seed, size
):
    matrix = np.random.default_rng(seed).standard_normal((rows, columns), np.float32)
    matrix *= np.float32(size)
    quantized = quantize_rows(matrix, bits, "w")
    weights = dequantized(quantized, bits)
    step = np.abs(scales_of(quantized)).repeat(BLOCK_SIZE, 1)
    # Rounding a step to float16 shifts the last of 128 by a sixteenth of it. The ends of a range
    # that was shrunk are off by more than half a step.
    most_off = step * (2.5 if bits == 4 else 1.07) + (1 << bits) * SMALLEST_HALF / 2
    assert np.all(np.abs(weights[:, :columns] - matrix) <= most_off[:, :columns])
    # A minimum of 4 bits is rounded, and so is where zero lies.
    padding = np.abs(weights[:, columns:])
    assert np.all(
        padding <= (0 if bits == 8 else step[:, columns:] * 15 * 2.0**-11 + SMALLEST_HALF)
    )


def test_importance_moves_the_error_to_the_weights_that_matter_less():
    rng = np.random.default_rng(3)
    blocks = rng.standard_normal((200, BLOCK_SIZE)).astype(np.float32)
    importance = np.where(np.arange(BLOCK_SIZE) < 8, 100, 1).astype(np.float32)
    plain, weighted = search_grids(blocks), search_grids(blocks, importance)
    errors = [
        (np.square(grids.weights(grids.values(blocks)) - blocks) * importance).sum()
        for grids in (plain, weighted)
    ]
    assert errors[1] < errors[0]
