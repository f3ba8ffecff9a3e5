"""What weights in blocks stand for, number by number; and products with them."""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray

from coordgen_rs.convert.quantize import BLOCK_SIZE, QUANTIZED_TYPES

PANEL_OUTPUTS = 16
HALVES: dict[str, dict[int, float]] = {
    "Q4_1": {0: 1.0, 2: -7.5},
    "Q5_1": {0: 1.0, 2: -15.5},
    "Q4_K": {0: 1 / 32, 2: 7.5 / 32},
    "Q5_K": {0: 1 / 32, 2: 15.5 / 32},
    "Q2_K": {80: 1 / 8, 82: 1.5 / 8},
    "Q3_K": {108: 1 / 16},
    "Q6_K": {208: 1 / 64},
    "IQ4_XS": {0: 1 / 16},
    "MXFP4": {},
}
"""Where float16 numbers stand in a block, if not only at its start, and their usual size."""


def dequantized(blocks: NDArray[np.uint8], bits: int) -> NDArray[np.float32]:
    """Blocks as `quantize_rows` gives them, to `(n, blocks * 32)`: with the last one's padding."""
    return dequantized_as(QUANTIZED_TYPES[bits], blocks)


def dequantized_as(weight_type: str, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Blocks `(n, blocks, bytes of a block)` of a type of GGUF, to `(n, blocks * 32)`."""
    rows = blocks.reshape(len(blocks), -1)
    return np.asarray(quants.dequantize(rows, GGMLQuantizationType[weight_type]), np.float32)


def random_blocks(
    weight_type: str, rows: int, blocks: int, seed: int, size: float = 0.01
) -> NDArray[np.uint8]:
    """Random blocks of a type of GGUF with usual scales, `(rows, blocks, bytes of a block)`.

    Weights without a minimum are of about `size` times their integers, and with one around zero.
    """
    random = np.random.default_rng(seed)
    block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[weight_type]][1]
    if weight_type in ("F16", "BF16", "F32"):
        numbers = random.normal(0, size, (rows, blocks)).astype(np.float32)
        floats = quants.quantize(numbers, GGMLQuantizationType[weight_type])
        return np.asarray(floats).view(np.uint8).reshape(rows, blocks, block_bytes)
    stored = random.integers(0, 256, (rows, blocks, block_bytes), np.uint8)
    for place, least in HALVES.get(weight_type, {0: 1.0}).items():
        numbers = random.normal(least, abs(least) / 8, (rows, blocks)) * size
        stored[..., place : place + 2] = numbers.astype("<f2")[..., None].view(np.uint8)
    if weight_type == "MXFP4":
        middle = round(float(np.log2(size))) + 127
        stored[..., 0] = random.integers(middle - 2, middle + 3, (rows, blocks))
    return stored


def scales_of(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The scale of each block, `(n, blocks)`."""
    return np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0].astype(np.float32)


def rounded_to_8_bits(x: NDArray[np.float32], _: str) -> NDArray[np.float32]:
    """Activations as products with weights in blocks see them: blocks of 32, symmetric."""
    padded = np.pad(x, [(0, 0), (0, -x.shape[1] % BLOCK_SIZE)])
    blocks = padded.reshape(len(x), -1, BLOCK_SIZE)
    scales = np.abs(blocks).max(-1, keepdims=True) / 127
    values = np.rint(np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales != 0))
    rows: NDArray[np.float32] = (values * scales).reshape(padded.shape)[:, : x.shape[1]]
    return rows


def blocks_of_panels(
    weight_type: str, panels: NDArray[np.uint8], outputs: int, columns: int
) -> NDArray[np.uint8]:
    """The blocks that `weight_panels` was given, `(outputs, blocks, bytes of a block)`."""
    blocks, num_halves = -(-columns // BLOCK_SIZE), 2 if weight_type == "Q4_1" else 1
    is_wide = weight_type == "Q8_0"
    values_end = PANEL_OUTPUTS * blocks * (32 if is_wide else 16)
    values, halves = np.split(
        panels.reshape(-1, values_end + PANEL_OUTPUTS * blocks * 2 * num_halves), [values_end], 1
    )
    groups = values.reshape(len(values), blocks, -1, PANEL_OUTPUTS, 4)
    groups = groups ^ np.uint8(128) if is_wide else np.stack([groups & 15, groups >> 4], 3)
    in_order = groups.reshape(len(values), blocks, 8, PANEL_OUTPUTS, 4).transpose(0, 3, 1, 2, 4)
    stored = in_order.reshape(-1, blocks, BLOCK_SIZE)
    if not is_wide:
        stored = stored[..., :16] | stored[..., 16:] << np.uint8(4)
    halves = halves.reshape(len(values), num_halves, blocks, PANEL_OUTPUTS, 2)
    halves = halves.transpose(0, 3, 2, 1, 4).reshape(-1, blocks, 2 * num_halves)
    if halves[outputs:].any():
        raise AssertionError("what fills up the last panel has scales that are not zero")
    rows: NDArray[np.uint8] = np.concatenate([halves, stored], -1)[:outputs]
    return rows
