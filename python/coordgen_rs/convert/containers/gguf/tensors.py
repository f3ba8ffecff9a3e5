"""The tensors of a GGUF file, in its names and its order of rows.

In: where a tensor stands. Out: a `Tensor` that reads from the file: float32, which the gguf package
makes of any type, and the stored blocks where products read these; Q4_0 for the ternary types,
whose weights it holds exactly. Of tensors with more dimensions than two, all but the last are rows.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from coordgen_rs._core import weight_types
from coordgen_rs.convert.containers.gguf.header import GgufTensor
from coordgen_rs.convert.containers.tensor import StoredBlocks, Tensor, read_numbers
from coordgen_rs.errors import CheckpointError, UnsupportedModelError

FLOATS = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)
"""Types that are floats, not integers in blocks."""
TERNARY = ("TQ1_0", "TQ2_0")
"""Types whose weights are -1, 0 or 1 times the scale of 256."""
MOST_EXPONENT = 252
"""Of MXFP4: with a larger one some weight is no float32."""

_BYTES = np.dtype(np.uint8)
_BLOCK = 32
_MIDDLE = 8
"""Of the integers of Q4_0."""
_HALVES: dict[str, tuple[int, ...]]
_HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}
_HALVES |= {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": (), "BF16": (), "F32": ()}
"""Where numbers in float16 stand in a block of a type that products read as it is, if not only at
its start."""


def open_tensor(stored: GgufTensor) -> Tensor:
    """The tensor at a place of a file.

    Raises:
        CheckpointError: It is a vector, but not of floats.
    """
    rows, name_of_type, blocks = _Rows(stored), stored.type.name, None
    *outer, last = stored.shape
    if not outer and stored.type not in FLOATS:
        raise CheckpointError(
            f"{stored.path}: {stored.name} has the shape {stored.shape} of {name_of_type}"
        )
    if name_of_type in weight_types():
        blocks = StoredBlocks(name_of_type, rows.blocks)
    elif name_of_type in TERNARY:
        blocks = StoredBlocks("Q4_0", rows.ternary_blocks)
    shape = (math.prod(outer), last) if outer else (last,)
    return Tensor(stored.name, shape, rows.floats, blocks, name_of_type)


def float_rows(kind: GGMLQuantizationType, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The rows of `raw (n, bytes of a row)` as float32.

    Raises:
        NotImplementedError: The gguf package cannot do this type.
    """
    return np.asarray(quants.dequantize(raw, kind), np.float32)


def as_q4_0(weights: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Rows of ternary weights `(n, in_features)` in Q4_0, `(n, blocks, bytes of a block)`."""
    in_blocks = weights.reshape(len(weights), -1, _BLOCK)
    sizes = np.abs(in_blocks)
    # A damaged file may hold 2, too.
    scales = sizes.min(-1, keepdims=True, where=sizes > 0, initial=np.inf)
    scales[np.isinf(scales)] = 1
    values = (np.rint(in_blocks / scales) + _MIDDLE).astype(np.uint8)
    nibbles = values[..., : _BLOCK // 2] | values[..., _BLOCK // 2 :] << np.uint8(4)
    return np.concatenate([scales.astype("<f2").view(np.uint8), nibbles], -1)


@dataclass(frozen=True)
class _Rows:
    """Rows of a tensor in a file."""

    stored: GgufTensor

    def floats(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows `start..stop` as float32.

        Raises:
            CheckpointError: The file ends early, or holds what is no number.
        """
        rows = self._weights(self._raw(start, stop))
        return rows.ravel() if len(self.stored.shape) == 1 else rows

    def blocks(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Rows `start..stop` as they are, `(n, blocks, bytes of a block)`.

        Raises:
            CheckpointError: The file ends early, or holds what is no number.
        """
        raw, name = self._raw(start, stop), self.stored.type.name
        _, block_bytes = weight_types()[name]
        blocks = raw.reshape(stop - start, -1, block_bytes)
        for place in _HALVES.get(name, (0,)):
            self._check(np.ascontiguousarray(blocks[..., place : place + 2]).view("<f2"))
        if name == "MXFP4":
            self._check(np.where(blocks[..., 0] > MOST_EXPONENT, np.inf, 0))
        if name in ("BF16", "F32"):
            self._weights(raw)
        return blocks

    def ternary_blocks(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Rows `start..stop` of a ternary type in Q4_0, which holds the same values.

        Raises:
            CheckpointError: The file ends early, or holds what is no number.
        """
        blocks = as_q4_0(self.floats(start, stop))
        self._check(np.ascontiguousarray(blocks[..., :2]).view("<f2"))
        return blocks

    def _check(self, values: NDArray[Any]) -> None:
        """Refuse what is no number.

        Raises:
            CheckpointError: There is some.
        """
        if not np.isfinite(values).all():
            raise CheckpointError(
                f"{self.stored.path}: {self.stored.name} holds NaN or infinite values"
            )

    def _weights(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Raw rows as float32.

        Raises:
            UnsupportedModelError: Their type is none that is known to the gguf package.
            CheckpointError: They hold what is no number.
        """
        stored = self.stored
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                rows = float_rows(stored.type, raw)
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"{stored.path}: {stored.name} has the type {stored.type.name}, which is not "
                "supported"
            ) from error
        self._check(rows)
        return rows

    def _raw(self, start: int, stop: int) -> NDArray[np.uint8]:
        """The bytes of rows `start..stop`, one row of them for each."""
        stored = self.stored
        is_vector = len(stored.shape) == 1
        row_bytes = stored.num_bytes // stored.shape[0] if is_vector else stored.row_bytes
        offset, count = stored.offset + start * row_bytes, (stop - start) * row_bytes
        raw = read_numbers(stored.path, stored.name, _BYTES, offset, count)
        return raw.reshape(stop - start, row_bytes)
