"""What generation needs of a target: the `Session` protocol, and its ONNX Runtime form on CPU."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs
from coordgen_rs.blocks import Buffers, CpuBlocks, GraphName, load_graph, ort_value
from coordgen_rs.bundle import Bundle
from coordgen_rs.errors import OptionError, ShapeError
from coordgen_rs.kv_cache import KvCache
from coordgen_rs.onnx_runtime import set_threads


class Session(Protocol):
    """A target with a cache. After any exception the cache holds exactly the committed tokens."""

    @property
    def length(self) -> int:
        """Number of committed tokens."""

    @property
    def capacity(self) -> int:
        """Number of tokens that the cache can hold."""

    @property
    def vocab_size(self) -> int:
        """Number of columns of the logits."""

    @property
    def end_token_ids(self) -> Sequence[int]:
        """Tokens that end an answer."""

    @property
    def step_inputs(self) -> Sequence[StepInputs]:
        """The input buffers of the decode graphs, one a width, narrowest first."""

    @property
    def step_costs(self) -> Sequence[float] | None:
        """Cost of a step of each width, in one unit of choice; None where all cost the same."""

    def prefill(
        self,
        token_ids: NDArray[np.uint32],
        *,
        on_logits: Callable[[NDArray[np.float32]], None] | None = None,
    ) -> None:
        """Compute and commit the given tokens behind those that are there.

        Args:
            token_ids: `(tokens,) u32`.
            on_logits: Called with the logits `(rows, vocab_size) f32` of the next tokens, several
                times, until all have had theirs; they are valid during the call only. None: nobody
                reads them, and nothing need be computed for them.
        """

    def step(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Run the decode graph that `inputs` belongs to.

        Returns:
            Logits `(rows, vocab_size) f32`, valid until the next call. Nothing is committed.
        """

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Make the given rows of the last step part of the cache, in this order."""

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` committed tokens."""


class _Head:
    """Final norm and output layer: logits of what the last block leaves, on CPU.

    A chunk's hidden states are read part by part with the graph of a decode step: no other head is
    loaded, and no logits as long as a chunk are held.
    """

    def __init__(self, bundle: Bundle, blocks: CpuBlocks, steps: Sequence[Buffers]) -> None:
        self._blocks, self._files = blocks, bundle.manifest.head.graphs
        self._sessions: dict[str, onnxruntime.InferenceSession] = {}
        self._bound: dict[int, tuple[onnxruntime.InferenceSession, onnxruntime.IOBinding]] = {}
        self._logits: dict[int, NDArray[np.float32]] = {}
        for buffers in steps:
            file = self._files[buffers.rows]
            if file not in self._sessions:
                self._sessions[file] = load_graph(bundle, file)
            shape = (buffers.rows, bundle.manifest.model.vocab_size)
            self._logits[buffers.rows] = np.zeros(shape, np.float32)
            hidden = blocks.hidden_out(buffers)
            self._bound[buffers.rows] = self._sessions[file], self._bind(file, hidden, buffers.rows)
        self._parts: list[tuple[int, int, onnxruntime.IOBinding]] = []

    def _bind(self, file: str, hidden: NDArray[np.float32], rows: int) -> onnxruntime.IOBinding:
        binding = self._sessions[file].io_binding()
        binding.bind_ortvalue_input("hidden", ort_value(hidden))
        binding.bind_ortvalue_output("logits", ort_value(self._logits[rows][np.newaxis]))
        return binding

    def step(self, rows: int) -> NDArray[np.float32]:
        """Logits `(rows, vocab_size) f32` after a decode step, valid until the next."""
        session, binding = self._bound[rows]
        session.run_with_iobinding(binding)
        return self._logits[rows]

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
                self._sessions[file].run_with_iobinding(binding)
                yield self._logits[rows][start - first : num_rows - first]


class OrtSession:
    """A bundle on ONNX Runtime's CPU provider.

    Keys and values are written in the graph to absolute slots, in place, so a row's bits depend
    neither on its width nor on the other rows (measured by `coordgen check`).

    Args:
        bundle: An opened bundle.
        threads: Compute threads of the process; None takes one a core.

    Attributes:
        widths: The widths in use, narrowest first; all of the bundle's until `select` is called.

    Raises:
        OptionError: Threads that cannot be set.
        BundleError: A graph cannot be loaded.
    """

    provider = "cpu"

    def __init__(self, bundle: Bundle, *, threads: int | None = None) -> None:
        self.threads = set_threads(threads)
        self.bundle = bundle
        manifest, model = bundle.manifest, bundle.manifest.model
        self.cache = KvCache(model.num_layers, model.num_kv_heads, manifest.slots, model.head_dim)
        self._embedding = bundle.embedding()
        self._cos, self._sin = bundle.rope_tables()
        widths = manifest.decode_widths
        self._decode = {rows: Buffers.empty(rows, model, manifest.slots) for rows in widths}
        self._chunk = Buffers.empty(manifest.prefill_rows, model, manifest.slots)
        self._blocks = CpuBlocks(bundle, self.cache)
        for block in range(len(self._blocks)):
            self._blocks.load(block, "prefill")
            self._blocks.load(block, "decode")
        self._head = _Head(bundle, self._blocks, list(self._decode.values()))
        self.select(widths)

    def select(self, widths: Sequence[int], costs: Sequence[float] | None = None) -> None:
        """Draft and decode with these widths only, at the given costs of a step.

        Raises:
            OptionError: No width, one that the bundle lacks, or another number of costs.
        """
        unknown = sorted(set(widths) - set(self._decode))
        if unknown or not widths:
            raise OptionError(f"widths {list(widths)} are not among {sorted(self._decode)}")
        if costs is not None and len(costs) != len(widths):
            raise OptionError(f"{len(costs)} step costs for {len(widths)} widths")
        self.widths = tuple(widths)
        self.step_costs = costs
        self.step_inputs = tuple(self._decode[rows].inputs for rows in widths)

    @property
    def length(self) -> int:
        """Number of committed tokens."""
        return self.cache.length

    @property
    def capacity(self) -> int:
        """Number of tokens that the cache can hold."""
        return self.bundle.manifest.context

    @property
    def vocab_size(self) -> int:
        """Number of columns of the logits."""
        return self.bundle.manifest.model.vocab_size

    @property
    def end_token_ids(self) -> Sequence[int]:
        """Tokens that end an answer."""
        return self.bundle.manifest.end_token_ids

    def prefill(
        self,
        token_ids: NDArray[np.uint32],
        graphs: Literal["both", "prefill", "decode"] = "both",
        *,
        on_logits: Callable[[NDArray[np.float32]], None] | None = None,
    ) -> None:
        """Compute and commit tokens, a chunk after another.

        Args:
            token_ids: `(tokens,) u32`.
            graphs: "both" runs full chunks at the prefill width and the rest at decode widths,
                because on CPU every row costs time; the others run all at the one or the other.
            on_logits: As of `Session`. An exception from it leaves its chunk uncommitted.

        Raises:
            ShapeError: The tokens do not fit into the cache.
        """
        if self.length + len(token_ids) > self.capacity:
            raise ShapeError(
                f"{self.length} committed and {len(token_ids)} new tokens exceed the capacity of "
                f"{self.capacity}"
            )
        done = 0
        while done < len(token_ids):
            buffers = self._chunk_buffers(len(token_ids) - done, graphs)
            chunk = token_ids[done : done + buffers.rows]
            buffers.inputs.fill_chain(chunk, self.length)
            self._run(buffers)
            if on_logits is not None:
                for logits in self._chunk_logits(buffers, len(chunk)):
                    on_logits(logits)
            self.cache.commit(np.arange(len(chunk), dtype=np.uint32))
            done += len(chunk)

    def _chunk_buffers(self, remaining: int, graphs: str) -> Buffers:
        if graphs == "prefill" or (graphs == "both" and remaining >= self._chunk.rows):
            return self._chunk
        fitting = (rows for rows in self.widths if rows >= remaining)
        return self._decode[next(fitting, self.widths[-1])]

    def _chunk_logits(self, buffers: Buffers, num_rows: int) -> Iterator[NDArray[np.float32]]:
        """The first rows of logits of the last run, in parts."""
        if buffers is self._chunk:
            return self._head.chunk(buffers, num_rows)
        return iter([self._head.step(buffers.rows)[:num_rows]])

    def step(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Run the decode graph that `inputs` belongs to.

        Returns:
            Logits `(rows, vocab_size) f32`, valid until the next call. Nothing is committed.
        """
        self._run(self._decode[inputs.rows])
        return self._head.step(inputs.rows)

    def _run(self, buffers: Buffers) -> None:
        self._embed(buffers)
        graph: GraphName = "prefill" if buffers is self._chunk else "decode"
        for block in range(len(self._blocks)):
            self._blocks.run(block, graph, buffers)

    def _embed(self, buffers: Buffers) -> None:
        """Write what the first block reads; ids, positions and mask are there."""
        buffers.hidden[0][0] = self._embedding[buffers.input_ids]
        positions = buffers.position_ids
        np.take(self._cos, positions, axis=0, out=buffers.cos[0, 0], mode="clip")
        np.take(self._sin, positions, axis=0, out=buffers.sin[0, 0], mode="clip")
        buffers.write_index[0] = self.length

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Make the given rows of the last step part of the cache, in this order."""
        self.cache.commit(rows)

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` committed tokens.

        Raises:
            ShapeError: `length` is negative or beyond what is committed.
        """
        if not 0 <= length <= self.length:
            raise ShapeError(f"cannot rewind from {self.length} to {length} tokens")
        self.cache.length = length
