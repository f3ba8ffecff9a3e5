"""Types of GGUF files that products do not read: some are kept exactly, the others rounded."""

import numpy as np
import pytest

pytest.importorskip("gguf", reason="the gguf package is not installed")

from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from coordgen_rs._core import weight_types
from coordgen_rs.convert.containers.gguf.file import FLOATS, TERNARY, as_q4_0, float_rows
from coordgen_rs.convert.quantize import quantize_rows
from dequantized import dequantized, dequantized_as

ROWS, BLOCKS = 24, 3
ROUNDED = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "NVFP4")
"""All that the gguf package reads and products do not, but for the ternary ones."""


def random_rows(name: str, seed: int = 3) -> np.ndarray:
    """Any bytes, with scales of a usual size, each positive as quantisers choose them."""
    random = np.random.default_rng(seed)
    block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    raw = random.integers(0, 256, (ROWS * BLOCKS, block_bytes), np.uint8)
    scales = random.uniform(0.02, 0.1, ROWS * BLOCKS).astype("<f2")
    if name == "IQ1_M":  # a fourth of the scale is in the highest bits of four others
        for number in range(4):
            part = (scales.view("<u2") >> 4 * number & 15).astype(np.uint8)
            place = 49 + 2 * number
            raw[:, place] = raw[:, place] & 15 | part << 4
    elif name == "NVFP4":  # a float of 8 bits for each sixteen
        raw[:, :4] = random.integers(48, 64, (len(raw), 4))
    else:
        place = block_bytes - 2 if name in TERNARY else 0
        raw[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    return raw.reshape(ROWS, -1)


def test_all_types_that_the_package_reads_are_known():
    read = {kind.name for kind in quants._type_traits}
    assert read <= {*weight_types(), *ROUNDED, *TERNARY, *(kind.name for kind in FLOATS)}


@pytest.mark.parametrize("name", TERNARY)
def test_ternary_weights_are_the_same_in_blocks_of_4_bits(name):
    raw = random_rows(name)
    if name == "TQ2_0":  # zeros in a whole block of 32, and values that only damage brings
        raw[0, :8] = 0b01010101
    weights = float_rows(GGMLQuantizationType[name], raw)
    np.testing.assert_array_equal(dequantized_as("Q4_0", as_q4_0(weights)), weights)


@pytest.mark.parametrize("name", ROUNDED)
def test_other_weights_are_off_by_less_than_a_hundredth(name):
    weights = float_rows(GGMLQuantizationType[name], random_rows(name))
    rounded = dequantized(quantize_rows(weights, 8, "w"), 8)
    off = np.sqrt(np.mean((rounded - weights) ** 2) / np.mean(weights**2))
    assert 0 < off < 0.01


def test_float_types_are_read_exactly():
    values = np.random.default_rng(1).standard_normal((3, 64), np.float32)
    for kind in FLOATS:
        raw = quants.quantize(values, kind)
        once = float_rows(kind, raw.view(np.uint8))
        np.testing.assert_array_equal(quants.quantize(once, kind), raw)
