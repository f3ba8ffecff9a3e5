"""What the graphs of a target read and write in one run.

The arrays are ONNX Runtime's own inputs and outputs: nothing is copied. Ids, positions, and paths
(on CPU) or a mask (on an NPU) are filled by the core (`StepInputs`), the rest by whoever runs the
blocks (`forward.py`).
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs
from coordgen_rs.bundle.manifest import Manifest
from coordgen_rs.runtime.graph_shapes import row_sizes
from coordgen_rs.runtime.kv_cache import KvCache


class Buffers:
    """What the graphs read and write in one run.

    Args:
        input_ids: `(rows,) i64`.
        position_ids: `(rows,) i64`.
        by_row: What the graphs read beside hidden states, by name, each `(1, 1, rows, size)`: `cos`
            and `sin`; `window_cos`, `window_sin`, where layers with a sliding window have their
            own; `query_scale`, where queries grow with their position; `embedded` and `per_layer`,
            where layers have embeddings; and where there are no paths the additive `mask` with a
            column per slot.
        hidden: Two of `(1, rows, hidden_size) f32`, between which the hidden states go back and
            forth from block to block.
        path: What a row descends from, by name: `parents` and `sequences` `(slots,) i32`,
            `lengths` `(sequences,) i32`, `span` `(2,) i32`; None where there is a mask.
        cache: What the graphs write, where it is not the blocks' own.

    Attributes:
        cache: The `cache` argument.
        rows: Number of tokens of a run.
        is_part: Whether it is a part of a chunk, whose rows later parts see.
        write_index: `(1,) i64`, the slot of row 0; where there is a path, that tells it, too.
        values: What a graph may read beside hidden states and caches, by the name of its input.
    """

    def __init__(
        self,
        input_ids: NDArray[np.int64],
        position_ids: NDArray[np.int64],
        by_row: Mapping[str, NDArray[Any]],
        hidden: tuple[NDArray[Any], NDArray[Any]],
        path: Mapping[str, NDArray[np.int32]] | None = None,
        cache: KvCache | None = None,
    ) -> None:
        self.rows, self.is_part, self.cache = len(input_ids), False, cache
        self.input_ids, self.position_ids = input_ids, position_ids
        self.by_row, self.hidden, self.path = by_row, hidden, path
        self.write_index = np.zeros(1, np.int64)
        # ONNX Runtime reads the arrays' own memory: the OrtValues hold no copy on CPU.
        arrays: dict[str, NDArray[np.generic]] = {
            "input_ids": input_ids[np.newaxis],
            "position_ids": position_ids[np.newaxis],
            **by_row,
            **(path or {}),
        }
        self.values = {name: ort_value(array) for name, array in arrays.items()}
        self.hidden_values = [ort_value(array) for array in hidden]

    @classmethod
    def empty(cls, rows: int, manifest: Manifest, cache: KvCache | None = None) -> "Buffers":
        """New buffers for `rows` tokens, of as many sequences as there are in `cache`."""
        hidden = (1, rows, manifest.model.hidden_size)
        num_nodes = max(rows, manifest.slots)
        path = {"parents": num_nodes, "sequences": num_nodes, "span": 2}
        path["lengths"] = 1 if cache is None else cache.num_sequences
        return cls(
            np.zeros(rows, np.int64),
            np.zeros(rows, np.int64),
            {
                name: np.zeros((1, 1, rows, size), np.float32)
                for name, size in row_sizes(manifest).items()
            },
            (np.zeros(hidden, np.float32), np.zeros(hidden, np.float32)),
            {name: np.zeros(size, np.int32) for name, size in path.items()},
            cache,
        )

    def part(self, first: int, rows: int) -> "Buffers":
        """The buffers of some consecutive rows: views, but for what `before_run` makes.

        The write index is the part's own, and so is the span, which `show_part` fills.
        """
        some = slice(first, first + rows)
        one, other = self.hidden
        part = self._of(
            self.input_ids[some],
            self.position_ids[some],
            {name: array[:, :, some] for name, array in self.by_row.items()},
            (one[:, some], other[:, some]),
            self.path and {**self.path, "span": np.zeros(2, np.int32)},
            self.cache,
        )
        part.is_part = True
        return part

    def show_part(self, first: int, num_rows: int) -> None:
        """Fill the span of a part, whose rows begin at `first` of `num_rows` that are filled."""
        if self.path is not None:
            self.path["span"][:] = first, min(num_rows - first, self.rows)

    def _of(self, *arrays: Any) -> "Buffers":
        """Buffers of the same kind."""
        return Buffers(*arrays)

    def before_run(self) -> None:
        """Update what graphs read in another form than it is written; nothing here."""

    @cached_property
    def inputs(self) -> StepInputs:
        """The core's view, which fills ids, positions, and a path or a mask."""
        ids, positions = self.input_ids, self.position_ids
        if self.path is None:
            return StepInputs(ids, positions, self.by_row["mask"])
        path = self.path["parents"], self.path["lengths"], self.path["span"]
        return StepInputs(ids, positions, path=path)


def ort_value(array: NDArray[np.generic]) -> onnxruntime.OrtValue:
    """`array` as ONNX Runtime reads and writes it: the same memory."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)
