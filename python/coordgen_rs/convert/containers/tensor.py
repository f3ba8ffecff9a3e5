"""A weight of a checkpoint that is read by pieces, so that no whole model is ever in memory.

In: a name, a shape and functions that read some rows. Out: float32 rows, whatever is stored, and
the stored bytes where products can be computed with these.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import weight_types
from coordgen_rs.errors import CheckpointError

ReadBytes = Callable[[int, int], NDArray[np.uint8]]
"""Reads bytes `start..stop`, end open."""

_ReadRows = Callable[[int, int], NDArray[Any]]

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
        return self.joined([(start, stop)])

    def joined(self, spans: Sequence[tuple[int, int]]) -> "Tensor":
        """The rows of some spans one after the other, `start, stop` each, end open."""
        num_rows = sum(stop - start for start, stop in spans)

        def of_spans(read: _ReadRows, first: int, last: int) -> NDArray[Any]:
            parts = [read(*it) for it in _inside(spans, first, last)]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)

        return self._arranged((num_rows, *self.shape[1:]), of_spans)

    def every(self, step: int, first: int) -> "Tensor":
        """Each `step`th row, from `first` on; the number of rows is a multiple of `step`."""
        shape = (self.shape[0] // step, *self.shape[1:])
        return self._by_groups(shape, step, 1, lambda rows: rows[first::step])

    def halves(self, head_dim: int, rotated: int) -> "Tensor":
        """The rows of heads whose neighbours are pairs, in the order in which their halves are.

        Rotary embeddings pair row 0 with row 1 in some files, with row `rotated / 2` in graphs.

        Args:
            head_dim: Rows of a head.
            rotated: How many of them are rotated: the first ones.
        """
        order = np.arange(head_dim)
        order[:rotated] = order[:rotated].reshape(-1, 2).T.ravel()

        def in_halves(rows: NDArray[Any]) -> NDArray[Any]:
            return rows.reshape(-1, head_dim, *rows.shape[1:])[:, order].reshape(rows.shape)

        return self._by_groups(self.shape, head_dim, head_dim, in_halves)

    def as_matrix(self) -> "Tensor":
        """Matrices `(n, rows, columns)` one below the other, `(n * rows, columns)`.

        Those that hold what is read are read as a whole.
        """
        count, rows, *columns = self.shape
        shape = (count * rows, *columns)
        return self._by_groups(shape, 1, rows, lambda it: it.reshape(-1, *it.shape[2:]))

    def cut(self, parts: int) -> "Tensor":
        """Each row of a matrix as so many of equal length, one after the other."""
        rows, columns = self.shape
        size, blocks = columns // parts, self.blocks
        if blocks is not None and size % weight_types()[blocks.weight_type][0]:
            blocks = None

        def pieces(whole: NDArray[Any]) -> NDArray[Any]:
            return whole.reshape(len(whole) * parts, -1, *whole.shape[2:])

        return replace(self, blocks=blocks)._by_groups((rows * parts, size), 1, parts, pieces)

    def as_vector(self) -> "Tensor":
        """The values of a matrix as one vector, row after row."""
        rows, columns = self.shape if len(self.shape) == 2 else (self.shape[0], 1)
        return replace(self, blocks=None)._by_groups((rows * columns,), 1, columns, np.ravel)

    def as_row(self) -> "Tensor":
        """The values of a vector as a matrix of one row."""
        if len(self.shape) != 1:
            return self
        (size,) = self.shape
        return self._by_groups((1, size), size, 1, lambda it: it.reshape(1, size, *it.shape[2:]))

    def without_ones(self) -> "Tensor":
        """The same values without dimensions of 1 behind the first."""
        shape = (self.shape[0], *(size for size in self.shape[1:] if size != 1))

        def read_rows(first: int, last: int) -> NDArray[np.float32]:
            return self.read_rows(first, last).reshape(last - first, *shape[1:])

        return replace(self, shape=shape, read_rows=read_rows)

    def _by_groups(
        self,
        shape: tuple[int, ...],
        inside: int,
        outside: int,
        arranged: Callable[[NDArray[Any]], NDArray[Any]],
    ) -> "Tensor":
        """Rows and blocks in another order: groups of `inside` rows become groups of `outside`.

        Args:
            shape: That of the result.
            inside: Rows of a group that are read together.
            outside: Rows of the result that they make.
            arranged: Makes rows of the result of those of whole groups.
        """

        def of_groups(read: _ReadRows, first: int, last: int) -> NDArray[Any]:
            low, high = first // outside, -(-last // outside)
            found = arranged(read(low * inside, high * inside))
            return found[first - low * outside : last - low * outside]

        return self._arranged(shape, of_groups)

    def _arranged(
        self, shape: tuple[int, ...], arranged: Callable[[_ReadRows, int, int], NDArray[Any]]
    ) -> "Tensor":
        """Rows and blocks in another order.

        Args:
            shape: That of the result.
            arranged: Reads rows `start..stop` of the result from the rows that are there.
        """
        blocks = self.blocks and replace(
            self.blocks, read_rows=partial(arranged, self.blocks.read_rows)
        )
        read_rows = partial(arranged, self.read_rows)
        return replace(self, shape=shape, read_rows=read_rows, blocks=blocks, read_bytes=None)

    def computed(
        self,
        compute: Callable[[NDArray[np.float32]], NDArray[np.float32]],
        columns: int | None = None,
    ) -> "Tensor":
        """What is computed of each row by itself; `columns` are those of the result, if others."""
        shape = self.shape if columns is None else (*self.shape[:-1], columns)
        return Tensor(self.name, shape, lambda first, last: compute(self.read_rows(first, last)))

    def times(self, scale: float, plus: float = 0.0) -> "Tensor":
        """Each value plus `plus`, times `scale`."""
        if (scale, plus) == (1.0, 0.0):
            return self
        return self.computed(lambda rows: (rows + np.float32(plus)) * np.float32(scale))

    def scaled(self, columns: NDArray[np.float32]) -> "Tensor":
        """Each column times its number in `columns`."""
        return self.computed(lambda rows: rows * columns)

    def columns(self, numbers: NDArray[np.int64]) -> "Tensor":
        """Some columns in that order."""
        return self.computed(lambda it: np.ascontiguousarray(it[:, numbers]), len(numbers))

    def rows(self, numbers: NDArray[np.int64]) -> "Tensor":
        """Some rows in that order; a piece is read with all that lies between its rows."""

        def read_rows(first: int, last: int) -> NDArray[np.float32]:
            wanted = numbers[first:last]
            low, high = int(wanted.min()), int(wanted.max())
            chosen: NDArray[np.float32] = self.read_rows(low, high + 1)[wanted - low]
            return chosen

        return Tensor(self.name, (len(numbers), *self.shape[1:]), read_rows)

    def load(self) -> NDArray[np.float32]:
        """The whole tensor; beside it a piece at a time is in memory."""
        spans = list(self.spans())
        if len(spans) < 2:
            return self.read_rows(0, self.shape[0])
        values = np.empty(self.shape, np.float32)
        for start, stop in spans:
            values[start:stop] = self.read_rows(start, stop)
        return values


def read_numbers(
    path: Path, name: str, dtype: np.dtype[Any], offset: int, count: int
) -> NDArray[Any]:
    """Numbers of a file, `(count,)`.

    Args:
        path: The file.
        name: What they are, for messages.
        dtype: What each is stored as.
        offset: Byte at which the first begins.
        count: How many there are.

    Raises:
        CheckpointError: The file ends early, or cannot be read.
    """
    try:
        numbers = np.fromfile(path, dtype, count, offset=offset)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if numbers.size != count:
        raise CheckpointError(f"{path} ends inside {name}")
    return numbers


def stacked(name: str, tensors: Sequence[Tensor]) -> Tensor:
    """Matrices of one shape one below the other; float32, if they are not all stored alike.

    Raises:
        CheckpointError: They are no matrices of one shape.
    """
    shape, kinds = tensors[0].shape, {tensor.stored_type for tensor in tensors}
    if len(shape) != 2 or any(tensor.shape != shape for tensor in tensors):
        others = sorted({str(tensor.shape) for tensor in tensors})
        raise CheckpointError(f"{name} has parts of the shapes {', '.join(others)}")

    def of_parts(reads: Sequence[_ReadRows], first: int, last: int) -> NDArray[Any]:
        rows = shape[0]
        numbers = range(first // rows, -(-last // rows))
        return np.concatenate(
            [reads[it](max(first - it * rows, 0), min(last - it * rows, rows)) for it in numbers]
        )

    blocks = [tensor.blocks for tensor in tensors if tensor.blocks is not None]
    is_kept = len(blocks) == len(tensors) and len({it.weight_type for it in blocks}) == 1
    read_blocks = partial(of_parts, [it.read_rows for it in blocks])
    return Tensor(
        name,
        (len(tensors) * shape[0], shape[1]),
        partial(of_parts, [it.read_rows for it in tensors]),
        StoredBlocks(blocks[0].weight_type, read_blocks) if is_kept else None,
        kinds.pop() if len(kinds) == 1 else None,
    )


def _inside(spans: Sequence[tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """What of some spans is in rows `first..last`, when they stand one after the other."""
    begin = 0
    for start, stop in spans:
        low, high = max(first - begin, 0), min(last - begin, stop - start)
        if low < high:
            yield start + low, start + high
        begin += stop - start
