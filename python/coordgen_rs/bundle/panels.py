"""Rows of a matrix whose weights stand in panels, as the operator `Product` reads them.

In: the bytes of all panels (`src/kernels/product/panels.rs`). Out: some rows in float32. So an
embedding that is also the output layer is stored once.
"""

import mmap
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import weight_rows, weight_types

WeightType = Literal[
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "F16",
    "BF16",
    "F32",
]

OUTPUTS = 16
"""Rows of a panel."""


def num_bytes(weight_type: str, rows: int, columns: int) -> int:
    """Bytes of a matrix in panels."""
    weights, block = weight_types()[weight_type]
    return -(-rows // OUTPUTS) * OUTPUTS * -(-columns // weights) * block


@dataclass(frozen=True, eq=False)
class PanelRows:
    """Rows `(rows, columns)` that are made float32 when they are asked for.

    Attributes:
        content: `(num_bytes,) u8`.
        weight_type: A `WeightType`.
        rows: Rows of the matrix.
        columns: Weights of a row.
        scale: What each weight is multiplied by.
        joined: How many rows one after the other are read as one.
    """

    content: NDArray[np.uint8]
    weight_type: str
    rows: int
    columns: int
    scale: float
    joined: int = 1

    def __getitem__(self, numbers: NDArray[Any]) -> NDArray[np.float32]:
        """The rows of some numbers `(n,)`, `(n, joined * columns) f32`."""
        several: NDArray[np.uint32] = np.arange(self.joined, dtype=np.uint32)
        wanted = np.asarray(numbers, np.uint32)[:, np.newaxis] * np.uint32(self.joined) + several
        of_type = self.weight_type, self.content, self.rows, self.columns
        rows = weight_rows(*of_type, wanted.ravel()) * np.float32(self.scale)
        return rows.reshape(len(numbers), -1)


@dataclass(frozen=True, eq=False)
class MappedRows(PanelRows):
    """Rows of a mapped file that may be larger than memory, and of which few are ever read.

    The system is told that they are read in no order, so it reads no pages beside them; and which
    they are before they are read, so that a disk reads them side by side. Otherwise each waits for
    its own, with pages that nobody asked for.
    """

    mapped: mmap.mmap = field(kw_only=True)
    """The file, whose bytes are `content`."""

    def __post_init__(self) -> None:
        self._advise(_IN_NO_ORDER, 0, len(self.mapped))

    def __getitem__(self, numbers: NDArray[Any]) -> NDArray[np.float32]:
        """The rows of some numbers `(n,)`, `(n, joined * columns) f32`."""
        panel_bytes = self._panel_bytes
        for number in set(np.asarray(numbers).tolist()):
            first = number * self.joined // OUTPUTS
            last = ((number + 1) * self.joined - 1) // OUTPUTS
            start = first * panel_bytes // mmap.PAGESIZE * mmap.PAGESIZE
            self._advise(_SOON, start, (last + 1) * panel_bytes - start)
        return super().__getitem__(numbers)

    @cached_property
    def _panel_bytes(self) -> int:
        return num_bytes(self.weight_type, OUTPUTS, self.columns)

    def _advise(self, advice: str, start: int, length: int) -> None:
        """Tell the system of a part, where it takes advice."""
        number = getattr(mmap, advice, None)
        if number is not None:
            self.mapped.madvise(number, start, length)


_IN_NO_ORDER, _SOON = "MADV_RANDOM", "MADV_WILLNEED"
