"""Quantised blocks become integers with the same values, or with the nearest."""

import numpy as np
import pytest

pytest.importorskip("gguf", reason="the gguf package is not installed")

from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from coordgen_rs.tools.export.checkpoints.gguf.block_types import (
    float_rows,
    integer_format,
    integer_rows,
    is_exact,
)
from coordgen_rs.tools.export.checkpoints.gguf.nearest import nearest_integers, steps_with_minima
from coordgen_rs.tools.export.checkpoints.tensor import IntegerFormat, IntegerRows
from coordgen_rs.tools.export.cpu.quantize import common_format, pack_rows

EXACT = {"Q4_0": (4, 32), "Q5_0": (8, 32), "Q8_0": (8, 32), "IQ4_NL": (8, 32), "Q6_K": (8, 16)}
WITH_MINIMA = {"Q4_1": 15, "Q5_1": 31, "Q4_K": 15, "Q5_K": 31}
HALVES = {"Q6_K": [208], "Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2]}
HALVES |= {"Q2_K": [80, 82], "Q3_K": [108]}
"""Where float16 numbers stand in a block, if not only at its start."""
ROWS, BLOCKS = 24, 6


def random_rows(name: str) -> np.ndarray:
    """Any bytes, but numbers of a usual size where a block has float16 ones."""
    random = np.random.default_rng(3)
    block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    raw = random.integers(0, 256, (ROWS * BLOCKS, block_bytes), np.uint8)
    for place in HALVES.get(name, [0]):
        halves = random.uniform(-0.1, 0.1, ROWS * BLOCKS).astype("<f2")
        raw[:, place : place + 2] = halves.view(np.uint8).reshape(-1, 2)
    return raw.reshape(ROWS, -1)


def values_of(rows: IntegerRows, form: IntegerFormat) -> np.ndarray:
    """The weights that integers stand for, in float64, `(rows, blocks, block_size)`."""
    middle = 1 << form.bits - 1
    zeros = np.full(rows.scales.shape, middle) if rows.zero_points is None else rows.zero_points
    in_blocks = rows.values.reshape(*rows.scales.shape, form.block_size).astype(np.float64)
    return (in_blocks - zeros[..., None]) * rows.scales[..., None].astype(np.float64)


def integers(name: str, raw: np.ndarray) -> tuple[IntegerRows, IntegerFormat, np.ndarray]:
    kind = GGMLQuantizationType[name]
    weights = float_rows(kind, raw)
    return integer_rows(kind, raw, weights), integer_format(kind), weights


@pytest.mark.parametrize("name", EXACT)
def test_types_of_scaled_integers_keep_their_values(name):
    rows, form, weights = integers(name, random_rows(name))
    assert is_exact(GGMLQuantizationType[name])
    assert (form.bits, form.block_size, form.has_zero_points) == (*EXACT[name], False)
    kept = values_of(rows, form).reshape(weights.shape)
    # The package rounds the product to float32; the integers do not.
    np.testing.assert_array_equal(kept.astype(np.float32), weights)


@pytest.mark.parametrize("name", WITH_MINIMA)
def test_types_with_minima_are_shifted_by_no_more_than_a_share_of_a_step(name):
    most, random = WITH_MINIMA[name], np.random.default_rng(5)
    # Minima from -most steps to 0, so that zero lies in the range of each block.
    scales = random.uniform(0.001, 0.1, (ROWS, BLOCKS)).astype(np.float32)
    minima = (-scales * random.uniform(0, most, (ROWS, BLOCKS))).astype(np.float32)
    steps = random.integers(0, most + 1, (ROWS, BLOCKS, 32))
    weights = (scales[..., None] * steps + minima[..., None]).astype(np.float32)
    rows = steps_with_minima(weights, scales, minima, most)
    kept = values_of(rows, IntegerFormat(8, 32, has_zero_points=True))
    off = np.abs(kept - weights) / scales[..., None]
    finest = 255 // most
    assert off.max() <= 1 / (2 * finest) + 1e-3
    assert off.mean() < 0.2 / finest
    # A block is shifted as a whole: the differences between its weights stay.
    np.testing.assert_allclose(np.ptp(kept, -1), np.ptp(weights, -1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [*WITH_MINIMA, "Q2_K", "Q3_K", "IQ4_XS"])
def test_every_other_type_is_nearest_to_what_is_stored(name):
    rows, form, weights = integers(name, random_rows(name))
    assert not is_exact(GGMLQuantizationType[name])
    assert form == IntegerFormat(8, 32, has_zero_points=True)
    in_blocks = weights.reshape(ROWS, -1, 32)
    largest = np.ptp(np.concatenate([in_blocks, np.zeros_like(in_blocks[..., :1])], -1), -1)
    off = np.abs(values_of(rows, form) - in_blocks).max(-1)
    assert (off <= largest / 200 + 1e-6).all()


def test_blocks_of_one_value_and_of_zeros_are_near():
    weights = np.stack([np.zeros((1, 32)), np.full((1, 32), 0.7), np.full((1, 32), -3.0)])
    weights = weights.astype(np.float32)
    rows = steps_with_minima(weights, np.zeros((3, 1), np.float32), weights[..., 0], 15)
    kept = values_of(rows, IntegerFormat(8, 32, has_zero_points=True))
    np.testing.assert_allclose(kept, weights, rtol=1e-6)
    same = nearest_integers(weights)
    np.testing.assert_array_equal(rows.values, same.values)


@pytest.mark.parametrize("others", [["Q4_0"], ["Q8_0"], ["Q6_K"], ["Q4_1"], ["Q6_K", "Q5_1"]])
def test_layers_of_several_types_share_a_format_that_keeps_each_value(others):
    rows, form, _ = integers("Q4_0", random_rows("Q4_0"))
    wanted = common_format([form, *(integer_format(GGMLQuantizationType[it]) for it in others)])
    packed = pack_rows(rows, form, wanted)
    again = IntegerRows(packed.values.reshape(ROWS, -1), packed.scales, packed.zero_points)
    np.testing.assert_array_equal(
        values_of(again, wanted).reshape(ROWS, -1), values_of(rows, form).reshape(ROWS, -1)
    )


def test_float_types_are_read_exactly():
    values = np.random.default_rng(1).standard_normal((3, 64), np.float32)
    for name in ("F32", "F16", "BF16"):
        kind = GGMLQuantizationType[name]
        raw = quants.quantize(values, kind)
        once = float_rows(kind, raw.view(np.uint8))
        np.testing.assert_array_equal(quants.quantize(once, kind), raw)
