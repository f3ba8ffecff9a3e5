"""What a backend is: a `Device` runs the graphs of a bundle on one provider, for an `OrtSession`.

In: a bundle, and buffers that are filled. Out: hidden states from block to block, keys and values
in a cache, logits. A device decides neither what is computed (`forward.py`, `ort_session.py`) nor
when graphs are loaded (`_core.Switcher`, to which it is the store).

A new backend is a subclass of `Device` that hands its bundle and its cache to `__init__`, says of
itself `provider`, `is_host`, `allowed_commits` and, if need be, `reads_tokens`, and writes:

`buffers(rows)`: what its graphs of so many rows read and write, a `Buffers`. Token ids and
    positions are int64; how the rest is read, and whether paths or a mask tell what a row sees, is
    its own.
`rope_tables()`: by the name of a graph's input a table `(positions, size)`, in the type that its
    buffers have in `by_row`.
`open_graph(block, rows)`: a session of ONNX Runtime for `rows` rows, of the head for None. A graph
    reads `hidden (1, rows, hidden_size)`, the buffers' `values` by their names, and what
    `bind_layer` binds; it gives `hidden_out` of the same shape, the head `logits (1, rows,
    vocab_size)`. Raises BundleError or ProviderError that names the file.
`bind_layer(binding, layer, buffers)`: binds a layer's keys and values, or states. They are written
    behind the committed tokens; nothing else of the cache may change in a run.
`name_failure(error, block)`: raises what a run of a block, or of the head for None, has failed with
    under a name of `coordgen_rs.errors`; DeviceLostError closes the session. It returns where there
    is no such name: then ONNX Runtime's own error is raised.

It may also change `run`, to prepare a run or to take what it has given; `bind`, where its graphs
have other inputs; `logits`, which are always float32; `load_head`, where the last block gives them.
What depends on an installation is told by `installed`, `is_emulator`, `conditions` and `facts`.
It is made of a bundle, and of `share_graphs` and `kv_cache` where it is the host, else of `soc`,
`options` and `recompile` (`loading/directory.py`). The table that names it is in
`loading/directory.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs._core import SimulatedClock, StepInputs
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.runtime.caches.kv_cache import Cache, KvCache
from coordgen_rs.runtime.experts import ExpertFiles
from coordgen_rs.runtime.onnx_runtime import ort_value, run_native

GraphName = Literal["prefill", "decode"]
"""G1, for chunks of `prefill_rows` tokens, or G2, for every width up to `decode_rows`."""

GRAPHS: tuple[GraphName, GraphName] = ("prefill", "decode")

Bound = tuple[onnxruntime.InferenceSession, onnxruntime.IOBinding]
"""A session, and what it reads and writes."""

_OTHER: dict[GraphName, GraphName] = {"prefill": "decode", "decode": "prefill"}


class Buffers:
    """What the graphs read and write in one run.

    The arrays are ONNX Runtime's own inputs and outputs: nothing is copied. Ids, positions, and
    paths or a mask are filled by the core (`StepInputs`), the rest by whoever runs the blocks
    (`forward.py`).

    Args:
        input_ids: `(rows,) i64`.
        position_ids: `(rows,) i64`.
        by_row: What the graphs read beside hidden states, by name, each `(1, 1, rows, size)`: `cos`
            and `sin`; `window_cos`, `window_sin`, where layers with a sliding window have their
            own; `query_scale`, where queries grow with their position; `embedded` and `per_layer`,
            where layers have embeddings; and where there are no paths the additive `mask` with a
            column per slot.
        hidden: Two of `(1, rows, hidden_size)`, between which the hidden states go back and forth
            from block to block.
        path: What a row descends from, by name: `parents` and `sequences` `(slots,) i32`,
            `lengths` `(sequences,) i32`, `span` `(2,) i32`; None where there is a mask.
        cache: What the graphs write, where it is not the device's own.

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

    def copy_inputs_to(self, wide: "Buffers", block: int) -> None:
        """Have a wider run of a block read what this one would."""
        rows = slice(self.rows)
        wide.write_index[:] = self.write_index
        wide.input_ids[rows], wide.position_ids[rows] = self.input_ids, self.position_ids
        wide.hidden[block % 2][:, rows] = self.hidden[block % 2]
        for name, array in self.by_row.items():
            wide.by_row[name][:, :, rows] = array
        for name, path in (self.path or {}).items():
            (wide.path or {})[name][:] = path

    def copy_outputs_from(self, wide: "Buffers", block: int) -> None:
        """Take what a wider run of a block has given."""
        result = (block + 1) % 2
        self.hidden[result][:] = wide.hidden[result][:, : self.rows]

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


class Device(ABC):
    """A bundle on one provider: blocks and head as ONNX Runtime sessions; none is loaded at first.

    Args:
        bundle: The bundle, as this device runs it.
        cache: Keys and values; the blocks read and write them.
        is_shared: Whether a block's second graph costs nothing once the first one is loaded.

    Attributes:
        bundle: The `bundle` argument.
        cache: The `cache` argument.
        is_shared: The `is_shared` argument.
        provider: Its name in options, such as "cpu".
        is_host: Whether this process computes: then every row takes time, on its own clock.
            Otherwise a run costs about the same however few of its rows are used.
        reads_tokens: Whether the first block reads token ids and positions, not embedded and
            rotated ones.
        allowed_commits: Ways to commit that are allowed: "canonical", and "compact" if it is exact.
        experts: The mixtures of experts that its graphs read; None where it can have none.
        clock: Its time, where that is simulated; None for the system's.
    """

    provider: str
    is_host: bool
    reads_tokens = False
    allowed_commits: Sequence[str] = ("canonical",)
    experts: ExpertFiles | None = None
    clock: SimulatedClock | None = None
    _logits_type: type[np.generic] = np.float32

    def __init__(self, bundle: Bundle, cache: Cache, *, is_shared: bool) -> None:
        self.bundle, self.cache, self.is_shared = bundle, cache, is_shared
        manifest = bundle.manifest
        self._widths: dict[GraphName, list[int]] = {
            "prefill": [manifest.prefill_rows],
            "decode": manifest.decode_widths,
        }
        self.num_blocks = len(manifest.blocks)
        self._loaded: dict[tuple[int, GraphName], _LoadedGraph] = {}
        self._head: dict[int, onnxruntime.InferenceSession] = {}
        self._logits = np.zeros((0, manifest.model.vocab_size), self._logits_type)
        self._head_runs = WeakKeyDictionary[Buffers, dict[int, Bound]]()

    @classmethod
    def installed(cls) -> str:
        """What runs it, with versions, for people.

        Raises:
            ProviderError: It is not installed, or cannot run here.
        """
        return f"onnxruntime {onnxruntime.__version__}"

    @classmethod
    def is_emulator(cls) -> bool:
        """Whether what runs it here only behaves as the device does."""
        return False

    @classmethod
    def conditions(cls, options: Any) -> list[str]:
        """All that may change what it computes, but for the bundle and ONNX Runtime's version.

        Raises:
            ProviderError: It is not installed, or cannot run here.
        """
        return []

    @classmethod
    def facts(cls, bundle: Bundle) -> dict[str, object]:
        """What changes how fast it computes, but for the machine; raises as `conditions` does."""
        return {}

    @abstractmethod
    def buffers(self, rows: int) -> Buffers:
        """New buffers for `rows` tokens."""

    @abstractmethod
    def rope_tables(self) -> dict[str, NDArray[Any]]:
        """Tables by position, as in `Bundle.rope_tables`, as the graphs read them."""

    @abstractmethod
    def open_graph(self, block: int | None, rows: int) -> onnxruntime.InferenceSession:
        """Load the graph of a block for so many rows, or that of the head.

        Raises:
            BundleError: ONNX Runtime cannot load it, or it is not the one of the manifest.
            ProviderError: The provider cannot load it; the message names the file.
        """

    @abstractmethod
    def bind_layer(self, binding: onnxruntime.IOBinding, layer: int, buffers: Buffers) -> None:
        """Bind the keys and values of a layer, or its states."""

    @abstractmethod
    def name_failure(self, error: Exception, block: int | None) -> None:
        """Raise what a run has failed with by a name of its own, if it has one.

        Args:
            error: What ONNX Runtime has raised.
            block: What was run; None for the head.

        Raises:
            BundleError, BundleDamagedError: A graph cannot be run, or a file cannot be read.
            DeviceLostError: The device failed.
        """

    def is_loaded(self, block: int, graph: GraphName) -> bool:
        """Whether this graph of the block can run."""
        return (block, graph) in self._loaded

    def load(self, block: int, graph: GraphName) -> None:
        """Bring a graph into memory; raises the same as `open_graph`."""
        other = self._loaded.get((block, _OTHER[graph])) if self.is_shared else None
        there = {} if other is None else other.sessions
        self._loaded[block, graph] = _LoadedGraph(self._opened(block, self._widths[graph], there))

    def release(self, block: int, graph: GraphName) -> None:
        """Drop a graph of a block; does nothing if it is not loaded."""
        self._loaded.pop((block, graph), None)

    def load_head(self) -> None:
        """Load the head for all decode widths, anew if it is there; raises as `open_graph` does."""
        self._head = self._opened(None, self._widths["decode"], {})
        self._head_runs.clear()

    def close(self) -> None:
        """Drop all graphs, and what they read; none can run any more."""
        for block, graph in list(self._loaded):
            self.release(block, graph)
        self._head.clear()
        self._head_runs.clear()

    def run(self, block: int, graph: GraphName, buffers: Buffers) -> None:
        """Compute one block: hidden states, keys and values of all rows of `buffers`.

        Raises:
            Others are those of `name_failure`.
        """
        loaded = self._loaded[block, graph]
        bound = loaded.bound.get(buffers)
        if bound is None:
            session = loaded.session(buffers.rows)
            bound = loaded.bound[buffers] = session, self.bind(block, session, buffers)
        session, binding = bound
        try:
            run_native(session.run_with_iobinding, binding)
        except Exception as error:  # ONNX Runtime raises its own unrelated classes
            self.name_failure(error, block)
            raise

    def logits(self, buffers: Buffers, first: int, end: int) -> NDArray[np.float32]:
        """Logits of some rows of the last run, `(end - first, vocab_size) f32`.

        They are valid until the next call. As many as a decode width has, unless the graph has
        symbolic rows.

        Raises:
            Others are those of `name_failure`.
        """
        runs = None if first else self._head_runs.get(buffers)
        session, binding = (runs and runs.get(end)) or self._bound_head(buffers, first, end)
        try:
            run_native(session.run_with_iobinding, binding)
        except Exception as error:  # ONNX Runtime raises its own unrelated classes
            self.name_failure(error, None)
            raise
        return self._logits[: end - first]

    def chunk_logits(self, buffers: Buffers, num_rows: int) -> Iterator[NDArray[np.float32]]:
        """Logits of the first rows of a chunk, in parts that are valid until the next.

        They are computed with the graph of a decode step, so no other head is loaded, and the
        logits of a whole chunk are never in memory.
        """
        width = max(rows for rows in self._widths["decode"] if rows <= buffers.rows)
        for start in range(0, num_rows, width):
            first = min(start, buffers.rows - width)
            yield self.logits(buffers, first, first + width)[start - first : num_rows - first]

    def hidden_out(self, buffers: Buffers) -> NDArray[Any]:
        """The last block's hidden states, `(1, rows, hidden_size)`."""
        return buffers.hidden[self.num_blocks % 2]

    def bind(
        self, block: int, session: onnxruntime.InferenceSession, buffers: Buffers
    ) -> onnxruntime.IOBinding:
        """All that a block's graph reads and writes."""
        binding = session.io_binding()
        offered = {**buffers.values, "hidden": buffers.hidden_values[block % 2]}
        for argument in session.get_inputs():  # its names are those of its bundle (`open_graph`)
            if argument.name in offered:
                binding.bind_ortvalue_input(argument.name, offered[argument.name])
        binding.bind_ortvalue_output("hidden_out", buffers.hidden_values[(block + 1) % 2])
        for layer in self.bundle.manifest.blocks[block].layers:
            self.bind_layer(binding, layer, buffers)
        return binding

    def graph_file(self, block: int | None, rows: int) -> str:
        """The file of a graph, which is loaded once for all rows that it is for."""
        manifest = self.bundle.manifest
        return (manifest.head if block is None else manifest.blocks[block]).graphs[rows]

    def _opened(
        self,
        block: int | None,
        widths: Sequence[int],
        there: Mapping[int, onnxruntime.InferenceSession],
    ) -> dict[int, onnxruntime.InferenceSession]:
        """The sessions of a graph by rows; those that are there are not loaded again."""
        by_file = {self.graph_file(block, rows): session for rows, session in there.items()}
        for rows in widths:
            file = self.graph_file(block, rows)
            if file not in by_file:
                by_file[file] = self.open_graph(block, rows)
        return {rows: by_file[self.graph_file(block, rows)] for rows in widths}

    def _bound_head(self, buffers: Buffers, first: int, end: int) -> Bound:
        rows = end - first
        if rows > len(self._logits):
            self._logits = np.zeros((rows, self._logits.shape[1]), self._logits_type)
            self._head_runs.clear()
        session = self._head.get(rows) or self._head[max(self._head)]
        binding = session.io_binding()
        binding.bind_ortvalue_input("hidden", ort_value(self.hidden_out(buffers)[:, first:end]))
        binding.bind_ortvalue_output("logits", ort_value(self._logits[np.newaxis, :rows]))
        if not first:  # those of steps; others may begin anywhere
            self._head_runs.setdefault(buffers, {})[end] = session, binding
        return session, binding
