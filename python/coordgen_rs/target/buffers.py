"""What the graphs of a target read and write in one run.

The arrays are ONNX Runtime's own inputs and outputs: nothing is copied. Ids, positions and mask are
filled by the core (`StepInputs`), the rest by whoever runs the blocks (`forward.py`).
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs
from coordgen_rs.bundle.manifest import Manifest
from coordgen_rs.target.graph_shapes import MASKS, row_sizes


class Buffers:
    """What the graphs read and write in one run.

    Args:
        input_ids: `(rows,) i64`.
        position_ids: `(rows,) i64`.
        by_row: What the graphs read beside hidden states, by name, each `(1, 1, rows, size)`: the
            additive `mask` with a column per slot, `cos` and `sin`; and `window_mask`,
            `window_cos`, `window_sin`, where layers with a sliding window have their own.
        hidden: Two of `(1, rows, hidden_size) f32`, between which the hidden states go back and
            forth from block to block.
        window: Tokens that `window_mask` shows; None without one.

    Attributes:
        rows: Number of tokens of a run.
        is_part: Whether it is a part of a chunk, whose rows later parts see.
        mask: The one in `by_row`.
        write_index: `(1,) i64`, the slot of row 0.
        values: What a graph may read beside hidden states and caches, by the name of its input.
    """

    def __init__(
        self,
        input_ids: NDArray[np.int64],
        position_ids: NDArray[np.int64],
        by_row: Mapping[str, NDArray[Any]],
        hidden: tuple[NDArray[Any], NDArray[Any]],
        window: int | None = None,
    ) -> None:
        self.rows, self.is_part = len(input_ids), False
        self.input_ids, self.position_ids = input_ids, position_ids
        self.by_row, self.hidden, self.window = by_row, hidden, window
        self.mask: NDArray[np.float32] = by_row["mask"]
        self.write_index = np.zeros(1, np.int64)
        self._attending: dict[int, Buffers] = {}
        # ONNX Runtime reads the arrays' own memory: the OrtValues hold no copy on CPU.
        arrays: dict[str, NDArray[np.generic]] = {
            "input_ids": input_ids[np.newaxis],
            "position_ids": position_ids[np.newaxis],
            "write_index": self.write_index,
            **by_row,
        }
        self.values = {name: ort_value(array) for name, array in arrays.items()}
        self.hidden_values = [ort_value(array) for array in hidden]

    @classmethod
    def empty(cls, rows: int, manifest: Manifest) -> "Buffers":
        """New buffers for `rows` tokens."""
        hidden = (1, rows, manifest.model.hidden_size)
        return cls(
            np.zeros(rows, np.int64),
            np.zeros(rows, np.int64),
            {
                name: np.zeros((1, 1, rows, size), np.float32)
                for name, size in row_sizes(manifest).items()
            },
            (np.zeros(hidden, np.float32), np.zeros(hidden, np.float32)),
            manifest.window,
        )

    def part(self, first: int, rows: int) -> "Buffers":
        """The buffers of some consecutive rows: views, but for what `before_run` makes.

        The write index is the part's own, too.
        """
        part = self._of(*self._views(slice(first, first + rows)))
        part.is_part = True
        return part

    def _of(self, *arrays: Any) -> "Buffers":
        """Buffers of the same kind."""
        return Buffers(*arrays)

    def _views(self, some: slice) -> tuple[Any, ...]:
        """The constructor's arguments for some rows."""
        one, other = self.hidden
        return (
            self.input_ids[some],
            self.position_ids[some],
            {name: array[:, :, some] for name, array in self.by_row.items()},
            (one[:, some], other[:, some]),
            self.window,
        )

    def attending(self, num_slots: int) -> "Buffers":
        """The same, with only the masks of the first slots as they are now; the rest is shared."""
        if num_slots == self.mask.shape[-1]:
            return self
        if num_slots not in self._attending:
            shape = (1, 1, self.rows, num_slots)
            masks = {
                name: memory[: self.rows * num_slots].reshape(shape)
                for name, memory in self._narrow_masks.items()
            }
            by_row = {**self.by_row, **masks}
            narrow = Buffers(self.input_ids, self.position_ids, by_row, self.hidden, self.window)
            narrow.write_index = self.write_index
            narrow.values["write_index"] = self.values["write_index"]
            self._attending[num_slots] = narrow
        narrow = self._attending[num_slots]
        for name in self._narrow_masks:
            narrow.by_row[name][:] = self.by_row[name][..., :num_slots]
        return narrow

    @cached_property
    def _narrow_masks(self) -> dict[str, NDArray[np.float32]]:
        """Memory for masks of fewer slots, by name; one number of slots is in use at a time."""
        names = [name for name in MASKS if name in self.by_row]
        return {name: np.zeros(self.mask.size, np.float32) for name in names}

    def before_run(self) -> None:
        """Update what graphs read in another form than it is written; nothing here."""

    @cached_property
    def inputs(self) -> StepInputs:
        """The core's view, which fills ids, positions and masks."""
        return StepInputs(
            self.input_ids,
            self.position_ids,
            self.mask,
            window_mask=self.by_row.get("window_mask"),
            window=self.window,
        )


def ort_value(array: NDArray[np.generic]) -> onnxruntime.OrtValue:
    """`array` as ONNX Runtime reads and writes it: the same memory."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)
