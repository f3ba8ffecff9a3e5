"""What a request needs of a session that shares its runs with others, and what it offers for them.

In: candidates for a step, or tokens to read. Out: what came of them, once the next run is over.
"""

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs
from coordgen_rs.runtime.session import OnLogits


class Offers(Protocol):
    """What drafts for a request: candidates first, and then as many of them as there are rows.

    Where it is alone, it chooses by itself how many (`propose`).
    """

    def propose(self, past_len: int) -> StepInputs:
        """Fill step inputs behind `past_len` tokens; the logits of all their rows are read."""

    def offer(self, past_len: int) -> tuple[NDArray[np.float32], int]:
        """What could be verified behind `past_len` tokens.

        Returns:
            The worth of each candidate, never increasing, `(nodes,) f32`; and how many of them must
            be taken.
        """

    def take(self, num_nodes: int, cost: float | None = None) -> StepInputs:
        """Fill step inputs with the worthiest `num_nodes`, whose part of the step costs `cost`."""


class SharesRuns(ABC):
    """A session whose runs are shared.

    Attributes:
        is_driven: Whether somebody runs the batch; else what is asked for is run alone.
    """

    is_driven: bool

    @abstractmethod
    def offer(self, offers: Offers) -> None:
        """Ask for a step: what it holds is told by `taken` once it has run."""

    @abstractmethod
    def taken(self) -> StepInputs:
        """The inputs of the step that was asked for, which has run, or runs now, alone.

        Raises:
            CallOrderError: None was asked for.
            Others are those of `Session.step`, and of what drafts.
        """

    @abstractmethod
    def ask_to_read(self, token_ids: NDArray[np.uint32], on_logits: OnLogits = None) -> None:
        """Ask for tokens to be read behind the committed ones; `rest` tells how many are left.

        Args:
            token_ids: `(tokens,) u32`.
            on_logits: Same as in `Session.prefill`.

        Raises:
            OptionError, TokenOutOfRangeError: Same as in `Session.prefill`.
            ShapeError: The tokens do not fit into the cache, or have more than one dimension.
        """

    @property
    @abstractmethod
    def is_waiting(self) -> bool:
        """Whether what was asked for has not run, or not all of it."""

    @property
    @abstractmethod
    def rest(self) -> int:
        """Tokens that are still to be read."""

    @abstractmethod
    def run_alone(self) -> None:
        """Run what was asked for, without others."""

    @abstractmethod
    def check(self) -> None:
        """Raise what the last run has failed with, if it has."""
