"""A drafter that passes every call on to another one; subclasses change some of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import Accepted, Drafter, StepInputs
from coordgen_rs.errors import CallOrderError
from coordgen_rs.errors.process import NotCopied


class WrappedDrafter(NotCopied):
    """A drafter whose subclasses change what it proposes.

    Args:
        drafter: Verifies and commits.

    Attributes:
        drafter: The `drafter` argument.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self._whole: StepInputs | None = None  # what was proposed for a shared step

    def begin(self, prompt_ids: NDArray[np.uint32], *limits: Any, **options: Any) -> None:
        """Same as in `Drafter`."""
        self.drafter.begin(prompt_ids, *limits, **options)

    @property
    def reads_prefill(self) -> bool:
        """Same as in `Drafter`."""
        return self.drafter.reads_prefill

    def prefilled(self, logits: NDArray[np.float32]) -> None:
        """Same as in `Drafter`."""
        self.drafter.prefilled(logits)

    def propose(self, past_len: int) -> StepInputs:
        """Same as in `Drafter`."""
        return self.drafter.propose(past_len)

    def offer(self, past_len: int) -> tuple[NDArray[np.float32], int]:
        """The whole tree that is proposed behind `past_len` tokens: subclasses choose its rows."""
        self._whole = self.propose(past_len)
        num_nodes = self._whole.num_nodes
        return np.ones(num_nodes, np.float32), num_nodes

    def take(self, num_nodes: int, cost: float | None = None) -> StepInputs:
        """Same as in `Drafter`, with all `num_nodes` of them, whatever their `cost`.

        Raises:
            CallOrderError: Nothing was offered.
        """
        whole, self._whole = self._whole, None
        if whole is None:
            raise CallOrderError("take was called before offer")
        return whole

    def accept(self, logits: NDArray[np.float32]) -> Accepted:
        """Same as in `Drafter`."""
        return self.drafter.accept(logits)

    def draft_on(self) -> bool:
        """Same as in `Drafter`."""
        return self.drafter.draft_on()

    def end(self) -> None:
        """Same as in `Drafter`."""
        self.drafter.end()

    @property
    def draft(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Same as in `Drafter`."""
        return self.drafter.draft

    @property
    def node_sources(self) -> list[str]:
        """Same as in `Drafter`."""
        return self.drafter.node_sources

    @property
    def accept_histogram(self) -> list[int]:
        """Same as in `Drafter`."""
        return self.drafter.accept_histogram

    @property
    def per_source(self) -> dict[str, dict[str, int]]:
        """Same as in `Drafter`."""
        return self.drafter.per_source

    def memory_bytes(self) -> int:
        """Same as in `Drafter`."""
        return self.drafter.memory_bytes()
