"""A target's published drafter (Gemma 4's assistant), as the session of a draft model.

In: a target's session, whose states, keys and values it reads. Out: logits of drafts, for
`generation/drafting/draft_model.py`. A row reads a token with the state behind the one before: the
target's where that is committed, further on the drafter's own. Its layers attend to the committed
tokens of the target alone, from the position behind them, however deep a draft is: it has no keys
and values, so there is nothing to read before it drafts, and a tree needs no slots but for states.

A draft may be wrong: where the target's states are unknown, behind a prefix that was put back, they
are zeros.
"""

from collections.abc import Sequence

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs, SwitchReport
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.manifest import AssistantFiles, Manifest
from coordgen_rs.errors import BundleDamagedError, BundleError
from coordgen_rs.runtime.caches.kv_cache import KvCache
from coordgen_rs.runtime.cpu import check_assistant, load_graph, path_buffers
from coordgen_rs.runtime.heads import DraftHead, Graphs, bound, run_bound
from coordgen_rs.runtime.onnx_runtime import ort_value
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.session import OnLogits, OnRead

_WIDTHS = (1, 4)
"""Rows of its steps, which run one by one; more are certain, and read without logits."""


class AssistantSession(DraftHead):
    """The drafter beside a target.

    Args:
        target: A session on CPU; this one reads its states, keys and values.

    Attributes:
        num_scored: All tokens.
        Others are the same as in `DraftHead`.

    Raises:
        BundleError: The bundle has no drafter, or ONNX Runtime cannot load it.
    """

    reads_text = False

    def __init__(self, target: OrtSession) -> None:
        bundle, manifest = target.bundle, target.bundle.manifest
        if manifest.assistant is None or not isinstance(target.cache, KvCache):
            raise BundleError(f"{bundle.shown} has no drafter beside the model")
        files, self._length = manifest.assistant, 0
        self._files = files
        super().__init__(target, manifest.model.vocab_size)
        self._clusters = None if files.clusters is None else ClusteredOutput(bundle)
        self._row: _Row | None = _Row(self._graphs[0], manifest, files, target.cache)
        self._steps = {rows: path_buffers(rows, manifest) for rows in _WIDTHS}
        self._logits = np.zeros((max(_WIDTHS), manifest.model.vocab_size), np.float32)
        self.step_inputs: Sequence[StepInputs] = [it.inputs for it in self._steps.values()]
        self.measure()

    def _load(self, bundle: Bundle) -> Graphs:
        path = bundle.file(self._files.graph)
        graph = load_graph(path)
        check_assistant(graph, path, bundle.manifest)
        return (graph,)

    @property
    def length(self) -> int:
        """Number of committed tokens."""
        return self._length

    def prefill(
        self, token_ids: NDArray[np.uint32], *, on_logits: OnLogits = None, on_read: OnRead = None
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
        step, logits = self._steps[inputs.rows], self._logits[: inputs.rows]
        path = step.path or {}
        nodes, first, past = inputs.num_nodes, int(path["span"][0]), int(path["lengths"][0])
        before = past + path["parents"][first : first + nodes]
        logits[:] = 0
        for node in range(nodes):
            position = int(step.position_ids[node])
            if position >= self._target.length or node == nodes - 1:
                token, slot = int(step.input_ids[node]), past + first + node
                self._compute(token, position, int(before[node]), slot, logits[node])
        return logits

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Keep the states of rows of the last step, `(tokens,) u32` ascending."""
        self._move_own(rows, self._length)
        self._length += len(rows)

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` committed tokens."""
        self._length = length

    def close(self) -> None:
        """Release the graph; later runs raise SessionClosedError."""
        super().close()
        self._row = None

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
            table.take([seen], axis=0, out=row.buffers.by_row[name][0, 0], mode="clip")
        # Its node stands in the slot of the last token that it sees: it writes nothing there.
        row.lengths[:] = seen - 1
        run_bound(row.bound)
        self._own[slot] = row.state[0, 0]
        if logits is None:
            return
        if self._clusters is None:
            logits[:] = row.scores[0, 0]
        else:
            self._clusters.score(row.hidden[0, 0], row.scores[0, 0], logits)


class ClusteredOutput:
    """The output layer of a drafter that has clusters: it scores the tokens of the likeliest alone.

    All others get what is less than any of these.

    Args:
        bundle: Its manifest says where the layer is.

    Raises:
        BundleDamagedError: A file cannot be mapped, or holds ids outside the vocabulary.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._rows = bundle.assistant_output()
        self._tokens, self._chosen = bundle.assistant_clusters()
        self._vocab_size = bundle.manifest.model.vocab_size
        if int(self._tokens.max()) >= self._vocab_size:
            raise BundleDamagedError(f"{bundle.shown}: a cluster holds ids outside the vocabulary")

    def score(
        self,
        hidden: NDArray[np.float32],
        cluster_scores: NDArray[np.float32],
        logits: NDArray[np.float32],
    ) -> None:
        """Fill `logits (vocab_size,)` from `hidden (d,)` and `cluster_scores (clusters,)`."""
        likeliest = np.argpartition(-cluster_scores, self._chosen - 1)[: self._chosen]
        tokens, size = self._tokens[likeliest].ravel(), self._tokens.shape[1]
        rows = likeliest[:, np.newaxis] * size + np.arange(size)
        # Not by `@`: its threads take longer to begin than one takes for all of it.
        scores = np.einsum("ij,j->i", self._rows[rows.ravel()], hidden)
        logits[:] = scores.min() - np.float32(1)
        logits[tokens] = scores


class _Row:
    """What one row reads and writes, bound to the graph and to the target's keys and values.

    Args:
        graph: Reads and writes it.
        manifest: The target's.
        files: What the graph is.
        cache: The target's.

    Attributes:
        embedded: The token, `(1, 1, hidden_size)`.
        previous: The state before it, in the same shape.
        is_own: Whether that is the drafter's own, `(1, 1, 1) u8`.
        buffers: Its rotation and its path.
        lengths: How many tokens it sees but for the last, `(1,) i32`.
        state: The drafter's state, in the shape of the target's.
        scores: Logits, or the scores of clusters, `(1, 1, scored)`.
        hidden: Where there are clusters, what their tokens are scored from, `(1, 1, size)`.
    """

    def __init__(
        self,
        graph: onnxruntime.InferenceSession,
        manifest: Manifest,
        files: AssistantFiles,
        cache: KvCache,
    ) -> None:
        size = 1, 1, manifest.model.hidden_size
        self.embedded, self.previous, self.state = (np.zeros(size, np.float32) for _ in range(3))
        self.is_own = np.zeros((1, 1, 1), np.uint8)
        self.buffers = path_buffers(1, manifest)
        path = self.buffers.path or {}
        path["parents"][0], path["span"][:], self.lengths = -1, (0, 1), path["lengths"]
        own: dict[str, NDArray[np.generic]] = {
            "embedded": self.embedded,
            "previous": self.previous,
            "is_own": self.is_own,
        }
        read = self.buffers.values | {name: ort_value(array) for name, array in own.items()}
        for layer, values in zip(manifest.cached_layers, cache.values, strict=True):
            read |= {f"key_{layer}": values[0], f"value_{layer}": values[1]}
        has_clusters = files.clusters is not None
        num_scores = manifest.model.vocab_size if files.clusters is None else files.clusters.num
        self.scores = np.zeros((1, 1, num_scores), np.float32)
        given = {"state": self.state, "cluster_scores" if has_clusters else "logits": self.scores}
        if has_clusters:
            self.hidden = given["hidden"] = np.zeros((1, 1, files.hidden_size), np.float32)
        self.bound = bound(graph, read, {name: ort_value(it) for name, it in given.items()})
