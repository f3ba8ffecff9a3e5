"""A target's own head for further tokens (MTP), as the session of a draft model.

In: a target's session, whose states it reads. Out: logits of drafts, for
`generation/drafting/draft_model.py`. Its layer reads the state behind a token together with the
next token. Where the target has computed that state, it is the target's; further on it is what the
head has given for the token before. Each node has a slot of its own, so drafts may be a tree.

A draft may be wrong: where the target's states are unknown, behind a prefix that was put back, they
are zeros.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs, SwitchReport
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import BundleError
from coordgen_rs.runtime.caches.kv_cache import KV_FORMS, KvCache
from coordgen_rs.runtime.cpu import check_mtp, load_graph, path_buffers
from coordgen_rs.runtime.experts import ExpertFiles
from coordgen_rs.runtime.heads import DraftHead, Graphs, bound, run_bound
from coordgen_rs.runtime.onnx_runtime import ort_value
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.session import OnLogits, OnRead

_FILLED = ("key_0", "value_0")


class MtpSession(DraftHead):
    """The head of a target that has one.

    Args:
        target: A session on CPU; this one reads its states.

    Attributes:
        num_scored: Tokens that it scores: the first of the vocabulary.
        Others are the same as in `DraftHead`.

    Raises:
        BundleError: The bundle has no such head, or ONNX Runtime cannot load it.
    """

    def __init__(self, target: OrtSession) -> None:
        bundle, manifest = target.bundle, target.bundle.manifest
        if manifest.mtp is None:
            raise BundleError(f"{bundle.shown} has no head for further tokens (MTP)")
        model, files = manifest.model, manifest.mtp
        self._files = files
        super().__init__(target, files.num_scored)
        form = target.cache.form if isinstance(target.cache, KvCache) else KV_FORMS[0]
        self._cache = KvCache([(model.num_kv_heads, model.head_dim)], manifest.slots, form)
        self._experts = ExpertFiles(bundle, [] if files.experts is None else [files.experts])
        widths = [*manifest.decode_widths, manifest.prefill_rows]
        self._runs = {rows: _Run(self, rows, is_step=rows < widths[-1]) for rows in widths}
        self.step_inputs: Sequence[StepInputs] = [
            self._runs[rows].buffers.inputs for rows in manifest.decode_widths
        ]
        self.measure()

    def _load(self, bundle: Bundle) -> Graphs:
        files = self._files
        paths = bundle.file(files.graph), bundle.file(files.head)
        layer, head = map(load_graph, paths)
        check_mtp(layer, head, paths, bundle.manifest, files.num_scored)
        return layer, head

    @property
    def length(self) -> int:
        """Number of committed tokens."""
        return self._cache.length

    def prefill(
        self, token_ids: NDArray[np.uint32], *, on_logits: OnLogits = None, on_read: OnRead = None
    ) -> SwitchReport | None:
        """Read tokens that the target has read; same as in `Session`, without logits.

        Raises:
            BundleDamagedError: Same as in `step`.
        """
        run = self._run(self._target.bundle.manifest.prefill_rows)
        for start in range(0, len(token_ids), run.buffers.rows):
            part = token_ids[start : start + run.buffers.rows]
            run.buffers.inputs.fill_chain(part, self.length)
            self._compute(run, len(part))
            self.commit(np.arange(len(part), dtype=np.uint32))
            if on_read is not None:
                on_read(start + len(part))
        return None

    def step(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Logits `(rows, num_scored) f32` of nodes; same as in `Session`.

        Raises:
            BundleDamagedError: The file of its experts cannot be read any more; the message names
                it.
        """
        run = self._run(inputs.rows)
        self._compute(run, inputs.num_nodes)
        return run.logits()

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Add rows of the last step, `(tokens,) u32` ascending, to the cache."""
        self._move_own(rows, self.length)
        self._cache.commit(rows)

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` committed tokens."""
        self._cache.rewind(length)

    def close(self) -> None:
        """Release the graphs and experts; later runs raise SessionClosedError."""
        super().close()
        self._runs.clear()
        self._experts.close()

    def _run(self, rows: int) -> "_Run":
        self.check_open()
        return self._runs[rows]

    def _compute(self, run: "_Run", num_nodes: int) -> None:
        """Run filled inputs, and keep the states that the head gives."""
        buffers, path = run.buffers, run.buffers.path or {}
        positions, past = buffers.position_ids[:num_nodes], int(path["lengths"][0])
        # A node's slot follows those of its base, a parent's number counts from there.
        first = int(path["span"][0])
        nodes = first + np.arange(num_nodes)
        before = past + path["parents"][nodes]
        known = self._target.length
        is_own = positions > known
        states = np.where(
            is_own[:, np.newaxis],
            self._own[np.maximum(before, 0)],
            self._states[np.clip(positions - 1, 0, None)],
        )
        states[positions == 0] = 0
        run.previous[0, :num_nodes], run.is_own[0, :num_nodes, 0] = states, is_own
        buffers.hidden[0][0] = self._embedding[buffers.input_ids]
        for name, table in self._rotations.items():
            table.take(buffers.position_ids, axis=0, out=buffers.by_row[name][0, 0], mode="clip")
        try:
            run.compute()
        except Exception as error:  # ONNX Runtime raises its own unrelated classes
            self._experts.name_failure(error)
            raise
        start = past + first
        self._own[start : start + num_nodes] = buffers.hidden[1][0, :num_nodes]


class _Run:
    """What one width reads and writes, bound to the graphs."""

    def __init__(self, session: MtpSession, rows: int, *, is_step: bool) -> None:
        manifest = session._target.bundle.manifest
        self.buffers = path_buffers(rows, manifest)
        self.previous = np.zeros((1, rows, manifest.model.hidden_size), np.float32)
        self.is_own = np.zeros((1, rows, 1), np.uint8)
        hidden, given = self.buffers.hidden_values
        filled = dict(zip(_FILLED, session._cache.values[0], strict=True))
        own = {"previous": ort_value(self.previous), "is_own": ort_value(self.is_own)}
        read = {**self.buffers.values, **own, "hidden": hidden, **filled}
        layer, head = session._graphs
        self._layer = bound(
            layer,
            read | session._experts.inputs(0),
            {"hidden_out": given} | {f"{name}_out": value for name, value in filled.items()},
        )
        if is_step:
            self._logits = np.zeros((1, rows, session.num_scored), np.float32)
            self._head = bound(head, {"hidden": given}, {"logits": ort_value(self._logits)})

    def compute(self) -> None:
        """Run the layer."""
        run_bound(self._layer)

    def logits(self) -> NDArray[np.float32]:
        """Run the output layer over what the layer has given."""
        run_bound(self._head)
        logits: NDArray[np.float32] = self._logits[0]
        return logits
