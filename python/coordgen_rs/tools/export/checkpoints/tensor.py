"""A weight of a checkpoint that is read by pieces, so that no whole model is ever in memory.

In: a name, a shape and functions that read some rows. Out: float32 rows, whatever is stored, and
the stored integers themselves where the checkpoint is quantised in blocks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

PIECE_ELEMENTS = 1 << 21
"""Most elements (8 MiB as float32) that are read at a time, unless a single row is longer."""

MIDDLE_OF_8_BITS = 128
"""The zero point of weights of 8 bits that have none of their own: integers less it are signed."""


@dataclass(frozen=True)
class IntegerRows:
    """Some rows as integers: a weight is `(value - zero point) * scale` of its block."""

    values: NDArray[np.uint8]
    """`(n, in_features)`, one number each"""
    scales: NDArray[np.float32]
    """`(n, blocks)`"""
    zero_points: NDArray[np.uint8] | None
    """`(n, blocks)`; None stands for the middle, 8 of 4 bits and 128 of 8"""


@dataclass(frozen=True)
class IntegerFormat:
    """How a matrix is stored in blocks of integers."""

    bits: int
    """4 or 8."""
    block_size: int
    """Values along a row that share a scale; rows are whole blocks."""
    has_zero_points: bool


@dataclass(frozen=True)
class StoredIntegers:
    """A matrix that a checkpoint holds as integers."""

    format: IntegerFormat
    read_rows: Callable[[int, int], IntegerRows]
    """Reads rows `start..stop` (end open); may raise CheckpointError."""
    is_exact: bool
    """Whether these are the stored values, or those nearest to them."""

    def part(self, start: int) -> "StoredIntegers":
        """The rows from `start` on."""

        def read_rows(first: int, last: int) -> IntegerRows:
            return self.read_rows(start + first, start + last)

        return replace(self, read_rows=read_rows)


@dataclass(frozen=True)
class StoredBlocks:
    """A matrix that a checkpoint holds in a form that products read, in blocks."""

    weight_type: str
    """As in `_core.weight_panels`."""
    read_rows: Callable[[int, int], NDArray[np.uint8]]
    """Reads rows `start..stop` (end open), `(n, blocks, bytes of a block)`; may raise
    CheckpointError."""

    def part(self, start: int) -> "StoredBlocks":
        """The rows from `start` on."""

        def read_rows(first: int, last: int) -> NDArray[np.uint8]:
            return self.read_rows(start + first, start + last)

        return replace(self, read_rows=read_rows)


@dataclass(frozen=True)
class Tensor:
    """A float tensor of one or two dimensions on disk."""

    name: str
    shape: tuple[int, ...]
    read_rows: Callable[[int, int], NDArray[np.float32]]
    """Reads rows `start..stop` (end open); may raise CheckpointError."""
    integers: StoredIntegers | None = None
    """The same as integers, where the checkpoint holds blocks of them."""
    blocks: StoredBlocks | None = None
    """The same as stored, where products read it so."""
    stored_type: str | None = None
    """What a GGUF file calls the type of its values."""

    def spans(self) -> Iterator[tuple[int, int]]:
        """All rows in order, a piece at a time: `start, stop`, end open."""
        num_rows = self.shape[0]
        row_elements = int(np.prod(self.shape[1:]))
        step = max(1, PIECE_ELEMENTS // row_elements)
        for start in range(0, num_rows, step):
            yield start, min(start + step, num_rows)

    def pieces(self) -> Iterator[NDArray[np.float32]]:
        """All rows in order, a piece at a time: `(some rows, ...)` float32."""
        for start, stop in self.spans():
            yield self.read_rows(start, stop)

    def part(self, start: int, stop: int) -> "Tensor":
        """Some rows as a tensor of their own: `start..stop`, end open."""

        def read_rows(first: int, last: int) -> NDArray[np.float32]:
            return self.read_rows(start + first, start + last)

        return Tensor(
            f"{self.name}[{start}:{stop}]",
            (stop - start, *self.shape[1:]),
            read_rows,
            self.integers and self.integers.part(start),
            self.blocks and self.blocks.part(start),
            self.stored_type,
        )

    def times(self, scale: float, plus: float = 0.0) -> "Tensor":
        """Each value plus `plus`, times `scale`."""
        if (scale, plus) == (1.0, 0.0):
            return self

        def read_rows(first: int, last: int) -> NDArray[np.float32]:
            return (self.read_rows(first, last) + np.float32(plus)) * np.float32(scale)

        return Tensor(self.name, self.shape, read_rows)

    def scaled(self, columns: NDArray[np.float32]) -> "Tensor":
        """Each column times its number in `columns`."""

        def read_rows(first: int, last: int) -> NDArray[np.float32]:
            return self.read_rows(first, last) * columns

        return Tensor(self.name, self.shape, read_rows)

    def rows(self, numbers: NDArray[np.int64]) -> "Tensor":
        """Some rows in that order; a piece is read with all that lies between its rows."""

        def read_rows(first: int, last: int) -> NDArray[np.float32]:
            wanted = numbers[first:last]
            low, high = int(wanted.min()), int(wanted.max())
            chosen: NDArray[np.float32] = self.read_rows(low, high + 1)[wanted - low]
            return chosen

        return Tensor(self.name, (len(numbers), *self.shape[1:]), read_rows)

    def columns(self, numbers: NDArray[np.int64]) -> "Tensor":
        """Some columns in that order."""

        def read_rows(first: int, last: int) -> NDArray[np.float32]:
            return np.ascontiguousarray(self.read_rows(first, last)[:, numbers])

        return Tensor(self.name, (self.shape[0], len(numbers)), read_rows)

    def load(self) -> NDArray[np.float32]:
        """The whole tensor; beside it a piece at a time is in memory."""
        spans = list(self.spans())
        if len(spans) < 2:
            return self.read_rows(0, self.shape[0])
        values = np.empty(self.shape, np.float32)
        for start, stop in spans:
            values[start:stop] = self.read_rows(start, stop)
        return values
