"""MXFP4 in transformers' form: the numbers and exponents of GGUF's, in another order."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray
from safetensors.numpy import save_file

from coordgen_rs.convert.containers.hugging_face import open_safetensors
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.gpt_oss import gpt_oss_tensors, last_turned, transposed, unpacked
from coordgen_rs.errors import CheckpointError
from families import needs_transformers

VALUES = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)
"""Of the OCP microscaling formats, by their 4 bits."""


def random_packed(*outer: int, groups: int = 3, seed: int = 0) -> dict[str, NDArray[np.uint8]]:
    random = np.random.default_rng(seed)
    return {
        "w_blocks": random.integers(0, 256, (*outer, groups, 16), np.uint8),
        "w_scales": random.integers(110, 140, (*outer, groups), np.uint8),
    }


def opened(path: Path, tensors: dict[str, NDArray[Any]]) -> dict[str, Tensor]:
    save_file(tensors, path / "some.safetensors")
    return unpacked(open_safetensors(path / "some.safetensors"))


def numbers_of(packed: dict[str, NDArray[np.uint8]]) -> NDArray[np.float32]:
    """What is packed, `(rows, columns)`: neighbours share a byte."""
    rows = packed["w_scales"].reshape(-1, packed["w_scales"].shape[-1])
    blocks = packed["w_blocks"].reshape(len(rows), -1, 16)
    values = np.array(VALUES, np.float32)
    found = [
        values[nibble] * np.float32(2.0) ** (int(exponent) - 127)
        for row, exponents in zip(blocks, rows, strict=True)
        for block, exponent in zip(row, exponents, strict=True)
        for byte in block
        for nibble in (byte & 15, byte >> 4)
    ]
    return np.array(found, np.float32).reshape(len(rows), -1)


def test_numbers_are_those_of_the_format(tmp_path):
    packed = random_packed(2, 5)
    ((name, tensor),) = opened(tmp_path, packed).items()
    assert (name, tensor.shape, tensor.stored_type) == ("w", (10, 96), "MXFP4")
    assert np.array_equal(tensor.load(), numbers_of(packed))


def test_blocks_are_those_that_llama_cpp_writes_of_the_same_numbers(tmp_path):
    packed = random_packed(4)
    (tensor,) = opened(tmp_path, packed).values()
    blocks = tensor.blocks.read_rows(0, 4)
    assert tensor.blocks.weight_type == "MXFP4"
    assert np.array_equal(blocks[..., 0], packed["w_scales"])
    halves = blocks[..., 1:]
    nibbles = np.concatenate([halves & 15, halves >> 4], -1)
    before = packed["w_blocks"]
    assert np.array_equal(nibbles[..., 0::2], before & 15)
    assert np.array_equal(nibbles[..., 1::2], before >> 4)
    rows = quants.dequantize(blocks.reshape(4, -1), GGMLQuantizationType.MXFP4)
    assert np.array_equal(rows, numbers_of(packed))


@needs_transformers
def test_numbers_are_those_of_transformers(tmp_path):
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    packed = random_packed(3, 8)
    (tensor,) = opened(tmp_path, packed).values()
    blocks, scales = (torch.from_numpy(packed[f"w_{name}"]) for name in ("blocks", "scales"))
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert np.array_equal(tensor.load(), expected.numpy().swapaxes(1, 2).reshape(24, -1))


def test_each_second_row_is_the_same_rows(tmp_path):
    (tensor,) = opened(tmp_path, random_packed(2, 6)).values()
    whole, blocks = tensor.load(), tensor.blocks.read_rows(0, 12)
    for first in (0, 1):
        half = tensor.every(2, first)
        assert half.shape == (6, 96)
        assert np.array_equal(half.load(), whole[first::2])
        assert np.array_equal(half.part(2, 5).load(), whole[first::2][2:5])
        assert np.array_equal(half.part(2, 5).blocks.read_rows(1, 3), blocks[first::2][3:5])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_columns_of_matrices_become_rows(tmp_path, dtype):
    matrices = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(dtype)
    save_file({"w": matrices}, tmp_path / "some.safetensors")
    turned = transposed(open_safetensors(tmp_path / "some.safetensors")["w"], last_turned())
    expected = matrices.swapaxes(1, 2).reshape(12, 5)
    assert turned.shape == (12, 5)
    for start, stop in ((0, 12), (1, 3), (3, 9), (4, 8), (11, 12)):
        assert np.array_equal(turned.read_rows(start, stop), expected[start:stop])
        blocks = turned.blocks.read_rows(start, stop)
        assert np.array_equal(blocks.view(dtype)[..., 0], expected[start:stop])


def test_columns_of_bfloat16_keep_their_bits(tmp_path):
    import ml_dtypes

    matrices = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(ml_dtypes.bfloat16)
    save_file({"w": matrices}, tmp_path / "some.safetensors")
    turned = transposed(open_safetensors(tmp_path / "some.safetensors")["w"], last_turned())
    expected = matrices.swapaxes(1, 2).reshape(8, 3)
    assert turned.blocks.weight_type == "BF16"
    assert turned.blocks.read_rows(0, 8).tobytes() == expected.tobytes()


def test_the_last_matrix_that_was_turned_goes_with_the_tensors(tmp_path):
    names = [f"model.layers.{number}.mlp.experts.down_proj" for number in range(2)]
    save_file(
        {it: np.ones((2, 256, 512), np.float32) for it in names}, tmp_path / "some.safetensors"
    )
    tracemalloc.start()
    try:
        tensors = gpt_oss_tensors(open_safetensors(tmp_path / "some.safetensors"))
        for name in names:
            tensors[f"{name}.weight"].read_rows(0, 3)
        one = 4 * 256 * 512
        assert one <= held_bytes() < 2 * one, "the last one is kept"
        del tensors
        assert held_bytes() < one // 2
    finally:
        tracemalloc.stop()


def held_bytes() -> int:
    return tracemalloc.get_traced_memory()[0]


def damaged(**changes: Any) -> dict[str, NDArray[Any]]:
    return {name: it for name, it in (random_packed(4) | changes).items() if it is not None}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (damaged(w_scales=None), "has w_blocks, but no w_scales"),
        (damaged(w_scales=np.zeros((4, 2), np.uint8)), r"w_scales \(4, 2\), expected"),
        (damaged(w_scales=np.zeros((4, 3), np.float32)), "w_scales has the type F32"),
        (damaged(w_blocks=np.zeros((4, 3, 8), np.uint8)), r"w_blocks has the shape \(4, 3, 8\)"),
        (damaged(w_blocks=np.zeros(16, np.uint8)), r"w_blocks has the shape \(16,\)"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_a_damaged_pair_is_refused_by_name(tmp_path, tensors, message):
    with pytest.raises(CheckpointError, match=message):
        opened(tmp_path, tensors)


def test_an_exponent_that_is_no_number_is_named(tmp_path):
    packed = random_packed(4)
    packed["w_scales"][2, 1] = 255
    (tensor,) = opened(tmp_path, packed).values()
    assert np.isfinite(tensor.read_rows(0, 2)).all()
    for read in (tensor.read_rows, tensor.blocks.read_rows):
        with pytest.raises(CheckpointError, match="w_scales holds NaN or infinite values"):
            read(1, 3)


def test_a_file_that_ends_early_is_named(tmp_path):
    (tensor,) = opened(tmp_path, random_packed(4)).values()
    file = tmp_path / "some.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"some\.safetensors ends inside w_"):
        tensor.load()
