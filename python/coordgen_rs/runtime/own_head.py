"""What drafts for a target from the target's own states, as the session of a draft model.

In: a target's session. Out: what its heads for further tokens (`mtp.py`) and the drafters beside it
(`assistant.py`) have in common: sizes, what a step costs, and being closed with the target.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs, SwitchReport
from coordgen_rs.errors import SessionClosedError
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.session import GapWork, OnLogits, OnRead, StepCost

_ROUNDS = 3
"""How often each width is timed."""


class OwnHead(ABC):
    """A session that reads what a target has computed.

    Args:
        target: A session on CPU.
        num_scored: Tokens that it scores: the first of the vocabulary.

    Attributes:
        num_scored: The `num_scored` argument.
        reads_text: Whether it takes time to follow a text: it has keys and values of its own.
        Others are the same as in `Session`.
    """

    reads_text = True
    step_inputs: Sequence[StepInputs]
    step_costs: Sequence[StepCost] | None

    def __init__(self, target: OrtSession, num_scored: int) -> None:
        self._target, self.num_scored = target, num_scored
        self.request = 0
        self.gap_work: GapWork = None
        self.vocab_size = target.bundle.manifest.model.vocab_size
        self.end_token_ids: Sequence[int] = target.end_token_ids
        self.allowed_commits: Sequence[str] = ("canonical", "compact")
        self.exact_commits: Sequence[str] = self.allowed_commits
        self._is_closed = False
        target.dependents.add(self)

    @property
    def capacity(self) -> int:
        """Number of tokens that the cache can hold."""
        return self._target.capacity

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of committed tokens."""

    @abstractmethod
    def prefill(
        self,
        token_ids: NDArray[np.uint32],
        *,
        on_logits: OnLogits = None,
        on_read: OnRead = None,
    ) -> SwitchReport | None:
        """Read tokens that the target has read; same as in `Session`, without logits."""

    @abstractmethod
    def step(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Logits `(rows, num_scored) f32` of nodes; same as in `Session`."""

    @abstractmethod
    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Add rows of the last step, `(tokens,) u32` ascending, to the cache."""

    @abstractmethod
    def rewind(self, length: int) -> None:
        """Forget all but the first `length` committed tokens."""

    @abstractmethod
    def close(self) -> None:
        """Release what it holds; later runs raise SessionClosedError."""

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
        """What a step of each width costs."""
        return [self._cost(inputs) for inputs in self.step_inputs]

    def _cost(self, inputs: StepInputs) -> StepCost:
        """What a step costs: the shortest of some runs of it."""
        inputs.fill_chain(np.zeros(inputs.rows, np.uint32), 0)
        times = []
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            self.step(inputs)
            times.append(time.perf_counter() - start)
        return StepCost(round(1e6 * min(times), 1), 0.0)


_COSTS: WeakKeyDictionary[OrtSession, list[StepCost]] = WeakKeyDictionary()
