"""Rounding of weights to 8 and to 4 bits: what is exact, and what is never exceeded."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordgen_rs.tools.export.cpu.int4 import search_grids
from coordgen_rs.tools.export.cpu.quantize import BLOCK_SIZE, quantize_rows
from dequantized import dequantized

LARGEST = float(np.finfo(np.float32).max)
SIZES = [0.0, 1e-45, 1e-38, 1e-6, 1.0, 1e6, LARGEST / 8]


def block_of(draw_from, seed, size):
    rng = np.random.default_rng(seed)
    return (rng.choice(draw_from, BLOCK_SIZE) * size).astype(np.float32)


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
    st.sampled_from([1e-30, 1e-6, 1.0, 1e6, 1e30]),
)
@example(EVEN, 247, 1e-6)
def test_the_error_of_4_bits_is_never_above_symmetric_ones_or_the_ranges(values, seed, size):
    block = block_of(values, seed, size)
    error = squared_error(block, dequantized(quantize_rows(block[None], 4))[0])
    most = min(squared_error(block, symmetric_4(block)), squared_error(block, range_4(block)))
    # Steps, values and the errors that are compared are float32: each is off by a share of 1e-7.
    size = float(np.square(block.astype(np.float64)).sum())
    assert error <= most * (1 + 1e-5) + 1e-6 * np.sqrt(most * size) + 1e-13 * size


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 15), st.integers(0, 1 << 30), st.floats(2.0**-100, 2.0**100, width=32))
def test_values_that_4_bits_can_hold_stay_exactly_what_they_are(zero, seed, step):
    numbers = np.random.default_rng(seed).integers(0, 16, BLOCK_SIZE)
    numbers[:2] = 0, 15  # the block uses its whole range
    block = (numbers - zero).astype(np.float32) * np.float32(step)
    np.testing.assert_allclose(dequantized(quantize_rows(block[None], 4))[0], block, rtol=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 30), st.floats(2.0**-14, 2.0**14, width=16))
def test_blocks_of_q4_0_stay_bit_for_bit_what_they_are(seed, step):
    numbers = np.random.default_rng(seed).integers(-8, 8, BLOCK_SIZE)
    numbers[0] = -8  # so does llama.cpp choose the step
    block = numbers.astype(np.float32) * np.float32(step)
    assert np.array_equal(dequantized(quantize_rows(block[None], 4))[0], block)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", SIZES)
def test_constant_blocks_and_zeros_and_denormals_are_finite_and_near(bits, size):
    mixed = np.where(np.arange(BLOCK_SIZE) % 2, size, -size)
    rows = np.stack([np.full(BLOCK_SIZE, size), np.full(BLOCK_SIZE, -size), mixed])
    rows = rows.astype(np.float32)
    got = dequantized(quantize_rows(rows, bits))
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, rows, rtol=0.07, atol=2e-38)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([4, 8]),
    st.integers(1, 5),
    st.integers(1, 100),
    st.integers(0, 1 << 30),
    st.sampled_from([0.0, 1e-6, 1.0, 1e6]),
)
def test_quantised_weights_are_near_the_weights_and_padding_is_zero(
    bits, rows, columns, seed, size
):
    matrix = np.random.default_rng(seed).standard_normal((rows, columns), np.float32)
    matrix *= np.float32(size)
    quantized = quantize_rows(matrix, bits)
    weights = dequantized(quantized)
    # The ends of a range that was shrunk are off by more than half a step.
    step = np.abs(quantized.scales).repeat(BLOCK_SIZE, 1)[:, :columns]
    assert np.all(np.abs(weights[:, :columns] - matrix) <= step * (2.5 if bits == 4 else 1.001))
    assert np.all(weights[:, columns:] == 0)


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
