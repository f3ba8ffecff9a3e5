"""Clocks around the parts of a session and a drafter, for the breakdown of an answer's time.

In: a head, a drafter. Out: the same, with the seconds that each part took. They change nothing of
what is computed.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import Accepted, Drafter, StepInputs
from coordgen_rs.drafting.proposer import WrappedDrafter
from coordgen_rs.runtime.device import Buffers, Device


class ClockedHead:
    """The head of a device, which knows how long it has run while this is entered.

    Args:
        device: Does the work.

    Attributes:
        seconds: Seconds of all runs; what the reader of a chunk's logits does does not count.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._logits, self.seconds = device, device.logits, 0.0

    def __enter__(self) -> Self:
        vars(self._device)["logits"] = self.logits
        return self

    def __exit__(self, *_: object) -> None:
        del vars(self._device)["logits"]

    def logits(self, buffers: Buffers, first: int, end: int) -> NDArray[np.float32]:
        """Same as in `Device`."""
        start = time.perf_counter()
        logits = self._logits(buffers, first, end)
        self.seconds += time.perf_counter() - start
        return logits


class ClockedDrafter(WrappedDrafter):
    """A drafter that knows how long each part of a request took.

    Args:
        drafter: Does the work.
        head: The session's; what it does before the first draft, it does for calibration.

    Attributes:
        draft_s: Seconds of this request in `begin`, `propose` and `accept`.
        verify_s: Seconds between `propose` and `accept`.
        calibration_s: Seconds of the head over the prompt, and of reading what it says.
        draft_lens: How often a tree of so many nodes was proposed, in all requests.
    """

    def __init__(self, drafter: Drafter, head: ClockedHead) -> None:
        super().__init__(drafter)
        self._head, self._proposed_at = head, 0.0
        self.draft_s = self.verify_s = self.calibration_s = 0.0
        self.draft_lens: Counter[int] = Counter()

    def begin(self, prompt_ids: NDArray[np.uint32], *limits: Any, **options: Any) -> None:
        """Same as in `Drafter`; all clocks start anew."""
        self.draft_s = self.verify_s = self.calibration_s = self._head.seconds = 0.0
        self._is_prompt_read = False
        with self._clock("draft_s"):
            self.drafter.begin(prompt_ids, *limits, **options)

    def prefilled(self, logits: NDArray[np.float32]) -> None:
        """Same as in `Drafter`."""
        with self._clock("calibration_s"):
            self.drafter.prefilled(logits)

    def propose(self, past_len: int) -> StepInputs:
        """Same as in `Drafter`."""
        if not self._is_prompt_read:
            self._is_prompt_read = True
            self.calibration_s += self._head.seconds
        with self._clock("draft_s"):
            inputs = self.drafter.propose(past_len)
        self.draft_lens[inputs.num_nodes - 1] += 1
        self._proposed_at = time.perf_counter()
        return inputs

    def accept(self, logits: NDArray[np.float32]) -> Accepted:
        """Same as in `Drafter`."""
        self.verify_s += time.perf_counter() - self._proposed_at
        with self._clock("draft_s"):
            return self.drafter.accept(logits)

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to the attribute `name`."""
        start = time.perf_counter()
        yield
        setattr(self, name, getattr(self, name) + time.perf_counter() - start)
