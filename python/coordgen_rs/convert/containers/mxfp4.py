"""MXFP4 as transformers' checkpoints hold it: numbers of 4 bits, and exponents of 32 each.

In: two tensors of bytes, `{name}_blocks (.., groups, 16)` and `{name}_scales (.., groups)`. Out: a
matrix of as many rows as there are in all of `..`, whose blocks have the order of GGUF, which
products read: an exponent, then 16 bytes, whose low halves are the first 16 numbers. Here
neighbours share a byte, the first of them in its low half. The numbers and the exponents, 127 of
which is 1, mean the same in both.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from coordgen_rs.convert.containers.gguf.tensors import MOST_EXPONENT, float_rows
from coordgen_rs.convert.containers.tensor import ReadBytes, StoredBlocks, Tensor
from coordgen_rs.errors import CheckpointError

_TYPE = "MXFP4"
_BLOCKS, _SCALES = "_blocks", "_scales"
_SIZE = 32
"""Numbers with one exponent."""
_HALF = _SIZE // 2
_BYTES = "U8"


def unpacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, of which those in MXFP4 are matrices under their names.

    Raises:
        CheckpointError: One has blocks alone, or of another form.
    """
    found = dict(tensors)
    for name, blocks in tensors.items():
        if name.endswith(_BLOCKS) and blocks.stored_type == _BYTES and blocks.read_bytes:
            whole, scales = name.removesuffix(_BLOCKS), f"{name.removesuffix(_BLOCKS)}{_SCALES}"
            del found[name]
            found[whole] = _matrix(whole, blocks, blocks.read_bytes, found.pop(scales, None))
    return found


def _matrix(name: str, blocks: Tensor, numbers: ReadBytes, scales: Tensor | None) -> Tensor:
    """The matrix that blocks and their exponents are.

    Raises:
        CheckpointError: Exponents are missing, or do not match.
    """
    if scales is None:
        raise CheckpointError(f"the checkpoint has {blocks.name}, but no {name}{_SCALES}")
    if len(blocks.shape) < 3 or blocks.shape[-1] != _HALF or scales.shape != blocks.shape[:-1]:
        raise CheckpointError(
            f"{blocks.name} has the shape {blocks.shape} and {scales.name} {scales.shape}, "
            f"expected (.., groups, {_HALF}) and (.., groups)"
        )
    if scales.stored_type != _BYTES or scales.read_bytes is None:
        raise CheckpointError(f"{scales.name} has the type {scales.stored_type}, expected {_BYTES}")
    *outer, groups = scales.shape
    packed = _Packed(scales.name, groups, numbers, scales.read_bytes)
    shape = (math.prod(outer), groups * _SIZE)
    return Tensor(name, shape, packed.rows, StoredBlocks(_TYPE, packed.blocks), _TYPE)


@dataclass(frozen=True)
class _Packed:
    """The rows of a matrix in MXFP4."""

    name: str
    """That of the exponents."""
    groups: int
    """Exponents of a row."""
    read_numbers: ReadBytes
    read_exponents: ReadBytes

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows `start..stop` as float32.

        Raises:
            CheckpointError: As of `blocks`.
        """
        blocks = self.blocks(start, stop)
        return float_rows(GGMLQuantizationType.MXFP4, blocks.reshape(stop - start, -1))

    def blocks(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Rows `start..stop`, `(n, groups, 17)`.

        Raises:
            CheckpointError: A file ends early, or an exponent makes numbers that are no float32.
        """
        first, last = start * self.groups, stop * self.groups
        exponents = self.read_exponents(first, last)
        if (exponents > MOST_EXPONENT).any():
            raise CheckpointError(f"{self.name} holds NaN or infinite values")
        pairs = self.read_numbers(first * _HALF, last * _HALF).reshape(-1, 2, _HALF // 2)
        low, high = pairs[:, 0], pairs[:, 1]
        blocks = np.empty((len(pairs), 1 + _HALF), np.uint8)
        blocks[:, 0] = exponents
        blocks[:, 1::2] = low & 15 | high << 4
        blocks[:, 2::2] = low >> 4 | high & 0xF0
        return blocks.reshape(stop - start, self.groups, 1 + _HALF)
