"""What drafts for a target from the target's own states, as the session of a draft model.

In: a target's session. Out: what its heads for further tokens (`mtp.py`) and the drafters beside it
(`assistant.py`) have in common: graphs that are loaded once for a target, what they read of it,
what a step costs, and being closed with the target.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import SessionClosedError
from coordgen_rs.runtime.device import Bound
from coordgen_rs.runtime.onnx_runtime import run_native
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.session import GapWork, Session, StepCost

Graphs = tuple[onnxruntime.InferenceSession, ...]

_ROUNDS = 3
"""How often each width is timed."""


class DraftHead(ABC):
    """A session that reads what a target has computed.

    A row reads a token, its rotation, and the state behind the token before.

    Args:
        target: A session on CPU.
        num_scored: Tokens that it scores: the first of the vocabulary.

    Attributes:
        num_scored: The `num_scored` argument.
        clock: Same as in `OrtSession`, the target's.
        reads_text: Whether it takes time to follow a text: it has keys and values of its own.
        Others are the same as in `Session`.
    """

    reads_text = True
    step_inputs: Sequence[StepInputs]
    step_costs: Sequence[StepCost] | None

    def __init__(self, target: OrtSession, num_scored: int) -> None:
        self._target, self.num_scored = target, num_scored
        self.request, self.clock = 0, target.clock
        self.gap_work: GapWork = None
        self.vocab_size = target.bundle.manifest.model.vocab_size
        self.end_token_ids: Sequence[int] = target.end_token_ids
        self.allowed_commits: Sequence[str] = ("canonical", "compact")
        self.exact_commits: Sequence[str] = self.allowed_commits
        bundle, self._is_closed = target.bundle, False
        self._embedding, self._rotations = bundle.embedding(), bundle.rope_tables()
        self._states = target.forward.keep_states()
        self._own = np.zeros_like(self._states)  # what it has given itself, by slot
        if target not in _LOADED:
            _LOADED[target] = self._load(bundle)
        self._graphs = _LOADED[target]
        target.dependents.add(cast(Session, self))  # as each kind is

    @property
    def capacity(self) -> int:
        """Number of tokens that the cache can hold."""
        return self._target.capacity

    @abstractmethod
    def _load(self, bundle: Bundle) -> Graphs:
        """Load the graphs, once for all that draft for a target.

        Raises:
            BundleError: ONNX Runtime cannot load one, or it is not the one of the manifest.
        """

    @abstractmethod
    def step(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Logits `(rows, num_scored) f32` of nodes; same as in `Session`."""

    def close(self) -> None:
        """Release what it holds; later runs raise SessionClosedError."""
        self._is_closed, self._graphs = True, ()
        _LOADED.pop(self._target, None)  # those that are still open keep theirs

    def _move_own(self, rows: NDArray[np.uint32], start: int) -> None:
        """Move what was given for rows of the last step, which are committed, to their slots."""
        self._own[start : start + len(rows)] = self._own[start + rows.astype(np.intp)]

    def check_open(self) -> None:
        """Refuse to run what was closed.

        Raises:
            SessionClosedError: It was.
        """
        if self._is_closed:
            raise SessionClosedError("the session is closed")

    def measure(self) -> None:
        """Find out what steps cost: once for a target."""
        if self._target not in _COSTS:
            _COSTS[self._target] = self._measured()
        self.step_costs = _COSTS[self._target]

    def _measured(self) -> list[StepCost]:
        """What a step of each width costs: the shortest of some runs of it."""
        costs = []
        for inputs in self.step_inputs:
            inputs.fill_chain(np.zeros(inputs.rows, np.uint32), 0)
            times = []
            for _ in range(_ROUNDS):
                start = time.perf_counter()
                self.step(inputs)
                times.append(time.perf_counter() - start)
            costs.append(StepCost(round(1e6 * min(times), 1), 0.0))
        return costs


def bound(
    graph: onnxruntime.InferenceSession,
    read: Mapping[str, onnxruntime.OrtValue],
    given: Mapping[str, onnxruntime.OrtValue],
) -> Bound:
    """A graph, bound to all that it reads, and to what it gives."""
    binding = graph.io_binding()
    for argument in graph.get_inputs():
        binding.bind_ortvalue_input(argument.name, read[argument.name])
    for name, value in given.items():
        binding.bind_ortvalue_output(name, value)
    return graph, binding


def run_bound(bound: Bound) -> None:
    """Run a graph that is bound."""
    graph, binding = bound
    run_native(graph.run_with_iobinding, binding)


_LOADED: WeakKeyDictionary[OrtSession, Graphs] = WeakKeyDictionary()
_COSTS: WeakKeyDictionary[OrtSession, list[StepCost]] = WeakKeyDictionary()
