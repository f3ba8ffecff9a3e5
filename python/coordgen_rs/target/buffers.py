"""What the graphs of a target read and write in one run.

The arrays are ONNX Runtime's own inputs and outputs: nothing is copied. Ids, positions and mask are
filled by the core (`StepInputs`), the rest by whoever runs the blocks (`forward.py`).
"""

from functools import cached_property
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs
from coordgen_rs.bundle.manifest import ModelShape


class Buffers:
    """What the graphs read and write in one run.

    Args:
        input_ids: `(rows,) i64`.
        position_ids: `(rows,) i64`.
        mask: `(1, 1, rows, slots) f32`, additive.
        cos: `(1, 1, rows, head_dim / 2) f32`.
        sin: `(1, 1, rows, head_dim / 2) f32`.
        hidden: Two of `(1, rows, hidden_size) f32`, between which the hidden states go back and
            forth from block to block.

    Attributes:
        rows: Number of tokens of a run.
        write_index: `(1,) i64`, the slot of row 0.
    """

    def __init__(
        self,
        input_ids: NDArray[np.int64],
        position_ids: NDArray[np.int64],
        mask: NDArray[np.float32],
        cos: NDArray[Any],
        sin: NDArray[Any],
        hidden: tuple[NDArray[Any], NDArray[Any]],
    ) -> None:
        self.rows = len(input_ids)
        self.input_ids, self.position_ids = input_ids, position_ids
        self.mask, self.cos, self.sin, self.hidden = mask, cos, sin, hidden
        self.write_index = np.zeros(1, np.int64)
        self._attending: dict[int, Buffers] = {}
        # ONNX Runtime reads the arrays' own memory: the OrtValues hold no copy on CPU.
        arrays: dict[str, NDArray[np.generic]] = {
            "mask": mask,
            "cos": cos,
            "sin": sin,
            "write_index": self.write_index,
        }
        self.values = {name: ort_value(array) for name, array in arrays.items()}
        self.hidden_values = [ort_value(array) for array in hidden]

    @classmethod
    def empty(cls, rows: int, model: ModelShape, slots: int) -> "Buffers":
        """New buffers for `rows` tokens."""
        half = model.head_dim // 2
        return cls(
            np.zeros(rows, np.int64),
            np.zeros(rows, np.int64),
            np.zeros((1, 1, rows, slots), np.float32),
            np.zeros((1, 1, rows, half), np.float32),
            np.zeros((1, 1, rows, half), np.float32),
            (
                np.zeros((1, rows, model.hidden_size), np.float32),
                np.zeros((1, rows, model.hidden_size), np.float32),
            ),
        )

    def part(self, first: int, rows: int) -> "Buffers":
        """The buffers of some consecutive rows: views, but for the write index."""
        return Buffers(*self._views(slice(first, first + rows)))

    def _views(self, some: slice) -> tuple[Any, ...]:
        """The constructor's arguments for some rows."""
        one, other = self.hidden
        return (
            self.input_ids[some],
            self.position_ids[some],
            self.mask[:, :, some],
            self.cos[:, :, some],
            self.sin[:, :, some],
            (one[:, some], other[:, some]),
        )

    def attending(self, num_slots: int) -> "Buffers":
        """The same, with only the mask of the first slots as it is now; the rest is shared."""
        if num_slots == self.mask.shape[-1]:
            return self
        if num_slots not in self._attending:
            mask = self._narrow_mask[: self.rows * num_slots].reshape(1, 1, self.rows, num_slots)
            narrow = Buffers(
                self.input_ids, self.position_ids, mask, self.cos, self.sin, self.hidden
            )
            narrow.write_index = self.write_index
            narrow.values["write_index"] = self.values["write_index"]
            self._attending[num_slots] = narrow
        narrow = self._attending[num_slots]
        narrow.mask[:] = self.mask[..., :num_slots]
        return narrow

    @cached_property
    def _narrow_mask(self) -> NDArray[np.float32]:
        """Memory for masks of fewer slots; one is in use at a time."""
        return np.zeros(self.mask.size, np.float32)

    def before_run(self) -> None:
        """Update what graphs read in another form than it is written; nothing here."""

    @cached_property
    def inputs(self) -> StepInputs:
        """The core's view, which fills ids, positions and mask."""
        return StepInputs(self.input_ids, self.position_ids, self.mask)


def ort_value(array: NDArray[np.generic]) -> onnxruntime.OrtValue:
    """`array` as ONNX Runtime reads and writes it: the same memory."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)
