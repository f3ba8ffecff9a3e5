"""The head of a bundle on CPU: final norm and output layer, a session of its own.

In: the hidden states that the last block leaves in its buffers. Out: logits. Those of a chunk
are computed in parts with the graph of a decode step, so no other head is loaded, and the logits of
a whole chunk are never in memory.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.runtime.blocks import Blocks, Bound, load_graph
from coordgen_rs.runtime.buffers import Buffers, ort_value
from coordgen_rs.runtime.graph_shapes import check_head
from coordgen_rs.threads.native import run_native


class Head(Protocol):
    """The head's graphs of all decode widths."""

    def step(self, rows: int) -> NDArray[np.float32]:
        """Logits `(rows, vocab_size) f32` after a decode step, valid until the next."""

    def chunk(self, buffers: Buffers, num_rows: int) -> Iterator[NDArray[np.float32]]:
        """Logits of the first rows of a chunk, in parts that are valid until the next."""

    def release(self) -> None:
        """Drop all graphs; it cannot run any more."""


class CpuHead:
    """The head's graphs of all decode widths, always loaded.

    Args:
        bundle: An opened bundle.
        blocks: Those that compute the hidden states.
        steps: The buffers of all decode widths.

    Raises:
        BundleError: ONNX Runtime cannot load a graph, or it is not the one of the manifest.
    """

    def __init__(self, bundle: Bundle, blocks: Blocks, steps: Sequence[Buffers]) -> None:
        self._blocks, self._files = blocks, bundle.manifest.head.graphs
        self._sessions: dict[str, onnxruntime.InferenceSession] = {}
        self._bound: dict[int, Bound] = {}
        widest = max(buffers.rows for buffers in steps)
        self._logits = np.zeros((widest, bundle.manifest.model.vocab_size), np.float32)
        for buffers in steps:
            file = self._files[buffers.rows]
            if file not in self._sessions:
                self._sessions[file] = self._session(bundle, file)
                check_head(self._sessions[file], bundle.file(file), bundle.manifest.model)
            hidden = blocks.hidden_out(buffers)
            self._bound[buffers.rows] = self._sessions[file], self._bind(file, hidden, buffers.rows)
        self._parts: list[tuple[int, int, onnxruntime.IOBinding]] = []

    def release(self) -> None:
        """Drop all graphs; it cannot run any more."""
        self._sessions.clear()
        self._bound.clear()
        self._parts.clear()

    def _session(self, bundle: Bundle, file: str) -> onnxruntime.InferenceSession:
        """The session of a file; raises BundleError if ONNX Runtime cannot load it."""
        return load_graph(bundle, file)

    def _bind(self, file: str, hidden: NDArray[np.float32], rows: int) -> onnxruntime.IOBinding:
        binding = self._sessions[file].io_binding()
        binding.bind_ortvalue_input("hidden", ort_value(hidden))
        binding.bind_ortvalue_output("logits", ort_value(self._logits[np.newaxis, :rows]))
        return binding

    def step(self, rows: int) -> NDArray[np.float32]:
        """Logits `(rows, vocab_size) f32` after a decode step, valid until the next."""
        session, binding = self._bound[rows]
        run_native(session.run_with_iobinding, binding)
        return self._logits[:rows]

    def chunk(self, buffers: Buffers, num_rows: int) -> Iterator[NDArray[np.float32]]:
        """Logits of the first rows of a chunk, in parts that are valid until the next."""
        rows = max(rows for rows in self._bound if rows <= buffers.rows)
        file = self._files[rows]
        if not self._parts:  # bound when a chunk's logits are first asked for
            hidden = self._blocks.hidden_out(buffers)
            for start in range(0, buffers.rows, rows):
                first = min(start, buffers.rows - rows)
                part = hidden[:, first : first + rows]
                self._parts.append((start, first, self._bind(file, part, rows)))
        for start, first, binding in self._parts:
            if start < num_rows:
                run_native(self._sessions[file].run_with_iobinding, binding)
                yield self._logits[:rows][start - first : num_rows - first]
