"""What generation needs of a target: the `Session` protocol, and its ONNX Runtime form on CPU."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs
from coordgen_rs.bundle import Bundle
from coordgen_rs.errors import BundleError, OptionError, ShapeError
from coordgen_rs.kv_cache import KvCache
from coordgen_rs.onnx_runtime import cpu_session, set_threads


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


class _Graph:
    """All blocks (and the head) at one width, with their buffers bound once."""

    def __init__(self, rows: int, session: "OrtSession", *, with_head: bool) -> None:
        bundle, model = session.bundle, session.bundle.manifest.model
        slots = bundle.manifest.slots
        half = model.head_dim // 2
        self.rows = rows
        self.input_ids = np.zeros(rows, np.int64)
        self.position_ids = np.zeros(rows, np.int64)
        mask = np.zeros((1, 1, rows, slots), np.float32)
        self.inputs = StepInputs(self.input_ids, self.position_ids, mask)
        self.cos = np.zeros((1, 1, rows, half), np.float32)
        self.sin = np.zeros((1, 1, rows, half), np.float32)
        # Hidden states go back and forth between two buffers from block to block.
        self.hidden = [np.zeros((1, rows, model.hidden_size), np.float32) for _ in range(2)]
        self._bindings: list[tuple[onnxruntime.InferenceSession, onnxruntime.IOBinding]] = []
        # ONNX Runtime reads the arrays' own memory: the OrtValues hold no copy on CPU.
        hidden = [_value(array) for array in self.hidden]
        shared = {"mask": mask, "cos": self.cos, "sin": self.sin}
        shared_values = {name: _value(array) for name, array in shared.items()}
        shared_values["write_index"] = session.write_index_value
        for number, block in enumerate(bundle.manifest.blocks):
            names = {"hidden": hidden[number % 2], **shared_values}
            outputs = {"hidden_out": hidden[(number + 1) % 2]}
            for layer in block.layers:
                for kind, value in zip(("key", "value"), session.cache.values[layer], strict=True):
                    names[f"{kind}_{layer}"] = value
                    outputs[f"{kind}_{layer}_out"] = value
            self._bind(session.graph(block.graphs[rows]), names, outputs)
        self.hidden_out = self.hidden[len(bundle.manifest.blocks) % 2]
        self.logits = np.zeros((rows if with_head else 0, model.vocab_size), np.float32)
        if with_head:
            self._bind(
                session.graph(bundle.manifest.head.graphs[rows]),
                {"hidden": hidden[len(bundle.manifest.blocks) % 2]},
                {"logits": _value(self.logits[np.newaxis])},
            )

    def _bind(
        self,
        session: onnxruntime.InferenceSession,
        inputs: dict[str, onnxruntime.OrtValue],
        outputs: dict[str, onnxruntime.OrtValue],
    ) -> None:
        binding = session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, value)
        self._bindings.append((session, binding))

    @property
    def head(self) -> onnxruntime.InferenceSession:
        """The last of its sessions, of graphs with a head."""
        return self._bindings[-1][0]

    def run(self) -> None:
        """Run all sessions in order; what they read and write was bound before."""
        for session, binding in self._bindings:
            session.run_with_iobinding(binding)


class _PrefillHead:
    """The logits of a prefill graph, which itself ends before the head.

    The head of a decode graph reads the hidden states part by part: no other head is loaded, and
    no logits as long as a chunk are held.
    """

    def __init__(self, prefill: _Graph, decode: _Graph) -> None:
        self._head, self._logits = decode.head, decode.logits
        self._parts: list[tuple[int, int, onnxruntime.IOBinding]] = []
        for start in range(0, prefill.rows, decode.rows):
            first = min(start, prefill.rows - decode.rows)
            hidden = prefill.hidden_out[:, first : first + decode.rows]
            binding = self._head.io_binding()
            binding.bind_ortvalue_input("hidden", _value(hidden))
            binding.bind_ortvalue_output("logits", _value(decode.logits[np.newaxis]))
            self._parts.append((start, first, binding))

    def logits(self, num_rows: int) -> Iterator[NDArray[np.float32]]:
        """The logits of the first `num_rows` rows of the last run, in parts."""
        for start, first, binding in self._parts:
            if start < num_rows:
                self._head.run_with_iobinding(binding)
                yield self._logits[start - first : num_rows - first]


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
        self._write_index = np.zeros(1, np.int64)
        self.write_index_value = _value(self._write_index)
        self._embedding = bundle.embedding()
        self._cos, self._sin = bundle.rope_tables()
        widths = manifest.decode_widths
        self._graphs: dict[str, onnxruntime.InferenceSession] = {}
        self._decode = {rows: _Graph(rows, self, with_head=True) for rows in widths}
        self._prefill = _Graph(manifest.prefill_rows, self, with_head=False)
        self._prefill_head: _PrefillHead | None = None  # bound when its logits are first asked for
        self.select(widths)

    def graph(self, file: str) -> onnxruntime.InferenceSession:
        """The loaded graph of a file of the bundle; widths that share the file share it.

        Raises:
            BundleError: ONNX Runtime cannot load it.
        """
        if file not in self._graphs:
            path = self.bundle.file(file)
            try:
                self._graphs[file] = cpu_session(path)
            except Exception as error:  # ONNX Runtime raises its own unrelated classes
                raise BundleError(f"{path}: ONNX Runtime cannot load it: {error}") from error
        return self._graphs[file]

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
            graph = self._chunk_graph(len(token_ids) - done, graphs)
            chunk = token_ids[done : done + graph.rows]
            graph.inputs.fill_chain(chunk, self.length)
            self._run(graph)
            if on_logits is not None:
                for logits in self._chunk_logits(graph, len(chunk)):
                    on_logits(logits)
            self.cache.commit(np.arange(len(chunk), dtype=np.uint32))
            done += len(chunk)

    def _chunk_graph(self, remaining: int, graphs: str) -> _Graph:
        if graphs == "prefill" or (graphs == "both" and remaining >= self._prefill.rows):
            return self._prefill
        fitting = (rows for rows in self.widths if rows >= remaining)
        return self._decode[next(fitting, self.widths[-1])]

    def _chunk_logits(self, graph: _Graph, num_rows: int) -> Iterator[NDArray[np.float32]]:
        """The first rows of logits of the last run, in parts."""
        if graph is not self._prefill:
            return iter([graph.logits[:num_rows]])
        if self._prefill_head is None:
            widest = max(rows for rows in self._decode if rows <= graph.rows)
            self._prefill_head = _PrefillHead(graph, self._decode[widest])
        return self._prefill_head.logits(num_rows)

    def step(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Run the decode graph that `inputs` belongs to.

        Returns:
            Logits `(rows, vocab_size) f32`, valid until the next call. Nothing is committed.
        """
        graph = self._decode[inputs.rows]
        self._run(graph)
        return graph.logits

    def _run(self, graph: _Graph) -> None:
        graph.hidden[0][0] = self._embedding[graph.input_ids]
        np.take(self._cos, graph.position_ids, axis=0, out=graph.cos[0, 0], mode="clip")
        np.take(self._sin, graph.position_ids, axis=0, out=graph.sin[0, 0], mode="clip")
        self._write_index[0] = self.length
        graph.run()

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


def _value(array: NDArray[np.generic]) -> onnxruntime.OrtValue:
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)
