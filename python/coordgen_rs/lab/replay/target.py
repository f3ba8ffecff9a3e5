"""A recorded answer as a target: a `Session` that computes nothing and says what stands there.

It has no logits, so its steps give out the rest of the answer, and drafters that verify against it
(`RecordedDrafter`) read that. All else is as in generation on a CPU, step inputs included.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import Accepted, StepInputs, SwitchReport
from coordgen_rs.drafting.proposer import WrappedDrafter
from coordgen_rs.runtime.session import GapWork, OnLogits, OnRead, StepCost


class RecordedSession:
    """A session whose answers are known.

    Args:
        widths: Rows of its steps, narrowest first.
        vocab_size: Number of ids.
        capacity: Tokens of the longest prompt and answer together.

    Attributes:
        answer: `(tokens,) u32`, what it says to the next prompt.
    """

    end_token_ids: Sequence[int] = ()
    allowed_commits = exact_commits = ("canonical", "compact")
    request = 0
    step_costs: Sequence[StepCost] | None = None
    gap_work: GapWork = None

    def __init__(self, widths: Sequence[int], vocab_size: int, capacity: int) -> None:
        self.vocab_size, self.capacity = vocab_size, capacity
        self.step_inputs = [_inputs(rows, capacity + widths[-1]) for rows in widths]
        self.length = self._prompt_len = 0
        self.answer: NDArray[np.uint32] = np.zeros(0, np.uint32)

    def prefill(
        self, token_ids: NDArray[np.uint32], *, on_logits: OnLogits = None, on_read: OnRead = None
    ) -> SwitchReport | None:
        """Commit the prompt but for its last token; nothing is called."""
        self.length += len(token_ids)
        self._prompt_len = self.length + 1
        return None

    def step(self, inputs: StepInputs) -> NDArray[Any]:
        """What is left of the answer, `(tokens,) u32`, for `RecordedDrafter`."""
        return self.answer[self.length + 1 - self._prompt_len :]

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Make `rows`, `(tokens,) u32`, of the last step part of the text."""
        self.length += len(rows)

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` committed tokens."""
        self.length = length

    def close(self) -> None:
        """Do nothing: it holds nothing."""


class RecordedDrafter(WrappedDrafter):
    """A drafter that verifies against a recorded answer instead of logits."""

    def accept(self, logits: NDArray[Any]) -> Accepted:
        """Verify the tree against what is left of the answer, `(tokens,) u32`."""
        return self.drafter.accept_recorded(logits)


def _inputs(rows: int, slots: int) -> StepInputs:
    path = np.zeros(slots, np.int32), np.zeros(1, np.int32), np.zeros(2, np.int32)
    return StepInputs(np.zeros(rows, np.int64), np.zeros(rows, np.int64), path=path)
