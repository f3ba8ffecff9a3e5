"""The blocks of a bundle: each has two graphs, loaded and released one by one.

In: a bundle, the cache, and buffers. Out: blocks that read the buffers' hidden states and write
them. On CPU keys and values are written in the graph to absolute slots, in place. It decides
neither when graphs are loaded (`_core.Switcher`) nor what is computed (`forward.py`).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from weakref import WeakKeyDictionary

import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import BundleError, ProviderError
from coordgen_rs.runtime.buffers import Buffers
from coordgen_rs.runtime.experts import ExpertFiles
from coordgen_rs.runtime.graph_shapes import check_block
from coordgen_rs.runtime.kv_cache import KvCache
from coordgen_rs.runtime.onnx_runtime import cpu_session, give_small_memory_back
from coordgen_rs.threads.native import run_native

GraphName = Literal["prefill", "decode"]
"""G1, for chunks of `prefill_rows` tokens, or G2, for every width up to `decode_rows`."""

GRAPHS: tuple[GraphName, GraphName] = ("prefill", "decode")

Bound = tuple[onnxruntime.InferenceSession, onnxruntime.IOBinding]
"""A session, and what it reads and writes."""

_OTHER: dict[GraphName, GraphName] = {"prefill": "decode", "decode": "prefill"}


class Blocks(Protocol):
    """All blocks of a bundle, each with two graphs that can be loaded and released."""

    @property
    def is_shared(self) -> bool:
        """Whether a block's second graph costs nothing once the first one is loaded."""

    def __len__(self) -> int:
        """Number of blocks."""

    def is_loaded(self, block: int, graph: GraphName) -> bool:
        """Whether this graph of the block can run."""

    def load(self, block: int, graph: GraphName) -> None:
        """Bring a graph into memory."""

    def release(self, block: int, graph: GraphName) -> None:
        """Drop a graph; does nothing if it is not loaded."""

    def run(self, block: int, graph: GraphName, buffers: Buffers) -> None:
        """Compute one block: hidden states, keys and values of all rows of `buffers`."""

    def hidden_out(self, buffers: Buffers) -> NDArray[Any]:
        """The last block's hidden states, `(1, rows, hidden_size)`."""


@dataclass
class _LoadedGraph:
    """A block under one graph: sessions by number of rows, and the runs bound to them.

    A run is bound as long as there are its buffers.
    """

    sessions: dict[int, onnxruntime.InferenceSession]
    bound: WeakKeyDictionary[Buffers, Bound] = field(default_factory=WeakKeyDictionary)

    def session(self, rows: int) -> onnxruntime.InferenceSession:
        """The session of so many rows; where no graph is made for them, one with symbolic rows."""
        return self.sessions.get(rows) or self.sessions[max(self.sessions)]


class OrtBlocks(ABC):
    """All blocks of a bundle as ONNX Runtime sessions; none is loaded at first.

    Args:
        bundle: An opened bundle.
        is_shared: Whether a block's second graph costs nothing once the first one is loaded.
    """

    def __init__(self, bundle: Bundle, *, is_shared: bool) -> None:
        self._bundle, self.is_shared = bundle, is_shared
        self._widths: dict[GraphName, list[int]] = {
            "prefill": [bundle.manifest.prefill_rows],
            "decode": bundle.manifest.decode_widths,
        }
        self._loaded: dict[tuple[int, GraphName], _LoadedGraph] = {}

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self._bundle.manifest.blocks)

    def is_loaded(self, block: int, graph: GraphName) -> bool:
        """Whether this graph of the block can run."""
        return (block, graph) in self._loaded

    def load(self, block: int, graph: GraphName) -> None:
        """Bring a graph into memory.

        Raises:
            BundleError: ONNX Runtime cannot load it.
            ProviderError: The provider cannot; the message names the file.
        """
        self._loaded[block, graph] = _LoadedGraph(self._sessions(block, graph))

    def release(self, block: int, graph: GraphName) -> None:
        """Drop a graph; does nothing if it is not loaded."""
        self._loaded.pop((block, graph), None)

    @abstractmethod
    def run(self, block: int, graph: GraphName, buffers: Buffers) -> None:
        """Compute one block: hidden states, keys and values of all rows of `buffers`."""

    def hidden_out(self, buffers: Buffers) -> NDArray[Any]:
        """The last block's hidden states, `(1, rows, hidden_size)`."""
        return buffers.hidden[len(self) % 2]

    @abstractmethod
    def _sessions(self, block: int, graph: GraphName) -> dict[int, onnxruntime.InferenceSession]:
        """The sessions of a graph, by number of rows; raises the same as `load`."""

    @abstractmethod
    def _bind_layer(self, binding: onnxruntime.IOBinding, layer: int, buffers: Buffers) -> None:
        """Bind the keys and values of a layer, or its states."""

    def _bound(self, block: int, graph: GraphName, buffers: Buffers) -> Bound:
        """The session for `buffers`, with all that it reads and writes."""
        loaded = self._loaded[block, graph]
        bound = loaded.bound.get(buffers)
        if bound is None:
            session = loaded.session(buffers.rows)
            bound = loaded.bound[buffers] = session, self._bind(block, session, buffers)
        return bound

    def _bind(
        self, block: int, session: onnxruntime.InferenceSession, buffers: Buffers
    ) -> onnxruntime.IOBinding:
        binding = session.io_binding()
        offered = {**buffers.values, "hidden": buffers.hidden_values[block % 2]}
        for argument in session.get_inputs():  # its names are those of its bundle (`_sessions`)
            if argument.name in offered:
                binding.bind_ortvalue_input(argument.name, offered[argument.name])
        binding.bind_ortvalue_output("hidden_out", buffers.hidden_values[(block + 1) % 2])
        for layer in self._bundle.manifest.blocks[block].layers:
            self._bind_layer(binding, layer, buffers)
        return binding


class CpuBlocks(OrtBlocks):
    """All blocks of a bundle on ONNX Runtime's CPU provider.

    Args:
        bundle: An opened bundle.
        cache: The keys and values, and the states, that the graphs write.
        experts: The mixtures of experts that they read; None maps them here.
        share: Whether two graphs of a block that are one file are loaded once, so that the second
            one costs nothing. Otherwise they are loaded separately, as on an NPU.
    """

    def __init__(
        self,
        bundle: Bundle,
        cache: KvCache,
        experts: ExpertFiles | None = None,
        *,
        share: bool = True,
    ) -> None:
        super().__init__(bundle, is_shared=share)
        self._experts = experts or ExpertFiles(bundle)
        self._cache, self._cached_layers = cache, bundle.manifest.cached_layers

    def release(self, block: int, graph: GraphName) -> None:
        """Drop a graph; does nothing if it is not loaded."""
        if self.is_loaded(block, graph):
            super().release(block, graph)
            give_small_memory_back()

    def run(self, block: int, graph: GraphName, buffers: Buffers) -> None:
        """Compute one block: hidden states, keys and values of all rows of `buffers`.

        Raises:
            BundleDamagedError: A file of experts cannot be read any more; the message names it.
        """
        session, binding = self._bound(block, graph, buffers)
        try:
            run_native(session.run_with_iobinding, binding)
        except Exception as error:  # ONNX Runtime raises its own unrelated classes
            self._experts.name_failure(error)
            raise

    def _sessions(self, block: int, graph: GraphName) -> dict[int, onnxruntime.InferenceSession]:
        files = self._bundle.manifest.blocks[block].graphs
        other = self._loaded.get((block, _OTHER[graph])) if self.is_shared else None
        there = {} if other is None else other.sessions
        by_file = {files[rows]: session for rows, session in there.items()}
        for rows in self._widths[graph]:
            if files[rows] not in by_file:
                by_file[files[rows]] = self._session(block, files[rows])
        return {rows: by_file[files[rows]] for rows in self._widths[graph]}

    def _session(self, block: int, file: str) -> onnxruntime.InferenceSession:
        """The session of a block's file.

        Raises:
            BundleError: ONNX Runtime cannot load it, or it is not the one of the manifest.
        """
        session, manifest = load_graph(self._bundle, file), self._bundle.manifest
        check_block(session, self._bundle.file(file), manifest.blocks[block], manifest)
        return session

    def _bind_layer(self, binding: onnxruntime.IOBinding, layer: int, buffers: Buffers) -> None:
        cache = buffers.cache or self._cache
        states, writes = cache.state_arrays, layer
        if states is None or layer not in states.values:
            writes = self._bundle.manifest.cache_of(layer).written_by
            pair = cache.values[self._cached_layers.index(writes)]
            kept = {f"key_{writes}": pair[0], f"value_{writes}": pair[1]}
        else:
            kept = states.values[layer]
            for name, value in states.run_values.items():
                binding.bind_ortvalue_input(name, value)
        for name, value in self._experts.inputs(layer).items():
            binding.bind_ortvalue_input(name, value)
        for name, value in kept.items():
            binding.bind_ortvalue_input(name, value)
            if writes == layer:
                binding.bind_ortvalue_output(f"{name}_out", value)


def load_graph(bundle: Bundle, file: str) -> onnxruntime.InferenceSession:
    """The loaded graph of a file of the bundle.

    Raises:
        BundleError: ONNX Runtime cannot load it.
        ProviderError: It cannot load the kernels that all graphs need.
    """
    path = bundle.file(file)
    try:
        return cpu_session(path)
    except ProviderError:
        raise
    except Exception as error:  # ONNX Runtime raises its own unrelated classes
        raise BundleError(f"{path}: ONNX Runtime cannot load it: {error}") from error
