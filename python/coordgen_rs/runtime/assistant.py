"""A target's published drafter (Gemma 4's assistant), as the session of a draft model.

In: a target's session, whose states, keys and values it reads. Out: logits of drafts, for
`drafting/draft_model.py`. A row reads a token together with the state behind the token before: the
target's where that is committed, further on the drafter's own. Its layers attend to the committed
tokens of the target alone, from the position behind them, however deep a draft is: it has no keys
and values, so there is nothing to read before it drafts, and a tree needs no slots but for states.

A draft may be wrong: where the target's states are unknown, behind a prefix that was put back, they
are zeros.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs, SwitchReport
from coordgen_rs.bundle.assistant import AssistantFiles
from coordgen_rs.bundle.manifest import Manifest
from coordgen_rs.errors import BundleError
from coordgen_rs.runtime.blocks import load_graph
from coordgen_rs.runtime.buffers import ort_value
from coordgen_rs.runtime.clusters import ClusteredOutput
from coordgen_rs.runtime.graph_shapes import check_assistant, row_sizes
from coordgen_rs.runtime.kv_cache import KvCache
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.own_head import OwnHead
from coordgen_rs.runtime.session import OnLogits, OnRead
from coordgen_rs.threads.native import run_native

_WIDTHS = (1, 4)
"""Rows of its steps, which run one by one; more are certain, and read without logits."""


class AssistantSession(OwnHead):
    """The drafter beside a target.

    Args:
        target: A session on CPU; this one reads its states, keys and values.

    Attributes:
        num_scored: All tokens.
        Others are the same as in `OwnHead`.

    Raises:
        BundleError: The bundle has no drafter, or ONNX Runtime cannot load it.
    """

    reads_text = False

    def __init__(self, target: OrtSession) -> None:
        bundle, manifest = target.bundle, target.bundle.manifest
        if manifest.assistant is None or not isinstance(target.cache, KvCache):
            raise BundleError(f"{bundle.shown} has no drafter beside the model")
        super().__init__(target, manifest.model.vocab_size)
        self._embedding, self._rotations = bundle.embedding(), bundle.rope_tables()
        self._states = target.forward.keep_states()
        self._own = np.zeros_like(self._states)
        self._length = 0
        clusters = manifest.assistant.clusters
        self._clusters = None if clusters is None else ClusteredOutput(bundle)
        self._row: _Row | None = _Row(target, manifest.assistant, target.cache)
        self._steps = [_Step(rows, manifest) for rows in _WIDTHS]
        self.step_inputs: Sequence[StepInputs] = [step.inputs for step in self._steps]
        self.measure()

    @property
    def length(self) -> int:
        """Number of committed tokens."""
        return self._length

    def prefill(
        self,
        token_ids: NDArray[np.uint32],
        *,
        on_logits: OnLogits = None,
        on_read: OnRead = None,
    ) -> SwitchReport | None:
        """Follow tokens, of which those behind the target's are read; without logits."""
        self.check_open()
        for token in token_ids.tolist():
            if self._length >= self._target.length:
                self._compute(token, self._length, self._length - 1, self._length)
            self._length += 1
        if on_read is not None:
            on_read(len(token_ids))
        return None

    def step(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Logits `(rows, vocab_size) f32` of nodes; same as in `Session`.

        They are zeros for nodes that the target has read, but for the last, and for the first token
        of a text, before which there is nothing to draft from.
        """
        self.check_open()
        step = next(it for it in self._steps if it.inputs.rows == inputs.rows)
        nodes, first = inputs.num_nodes, int(step.path["span"][0])
        past = int(step.path["lengths"][0])
        before = past + step.path["parents"][first : first + nodes]
        step.logits[:] = 0
        for node in range(nodes):
            position = int(step.position_ids[node])
            if position >= self._target.length or node == nodes - 1:
                token, slot = int(step.input_ids[node]), past + first + node
                self._compute(token, position, int(before[node]), slot, step.logits[node])
        return step.logits

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Keep the states of rows of the last step, `(tokens,) u32` ascending."""
        start = self._length
        self._own[start : start + len(rows)] = self._own[start + rows.astype(np.intp)]
        self._length += len(rows)

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` committed tokens."""
        self._length = length

    def close(self) -> None:
        """Release the graph; later runs raise SessionClosedError."""
        self._is_closed = True
        self._row = None
        _LOADED.pop(self._target, None)

    def _compute(
        self,
        token: int,
        position: int,
        before: int,
        slot: int,
        logits: NDArray[np.float32] | None = None,
    ) -> None:
        """Read one token, keep the state that it gives in a slot, and fill its logits."""
        row = self._row
        seen = min(position, self._target.length)
        if not seen or row is None:
            self._own[slot] = 0
            return
        is_own = position > seen
        row.previous[:] = self._own[before] if is_own else self._states[position - 1]
        row.is_own[:] = is_own
        row.embedded[:] = self._embedding[np.array([token])]
        for name, table in self._rotations.items():
            table.take([seen], axis=0, out=row.by_row[name][0, 0], mode="clip")
        # Its node stands in the slot of the last token that it sees: it writes nothing there.
        row.lengths[:] = seen - 1
        row.run()
        self._own[slot] = row.state
        if logits is None:
            return
        if self._clusters is None:
            logits[:] = row.scores
        else:
            self._clusters.score(row.hidden, row.scores, logits)


class _Step:
    """What a step of one width reads, which the core fills, and the logits that it gives."""

    def __init__(self, rows: int, manifest: Manifest) -> None:
        num_nodes = max(rows, manifest.slots)
        sizes = {"parents": num_nodes, "lengths": 1, "span": 2}
        self.input_ids, self.position_ids = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.path = {name: np.zeros(size, np.int32) for name, size in sizes.items()}
        path = self.path["parents"], self.path["lengths"], self.path["span"]
        self.inputs = StepInputs(self.input_ids, self.position_ids, path=path)
        self.logits = np.zeros((rows, manifest.model.vocab_size), np.float32)


_LOADED: WeakKeyDictionary[OrtSession, onnxruntime.InferenceSession] = WeakKeyDictionary()


def _graph_of(target: OrtSession, files: AssistantFiles) -> onnxruntime.InferenceSession:
    """The graph, loaded once for all that draft for a target.

    Raises:
        BundleError: ONNX Runtime cannot load it, or it is not the one of the manifest.
    """
    if target not in _LOADED:
        bundle = target.bundle
        graph = load_graph(bundle, files.graph)
        check_assistant(graph, bundle.file(files.graph), bundle.manifest)
        _LOADED[target] = graph
    return _LOADED[target]


class _Row:
    """What one row reads and writes, bound to the graph and to the target's keys and values."""

    def __init__(self, target: OrtSession, files: AssistantFiles, cache: KvCache) -> None:
        manifest, graph = target.bundle.manifest, _graph_of(target, files)
        size = 1, 1, manifest.model.hidden_size
        self.embedded, self.previous, self._state = (np.zeros(size, np.float32) for _ in range(3))
        self.is_own = np.zeros((1, 1, 1), np.uint8)
        self.by_row = {
            name: np.zeros((1, 1, 1, columns), np.float32)
            for name, columns in row_sizes(manifest).items()
        }
        self.lengths = np.zeros(1, np.int32)
        arrays: dict[str, NDArray[np.generic]] = {
            "embedded": self.embedded,
            "previous": self.previous,
            "is_own": self.is_own,
            "parents": np.array([-1], np.int32),
            "sequences": np.zeros(1, np.int32),
            "lengths": self.lengths,
            "span": np.array([0, 1], np.int32),
        }
        offered = {name: ort_value(array) for name, array in (self.by_row | arrays).items()}
        for layer, values in zip(manifest.cached_layers, cache.values, strict=True):
            offered |= {f"key_{layer}": values[0], f"value_{layer}": values[1]}
        self._graph, self._bound = graph, graph.io_binding()
        for argument in graph.get_inputs():
            self._bound.bind_ortvalue_input(argument.name, offered[argument.name])
        given = {"state": self._state}
        if files.clusters is None:
            self._scores = given["logits"] = np.zeros((1, 1, manifest.model.vocab_size), np.float32)
        else:
            scores = np.zeros((1, 1, files.clusters.num), np.float32)
            self._scores = given["cluster_scores"] = scores
            self._hidden = given["hidden"] = np.zeros((1, 1, files.hidden_size), np.float32)
        for name, array in given.items():
            self._bound.bind_ortvalue_output(name, ort_value(array))

    @property
    def state(self) -> NDArray[np.float32]:
        """The drafter's state, `(hidden_size,)`, in the size of the target's."""
        row: NDArray[np.float32] = self._state[0, 0]
        return row

    @property
    def scores(self) -> NDArray[np.float32]:
        """Logits, `(vocab_size,)`, or the scores of clusters."""
        row: NDArray[np.float32] = self._scores[0, 0]
        return row

    @property
    def hidden(self) -> NDArray[np.float32]:
        """Where there are clusters, what their tokens are scored from."""
        row: NDArray[np.float32] = self._hidden[0, 0]
        return row

    def run(self) -> None:
        """Run the graph."""
        run_native(self._graph.run_with_iobinding, self._bound)
