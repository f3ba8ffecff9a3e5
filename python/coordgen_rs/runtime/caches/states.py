"""States of recurrent layers: what the committed tokens have left in them, and the ways back.

In: what a model's layers keep, runs, and commits. Out: arrays that the graphs read and write in
place, and which lengths can be gone back to. What a state, an update and a pending node are stands
in `src/ort/mod.rs`.

A state cannot be cut as a cache can. There are three ways back: nodes of the last step that are not
applied yet need not be; a read that was not committed is undone; and snapshots stand every so many
tokens, and before the last tokens of a prompt. Those are a template's own, which begin the answer:
the next prompt of a dialogue often has others there.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.bundle.layers import RecurrentLayers
from coordgen_rs.store.prefixes.prefix import COUNT, Snapshot

SNAPSHOT_TOKENS = 32
"""Tokens between snapshots, at least."""
SNAPSHOT_BYTES = 256 << 20
"""Most bytes of all snapshots of a session; two are kept in any case."""

_NO_STATE = -1
_NO_NODE = -1


class StateArrays:
    """What the graphs of all recurrent layers read and write in place, of some sequences.

    Args:
        recurrent: The layers, and what each keeps.
        num_nodes: Most rows of a step, of each sequence.
        num_sequences: Requests that have states of their own.

    Attributes:
        values: By layer what its graph reads and writes, by the name of its input: of each operator
            states `(num_sequences, 2, bytes) u8` and updates `(2, bytes) u8`.
        run_values: What all of them read of a run: `reads (num_sequences,) i32`, `pending
            (num_sequences * num_nodes,) i32`, of which each sequence has a part.
        states: The states of each operator.
        reads: Behind `run_values`.
        pending: Behind `run_values`, `(num_sequences, num_nodes) i32`.
        most_snapshots: Of each sequence.
    """

    def __init__(self, recurrent: RecurrentLayers, num_nodes: int, num_sequences: int = 1) -> None:
        from_numpy = onnxruntime.OrtValue.ortvalue_from_numpy
        self.states: list[NDArray[np.uint8]] = []
        self.values: dict[int, dict[str, Any]] = {}
        most_nodes = num_nodes * num_sequences
        for layer in recurrent.layers:
            self.values[layer] = {}
            for sizes in recurrent.states:
                state = np.zeros((num_sequences, 2, sizes.num_bytes), np.uint8)
                updates = np.zeros((2, sizes.updates_bytes(most_nodes)), np.uint8)
                self.states.append(state)
                pairs = zip(sizes.inputs(layer), (state, updates), strict=True)
                self.values[layer] |= {name: from_numpy(array) for name, array in pairs}
        self.reads = np.zeros(num_sequences, np.int32)
        pending = np.full(most_nodes, _NO_NODE, np.int32)
        self.pending = pending.reshape(num_sequences, num_nodes)
        self.run_values = {"reads": from_numpy(self.reads), "pending": from_numpy(pending)}
        most_bytes = SNAPSHOT_BYTES // num_sequences
        self.most_snapshots = max(2, most_bytes // recurrent.state_bytes)


class States:
    """The states of one request, of all recurrent layers.

    Args:
        arrays: Where they are.
        number: Which of the sequences it is.

    Attributes:
        snapshots: Ascending by length.
        first_row: The row of the last run where the sequence's rows began.
    """

    def __init__(self, arrays: StateArrays, number: int = 0) -> None:
        self._states = [state[number] for state in arrays.states]
        self._counts = [state[:, :COUNT].view(np.int64)[:, 0] for state in self._states]
        self._reads = arrays.reads[number : number + 1]
        self._pending = arrays.pending[number]
        self._num_pending = self._run_at = self.first_row = 0
        self.snapshots: list[Snapshot] = []
        self._most_snapshots = arrays.most_snapshots

    @property
    def nbytes(self) -> int:
        """Bytes of all states and snapshots."""
        kept = sum(snapshot.nbytes for snapshot in self.snapshots)
        return kept + sum(int(state.nbytes) for state in self._states)

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of each operator's state."""
        return [state.shape[1] for state in self._states]

    def before_run(self, length: int, *, reads: bool) -> None:
        """Prepare a run behind `length` committed tokens.

        Args:
            length: With those of the last step that were committed since.
            reads: Whether its rows are a chain that is to be committed whole.
        """
        # What an interrupt has left half-way: a commit, or a way back.
        self._drop_snapshots(length)
        self._forget_pending(min(self._num_pending, max(length - self._run_at, 0)))
        if length == 0 and any(count[0] for count in self._counts):
            self._restore(None)
        self.undo(length)
        self._reads[0] = reads

    def after_run(self, length: int) -> None:
        """All layers have run: what was pending is applied."""
        self._forget_pending()
        self._run_at = length
        if not self._reads[0]:
            self._keep_if_due(length)

    def commit(self, rows: NDArray[np.uint32], length: int) -> None:
        """Commit rows of the last run behind `length` committed tokens.

        Args:
            rows: As counted from the first that is not committed, `(tokens,) u32`.
            length: Without these.
        """
        if self._reads[0]:
            self._keep_if_due(length + len(rows))
            return
        first = length - self._run_at
        self._forget_pending(first)
        nodes = rows.astype(np.int32) + (first + self.first_row)
        self._pending[first : first + len(rows)] = nodes
        self._num_pending = first + len(rows)

    def undo(self, length: int) -> None:
        """Take back a read that was not committed, or that failed half-way."""
        for state, count in zip(self._states, self._counts, strict=True):
            if count[0] > length and count[1] == length:
                state[0] = state[1]

    def reachable(self, length: int, committed: int) -> int:
        """Most tokens, at most `length` of those `committed`, that can be gone back to."""
        self.undo(committed)
        if self._is_ahead_of(length, committed):
            return length
        return max((it.length for it in self.snapshots if it.length <= length), default=0)

    def rewind(self, length: int, committed: int) -> None:
        """Go back to so many tokens, which `reachable` has found."""
        if self._is_ahead_of(length, committed):
            self._forget_pending(self._num_pending - (committed - length))
        else:
            found = next((it for it in self.snapshots if it.length == length), None)
            self._restore(found)
        self._drop_snapshots(length)

    def put(self, snapshots: Sequence[Snapshot], length: int) -> None:
        """Go to the snapshot of so many tokens, in place of all that is there; 0 needs none."""
        self.snapshots = [it for it in snapshots if it.length <= length]
        self._restore(next((it for it in self.snapshots if it.length == length), None))

    def saved(self, committed: int) -> list[Snapshot]:
        """What brings most of the committed tokens back: the latest states, and the latest turn."""
        self.undo(committed)
        turn = max((it for it in self.snapshots if it.is_turn), key=_length, default=None)
        kept = [] if turn is None else [turn]
        kept += [it for it in self.snapshots[-1:] if it is not turn]
        applied = {int(count[0]) for count in self._counts}
        known = {0, _NO_STATE, *(it.length for it in kept)}
        if len(applied) == 1 and applied.isdisjoint(known):
            kept.append(self._snapshot(applied.pop()))
        return kept

    def known(self, committed: int) -> list[Snapshot]:
        """All that brings some of the committed tokens back, ascending."""
        found = {it.length: it for it in self.saved(committed)}
        found |= {it.length: it for it in self.snapshots}
        return sorted(found.values(), key=_length)

    def keep_turn(self, length: int) -> None:
        """Keep a snapshot where a turn may end; all states are of `length` tokens."""
        if self.snapshots and self.snapshots[-1].length == length:
            self.snapshots[-1] = replace(self.snapshots[-1], is_turn=True)
        else:
            self._keep(length, is_turn=True)

    def is_due(self, length: int) -> bool:
        """Whether the latest snapshot is far from so many tokens."""
        last = self.snapshots[-1].length if self.snapshots else 0
        return length - last >= SNAPSHOT_TOKENS

    def _is_ahead_of(self, length: int, committed: int) -> bool:
        """Whether no state stands for more than `length` tokens, and pending nodes are the rest.

        A step that failed half-way has applied them in some layers.
        """
        applied = {int(count[0]) for count in self._counts}
        return applied <= {committed, committed - self._num_pending} and max(applied) <= length

    def _restore(self, snapshot: Snapshot | None) -> None:
        """Make all states those of a snapshot; None is that of no token."""
        for count in self._counts:
            count[:] = _NO_STATE  # until all numbers are there
        for number, state in enumerate(self._states):
            state[0, COUNT:] = 0 if snapshot is None else snapshot.states[number][COUNT:]
        for count in self._counts:
            count[0] = 0 if snapshot is None else snapshot.length
        self._forget_pending()

    def _forget_pending(self, kept: int = 0) -> None:
        """Forget all pending nodes but the first `kept`."""
        self._pending[kept:] = _NO_NODE
        self._num_pending = kept

    def _drop_snapshots(self, length: int) -> None:
        """Forget those of more tokens."""
        if self.snapshots and self.snapshots[-1].length > length:
            self.snapshots = [it for it in self.snapshots if it.length <= length]

    def _keep_if_due(self, length: int) -> None:
        if self.is_due(length):
            self._keep(length, is_turn=False)

    def _keep(self, length: int, *, is_turn: bool) -> None:
        self.snapshots = [it for it in self.snapshots if it.length < length]
        while len(self.snapshots) >= self._most_snapshots:
            del self.snapshots[_least_useful(self.snapshots, length)]
        self.snapshots.append(self._snapshot(length, is_turn=is_turn))

    def _snapshot(self, length: int, *, is_turn: bool = False) -> Snapshot:
        return Snapshot(length, [state[0].copy() for state in self._states], is_turn)


def _length(snapshot: Snapshot) -> int:
    return snapshot.length


def _least_useful(snapshots: Sequence[Snapshot], length: int) -> int:
    """Which to drop for one of `length` tokens.

    Of those where no turn ends the one whose neighbours are closest, the latest only if it is the
    last of them; where there is none, the oldest.
    """
    lengths = [0, *map(_length, snapshots), length]
    others = [number for number, snapshot in enumerate(snapshots) if not snapshot.is_turn]
    if len(others) > 1 and others[-1] == len(snapshots) - 1:
        others.pop()
    return min(others, key=lambda number: lengths[number + 2] - lengths[number], default=0)
