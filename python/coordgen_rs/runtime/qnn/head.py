"""The head of a bundle on Qualcomm's HTP: final norm and output layer, a session of its own.

In: the hidden states that the last block leaves in its buffers. Out: logits as real numbers. Those
of a chunk are computed in parts with the graph of a decode step, as on CPU (`runtime/head.py`).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.fixed_point import Encoding
from coordgen_rs.runtime.blocks import Blocks, Bound
from coordgen_rs.runtime.buffers import Buffers, ort_value
from coordgen_rs.runtime.qnn.blocks import load_qnn_graph, run_bound
from coordgen_rs.runtime.qnn.options import QnnOptions, Soc


class QnnHead:
    """The head's graphs of all decode widths, always loaded.

    Args:
        bundle: An opened bundle.
        blocks: Those that compute the hidden states.
        steps: The buffers of all decode widths.
        soc: The chip.
        options: How to compile and run.
        encoding: The encoding of the logits.
    """

    def __init__(
        self,
        bundle: Bundle,
        blocks: Blocks,
        steps: Sequence[Buffers],
        soc: Soc,
        options: QnnOptions,
        encoding: Encoding,
    ) -> None:
        model, files = bundle.manifest.model, bundle.manifest.head.graphs
        self._blocks, self._encoding = blocks, encoding
        self._steps = {buffers.rows: buffers for buffers in steps}
        self._hidden: dict[int, NDArray[Any]] = {}
        self._logits: dict[int, NDArray[Any]] = {}
        self._bound: dict[int, Bound] = {}
        for rows in self._steps:
            session = load_qnn_graph(bundle, files[rows], soc, options)
            self._hidden[rows] = np.zeros((1, rows, model.hidden_size), np.uint16)
            self._logits[rows] = np.zeros((1, rows, model.vocab_size), np.uint16)
            binding = session.io_binding()
            binding.bind_ortvalue_input("hidden", ort_value(self._hidden[rows]))
            binding.bind_ortvalue_output("logits", ort_value(self._logits[rows]))
            self._bound[rows] = session, binding

    def release(self) -> None:
        """Drop all graphs."""
        self._bound.clear()

    def step(self, rows: int) -> NDArray[np.float32]:
        """Logits `(rows, vocab_size) f32` after a decode step.

        Raises:
            DeviceLostError: The device failed.
        """
        return self._run(rows, self._blocks.hidden_out(self._steps[rows]))

    def chunk(self, buffers: Buffers, num_rows: int) -> Iterator[NDArray[np.float32]]:
        """Logits of the first rows of a chunk, in parts; raises DeviceLostError as `step` does."""
        rows = max(rows for rows in self._steps if rows <= buffers.rows)
        hidden = self._blocks.hidden_out(buffers)
        for start in range(0, num_rows, rows):
            first = min(start, buffers.rows - rows)
            logits = self._run(rows, hidden[:, first : first + rows])
            yield logits[start - first : num_rows - first]

    def _run(self, rows: int, hidden: NDArray[Any]) -> NDArray[np.float32]:
        self._hidden[rows][:] = hidden
        run_bound(self._bound[rows], "the head")
        return self._encoding.dequantize(self._logits[rows][0])
