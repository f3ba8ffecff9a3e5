"""The parts of a model in a bundle of Genie: each a session for every width, and its logits.

In: filled buffers and the cache. Out: integers, as the graphs give them. Graphs that share a binary
share its weights, too: the first session loads the binary, further ones find their graphs in it.
"""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.bundle.fixed_point import Encoding
from coordgen_rs.errors import ProviderError
from coordgen_rs.formats.genie.binary.parts import PartGraph
from coordgen_rs.formats.genie.binary.wrapper import wrapper
from coordgen_rs.formats.genie.buffers import GenieBuffers
from coordgen_rs.formats.genie.folder import GenieFolder
from coordgen_rs.runtime.blocks import GRAPHS, GraphName
from coordgen_rs.runtime.buffers import Buffers, ort_value
from coordgen_rs.runtime.qnn.blocks import QnnBlocks
from coordgen_rs.runtime.qnn.kv_cache import IntegerCache
from coordgen_rs.runtime.qnn.onnx_runtime import is_emulator, qnn_session
from coordgen_rs.runtime.qnn.options import QnnOptions, Soc


class GenieBlocks(QnnBlocks):
    """All parts of a model; none is loaded at first.

    Args:
        folder: An opened bundle.
        soc: The chip.
        cache: Keys and values that the graphs read.
        options: How to run.
    """

    def __init__(
        self, folder: GenieFolder, soc: Soc, cache: IntegerCache, options: QnnOptions
    ) -> None:
        super().__init__(folder, soc, cache, options)
        # The graph for chunks is also one of those for steps, so the second of a pair is there.
        self.is_shared = True
        self._folder = folder
        self._logits: NDArray[Any] = np.zeros((0, folder.model.vocab_size), np.uint16)

    def run(self, block: int, graph: GraphName, buffers: Buffers) -> None:
        """Compute one part: hidden states or logits, keys and values of all rows of `buffers`.

        Raises:
            DeviceLostError: The device failed.
        """
        super().run(block, graph, buffers)
        if block == len(self) - 1:
            self._logits = cast(GenieBuffers, buffers).logits

    def _name(self, block: int) -> str:
        return f"part {block + 1}"

    def last_logits(self) -> NDArray[Any]:
        """Integers of the last run's logits, `(rows, vocab_size)`, valid until the next run."""
        return self._logits

    def _sessions(self, block: int, graph: GraphName) -> dict[int, onnxruntime.InferenceSession]:
        there: dict[int, onnxruntime.InferenceSession] = {}
        for other in GRAPHS:
            loaded = self._loaded.get((block, other))
            there |= {} if loaded is None else loaded.sessions
        part = self._folder.model.parts[block]
        return {
            rows: there[rows] if rows in there else self._session(part[rows])
            for rows in self._widths[graph]
        }

    def _session(self, graph: PartGraph) -> onnxruntime.InferenceSession:
        """The session of a graph.

        Raises:
            ProviderError: The provider cannot load it; the message names the file.
        """
        path = self._folder.file(graph.file)
        entries = {"ep.context_file_path": str(path.with_suffix(".onnx"))}
        if self._folder.shares(graph.file):
            if is_emulator():  # it would end the process
                raise ProviderError(
                    f"{path} holds several graphs, which the HTP emulator cannot load; a device can"
                )
            entries["ep.share_ep_contexts"] = "1"
        return qnn_session(path, self._soc, self._options, entries, wrapper(graph))

    def _bind(
        self, block: int, session: onnxruntime.InferenceSession, buffers: Buffers
    ) -> onnxruntime.IOBinding:
        own = cast(GenieBuffers, buffers)
        graph = self._folder.model.parts[block][buffers.rows]
        binding = session.io_binding()
        for name in graph.facts.inputs:
            if name in own.values:
                binding.bind_ortvalue_input(name, own.values[name])
        if graph.hidden_in is not None:
            shape = graph.facts.inputs[graph.hidden_in].shape
            binding.bind_ortvalue_input(graph.hidden_in, own.hidden_value(block % 2, shape))
        if block == len(self) - 1:
            binding.bind_ortvalue_output(graph.out, own.logits_value)
        else:
            after = own.hidden_value((block + 1) % 2, graph.facts.outputs[graph.out].shape)
            binding.bind_ortvalue_output(graph.out, after)
        for layer in graph.keys:
            self._bind_layer(binding, layer, own)
        return binding

    def _bind_layer(self, binding: onnxruntime.IOBinding, layer: int, buffers: Buffers) -> None:
        rows = buffers.rows
        graph = next(p[rows] for p in self._folder.model.parts if layer in p[rows].keys)
        pasts, news = self._cache.past(rows)[layer], self._cache.new_rows(rows)[layer]
        for tensors, past, new in zip((graph.keys, graph.values), pasts, news, strict=True):
            names, heads = tensors[layer], len(tensors[layer].past)
            for name, array in zip(names.past, np.split(past, heads), strict=True):
                binding.bind_ortvalue_input(name, ort_value(array))
            for name, array in zip(names.new, np.split(new, heads), strict=True):
                binding.bind_ortvalue_output(name, ort_value(array))


class GenieHead:
    """The logits that the last part has left: there is no head of its own.

    Args:
        blocks: The parts.
        encoding: The encoding of the logits.
        rows: Most rows of a run.
        vocab_size: Number of logits of a row.
    """

    def __init__(self, blocks: GenieBlocks, encoding: Encoding, rows: int, vocab_size: int) -> None:
        self._blocks, self._encoding = blocks, encoding
        self._logits = np.zeros((rows, vocab_size), np.float32)

    def step(self, rows: int) -> NDArray[np.float32]:
        """Logits `(rows, vocab_size) f32` after a decode step, valid until the next."""
        integers, logits = self._blocks.last_logits()[:rows], self._logits[:rows]
        # As `Encoding.dequantize`, without arrays in between: these are large.
        logits[:] = integers
        logits -= np.float32(self._encoding.zero_point)
        logits *= np.float32(self._encoding.scale)
        return logits

    def chunk(self, buffers: Buffers, num_rows: int) -> Iterator[NDArray[np.float32]]:
        """Logits of the first rows of a chunk."""
        yield self.step(num_rows)

    def release(self) -> None:
        """Does nothing: the last part goes with the others."""
