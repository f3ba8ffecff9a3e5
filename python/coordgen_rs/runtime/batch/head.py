"""The head over the rows of a batch: those that decode, and those of prompts whose logits are read.

In: the hidden states that the last block leaves. Out: logits. Whose rows they are is not known
here.
"""

from collections.abc import Iterator

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.runtime.blocks import load_graph
from coordgen_rs.runtime.buffers import ort_value
from coordgen_rs.runtime.graph_shapes import check_head
from coordgen_rs.threads.native import run_native

_PART_ROWS = 32
"""Rows of a prompt whose logits are in memory at a time."""


class BatchHead:
    """The head's graph, for any rows.

    Args:
        bundle: An opened bundle.
        most_rows: Most rows that decode.

    Raises:
        BundleError: ONNX Runtime cannot load it, or it is not the one of the manifest.
    """

    def __init__(self, bundle: Bundle, most_rows: int) -> None:
        manifest = bundle.manifest
        file = manifest.head.graphs[manifest.decode_rows]
        self._session: onnxruntime.InferenceSession | None = load_graph(bundle, file)
        check_head(self._session, bundle.file(file), manifest.model)
        vocab_size = manifest.model.vocab_size
        self._logits = np.zeros((most_rows, vocab_size), np.float32)
        self._part = np.zeros((_PART_ROWS, vocab_size), np.float32)
        self._bound: dict[int, onnxruntime.IOBinding] = {}

    def first(self, hidden: NDArray[np.float32], num_rows: int) -> NDArray[np.float32]:
        """Logits of the first rows, valid until the next call.

        Args:
            hidden: Hidden states `(1, rows, hidden_size) f32`, always in the same memory.
            num_rows: How many rows.

        Returns:
            `(num_rows, vocab_size) f32`.
        """
        if num_rows:
            if num_rows not in self._bound:
                logits = self._logits[:num_rows]
                self._bound[num_rows] = self._bind(hidden[:, :num_rows], logits)
            self._run(self._bound[num_rows])
        return self._logits[:num_rows]

    def parts(self, hidden: NDArray[np.float32], rows: slice) -> Iterator[NDArray[np.float32]]:
        """Logits of some rows, in parts that are valid until the next; not those of `first`."""
        for start in range(rows.start, rows.stop, _PART_ROWS):
            some = hidden[:, start : min(start + _PART_ROWS, rows.stop)]
            logits = self._part[: some.shape[1]]
            self._run(self._bind(some, logits))
            yield logits

    def release(self) -> None:
        """Drop the graph; it cannot run any more."""
        self._bound.clear()
        self._session = None

    def _run(self, binding: onnxruntime.IOBinding) -> None:
        if self._session is not None:
            run_native(self._session.run_with_iobinding, binding)

    def _bind(
        self, hidden: NDArray[np.float32], logits: NDArray[np.float32]
    ) -> onnxruntime.IOBinding:
        if self._session is None:
            raise RuntimeError("the head is released")
        binding = self._session.io_binding()
        binding.bind_ortvalue_input("hidden", ort_value(hidden))
        binding.bind_ortvalue_output("logits", ort_value(logits[np.newaxis]))
        return binding
