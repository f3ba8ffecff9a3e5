"""A weight of a checkpoint that is read by pieces, so that no whole model is ever in memory.

In: a name, a shape and a function that reads some rows. Out: float32 rows, whatever is stored.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PIECE_ELEMENTS = 1 << 21
"""Most elements (8 MiB as float32) that are read at a time, unless a single row is longer."""


@dataclass(frozen=True)
class Tensor:
    """A float tensor of one or two dimensions on disk."""

    name: str
    shape: tuple[int, ...]
    read_rows: Callable[[int, int], NDArray[np.float32]]
    """Reads rows `start..stop` (end open); may raise CheckpointError."""

    def pieces(self) -> Iterator[NDArray[np.float32]]:
        """All rows in order, a piece at a time: `(some rows, ...)` float32."""
        num_rows = self.shape[0]
        row_elements = int(np.prod(self.shape[1:]))
        step = max(1, PIECE_ELEMENTS // row_elements)
        for start in range(0, num_rows, step):
            yield self.read_rows(start, min(start + step, num_rows))

    def part(self, start: int, stop: int) -> "Tensor":
        """Some rows as a tensor of their own: `start..stop`, end open."""

        def read_rows(first: int, last: int) -> NDArray[np.float32]:
            return self.read_rows(start + first, start + last)

        shape = (stop - start, *self.shape[1:])
        return Tensor(f"{self.name}[{start}:{stop}]", shape, read_rows)

    def times(self, scale: float, plus: float = 0.0) -> "Tensor":
        """Each value plus `plus`, times `scale`."""
        if (scale, plus) == (1.0, 0.0):
            return self

        def read_rows(first: int, last: int) -> NDArray[np.float32]:
            return (self.read_rows(first, last) + np.float32(plus)) * np.float32(scale)

        return Tensor(self.name, self.shape, read_rows)

    def load(self) -> NDArray[np.float32]:
        """The whole tensor; for small ones."""
        return self.read_rows(0, self.shape[0])
