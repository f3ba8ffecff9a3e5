"""A weight of a checkpoint that is read by pieces, so that no whole model is ever in memory.

In: a name, a shape and functions that read some rows. Out: float32 rows, whatever is stored, and
the stored bytes where products can be computed with these.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import weight_types
from coordgen_rs.errors import CheckpointError

ReadBytes = Callable[[int, int], NDArray[np.uint8]]
"""Reads bytes `start..stop`, end open."""

PIECE_ELEMENTS = 1 << 21
"""Most elements (8 MiB as float32) that are read at a time, unless a single row is longer."""


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

    def every(self, step: int, first: int) -> "StoredBlocks":
        """Each `step`th row, from `first` on."""

        def read_rows(start: int, stop: int) -> NDArray[np.uint8]:
            return self.read_rows(start * step, stop * step)[first::step]

        return replace(self, read_rows=read_rows)

    def cut(self, parts: int) -> "StoredBlocks":
        """Each row as so many, which have whole blocks."""

        def read_rows(first: int, last: int) -> NDArray[np.uint8]:
            rows = self.read_rows(first // parts, -(-last // parts))
            pieces = rows.reshape(rows.shape[0] * parts, -1, rows.shape[2])
            return pieces[first % parts :][: last - first]

        return replace(self, read_rows=read_rows)

    def joined(self, spans: Sequence[tuple[int, int]]) -> "StoredBlocks":
        """The rows of some spans one after the other."""

        def read_rows(first: int, last: int) -> NDArray[np.uint8]:
            return np.concatenate([self.read_rows(*it) for it in _inside(spans, first, last)])

        return replace(self, read_rows=read_rows)

    def as_matrix(self, rows: int) -> "StoredBlocks":
        """Of matrices of so many rows, the rows one below the other."""

        def read_rows(first: int, last: int) -> NDArray[np.uint8]:
            return _of_matrices(self.read_rows, rows, first, last)

        return replace(self, read_rows=read_rows)


@dataclass(frozen=True)
class Tensor:
    """A float tensor on disk, of one or two dimensions; of more, its rows are matrices."""

    name: str
    shape: tuple[int, ...]
    read_rows: Callable[[int, int], NDArray[np.float32]]
    """Reads rows `start..stop` (end open); may raise CheckpointError."""
    blocks: StoredBlocks | None = None
    """The same values in a form that products read, where the checkpoint's is one."""
    stored_type: str | None = None
    """What the checkpoint calls the type of its values, as in GGUF files; None for float32 that
    it does not name, and for what is computed."""
    read_bytes: ReadBytes | None = None
    """Reads bytes `start..stop` (end open) of a tensor of packed numbers, in its order; may raise
    CheckpointError. None for one of floats."""

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
            self.name,
            (stop - start, *self.shape[1:]),
            read_rows,
            self.blocks and self.blocks.part(start),
            self.stored_type,
        )

    def joined(self, spans: Sequence[tuple[int, int]]) -> "Tensor":
        """The rows of some spans one after the other, `start, stop` each, end open."""

        def read_rows(first: int, last: int) -> NDArray[np.float32]:
            return np.concatenate([self.read_rows(*it) for it in _inside(spans, first, last)])

        return replace(
            self,
            shape=(sum(stop - start for start, stop in spans), *self.shape[1:]),
            read_rows=read_rows,
            blocks=self.blocks and self.blocks.joined(spans),
        )

    def every(self, step: int, first: int) -> "Tensor":
        """Each `step`th row, from `first` on; the number of rows is a multiple of `step`."""

        def read_rows(start: int, stop: int) -> NDArray[np.float32]:
            return self.read_rows(start * step, stop * step)[first::step]

        return replace(
            self,
            shape=(self.shape[0] // step, *self.shape[1:]),
            read_rows=read_rows,
            blocks=self.blocks and self.blocks.every(step, first),
        )

    def as_matrix(self) -> "Tensor":
        """Matrices `(n, rows, columns)` one below the other, `(n * rows, columns)`.

        Those that hold what is read are read as a whole.
        """
        count, rows, *columns = self.shape

        def read_rows(first: int, last: int) -> NDArray[np.float32]:
            return _of_matrices(self.read_rows, rows, first, last)

        return replace(
            self,
            shape=(count * rows, *columns),
            read_rows=read_rows,
            blocks=self.blocks and self.blocks.as_matrix(rows),
        )

    def cut(self, parts: int) -> "Tensor":
        """Each row of a matrix as so many of equal length, one after the other."""
        rows, columns = self.shape
        size, blocks = columns // parts, self.blocks

        def read_rows(first: int, last: int) -> NDArray[np.float32]:
            whole = self.read_rows(first // parts, -(-last // parts))
            return whole.reshape(-1, size)[first % parts :][: last - first]

        if blocks is not None and size % weight_types()[blocks.weight_type][0]:
            blocks = None
        return replace(
            self,
            shape=(rows * parts, size),
            read_rows=read_rows,
            blocks=blocks and blocks.cut(parts),
        )

    def without_ones(self) -> "Tensor":
        """The same values without dimensions of 1 behind the first."""
        shape = (self.shape[0], *(size for size in self.shape[1:] if size != 1))

        def read_rows(first: int, last: int) -> NDArray[np.float32]:
            return self.read_rows(first, last).reshape(last - first, *shape[1:])

        return replace(self, shape=shape, read_rows=read_rows)

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


def stacked(name: str, tensors: Sequence[Tensor]) -> Tensor:
    """Matrices of one shape one below the other; float32, if they are not all stored alike.

    Raises:
        CheckpointError: They are no matrices of one shape.
    """
    shape, kinds = tensors[0].shape, {tensor.stored_type for tensor in tensors}
    if len(shape) != 2 or any(tensor.shape != shape for tensor in tensors):
        others = sorted({str(tensor.shape) for tensor in tensors})
        raise CheckpointError(f"{name} has parts of the shapes {', '.join(others)}")

    def read_rows(first: int, last: int) -> NDArray[np.float32]:
        parts = _of_parts(shape[0], first, last)
        return np.concatenate([tensors[part].read_rows(*its) for part, its in parts])

    blocks = [tensor.blocks for tensor in tensors if tensor.blocks is not None]
    is_kept = len(blocks) == len(tensors) and len({it.weight_type for it in blocks}) == 1

    def read_blocks(first: int, last: int) -> NDArray[np.uint8]:
        parts = _of_parts(shape[0], first, last)
        return np.concatenate([blocks[part].read_rows(*its) for part, its in parts])

    return Tensor(
        name,
        (len(tensors) * shape[0], shape[1]),
        read_rows,
        StoredBlocks(blocks[0].weight_type, read_blocks) if is_kept else None,
        kinds.pop() if len(kinds) == 1 else None,
    )


def _of_parts(rows: int, first: int, last: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Of parts with so many rows each, those with rows `first..last`, and which of theirs."""
    for part in range(first // rows, -(-last // rows)):
        start = part * rows
        yield part, (max(first - start, 0), min(last - start, rows))


def _of_matrices(
    read: Callable[[int, int], NDArray[Any]], rows: int, first: int, last: int
) -> NDArray[Any]:
    """Rows `first..last` of matrices with so many rows, which `read` gives."""
    low, high = first // rows, -(-last // rows)
    found = read(low, high)
    return found.reshape(-1, *found.shape[2:])[first - low * rows : last - low * rows]


def _inside(spans: Sequence[tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """What of some spans is in rows `first..last`, when they stand one after the other."""
    begin = 0
    for start, stop in spans:
        low, high = max(first - begin, 0), min(last - begin, stop - start)
        if low < high:
            yield start + low, start + high
        begin += stop - start
