"""What a request asks of a session that shares its runs with others, what it offers, and counts.

In: candidates for a step, or tokens to read. Out: what came of them, once the next run is over; and
sums over all runs. It needs no ONNX Runtime.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs
from coordgen_rs.errors import CallOrderError
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


class Reading(NamedTuple):
    """A request whose prompt is read.

    What is left of it follows from what is committed: an interrupt comes between no two of these.

    Attributes:
        token_ids: All of it, `(tokens,) u32`.
        start: How many tokens stand before it.
        on_logits: Same as in `Session.prefill`.
    """

    token_ids: NDArray[np.uint32]
    start: int
    on_logits: OnLogits


class SharesRuns(ABC):
    """A session whose runs are shared, as far as asking for them goes.

    Attributes:
        is_driven: Whether somebody runs the batch; else what is asked for is run alone.
        asked: What it waits for: a step of what drafts for it, or tokens to be read; None where it
            waits for nothing.
    """

    is_driven = False
    asked: Offers | Reading | None = None
    _failure: Exception | None = None
    _verified: tuple[StepInputs, NDArray[np.float32]] | None = None

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of committed tokens."""

    @abstractmethod
    def ask_to_read(self, token_ids: NDArray[np.uint32], on_logits: OnLogits = None) -> None:
        """Ask for tokens to be read behind the committed ones; `rest` tells how many are left.

        Args:
            token_ids: `(tokens,) u32`.
            on_logits: Same as in `Session.prefill`.

        Raises:
            OptionError, TokenOutOfRangeError: Same as in `OrtSession.prefill`.
            ShapeError: The tokens do not fit into the cache, or have more than one dimension.
        """

    @abstractmethod
    def run_alone(self) -> None:
        """Run what was asked for, without others."""

    def offer(self, offers: Offers) -> None:
        """Ask for a step: what it holds is told by `taken` once it has run."""
        self._verified = self._failure = None
        self.asked = offers

    def taken(self) -> StepInputs:
        """The inputs of the step that was asked for, which has run, or runs now, alone.

        Raises:
            CallOrderError: None was asked for.
            Others are those of `Session.step`, and of what drafts.
        """
        self._run_alone_if_asked()
        if self._verified is None:
            raise CallOrderError("no step was asked for")
        return self._verified[0]

    def step(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Same as in `Session`; where others took part, the logits are those of its nodes alone.

        Raises:
            CallOrderError: Another request has asked for a step.
            Others are those of `OrtSession.step`.
        """
        if self._verified is None or self._verified[0] is not inputs:
            if not (isinstance(self.asked, Filled) and self.asked.inputs is inputs):
                self.offer(Filled(inputs, inputs.rows))
            self._run_alone_if_asked()
        verified, self._verified = self._verified, None
        if verified is None:
            raise CallOrderError("the step was asked for by another request")
        return verified[1]

    @property
    def rest(self) -> int:
        """Tokens that are still to be read."""
        return len(self.left(self.asked)) if isinstance(self.asked, Reading) else 0

    def left(self, asked: Reading) -> NDArray[np.uint32]:
        """What is still to be read of what it has `asked`, `(tokens,) u32`."""
        return asked.token_ids[self.length - asked.start :]

    @property
    def is_waiting(self) -> bool:
        """Whether what was asked for has not run, or not all of it."""
        if isinstance(self.asked, Reading) and not self.rest:
            self.asked = None  # an interrupt came before it could be told
        return self.asked is not None

    def check(self) -> None:
        """Raise what the last run has failed with, if it has."""
        failure, self._failure = self._failure, None
        if failure is not None:
            self.asked = None
            raise failure

    def withdraw(self) -> None:
        """Ask for nothing any more."""
        self.asked = self._verified = self._failure = None

    def failed(self, error: Exception) -> None:
        """Take what a run has failed with; it is raised when the result is asked for."""
        self.asked, self._verified, self._failure = None, None, error

    def _ask_again(self) -> None:
        """Another run is about to overwrite what a step has given that nobody has taken yet."""
        if self._verified is not None:
            inputs, logits = self._verified
            self.offer(Filled(inputs, len(logits)))

    def _run_alone_if_asked(self) -> None:
        if self.asked is not None:
            self.run_alone()
        self.check()


class Filled:
    """Offers a step that is filled already, as a whole.

    Args:
        inputs: The step.
        rows: How many rows of logits are expected where it runs alone: all, or those of its nodes.
    """

    def __init__(self, inputs: StepInputs, rows: int) -> None:
        self.inputs, self.rows = inputs, rows

    def propose(self, past_len: int) -> StepInputs:
        """Same as in `Offers`."""
        return self.inputs

    def offer(self, past_len: int) -> tuple[NDArray[np.float32], int]:
        """Same as in `Offers`."""
        num_nodes = self.inputs.num_nodes
        return np.ones(num_nodes, np.float32), num_nodes

    def take(self, num_nodes: int, cost: float | None = None) -> StepInputs:
        """Same as in `Offers`."""
        return self.inputs


@dataclass
class BatchStats:
    """What the runs of a batch were made of so far.

    Attributes:
        runs: How many there were.
        requests: Requests that had rows in them: two that take part in a run count twice.
        rows: Rows of all of them.
        decode_rows: How many of these verified what requests are about to say; prompts had the
            others.
        prompt_tokens_beside: Tokens of prompts that were read in runs in which others decoded.
    """

    runs: int = 0
    requests: int = 0
    rows: int = 0
    decode_rows: int = 0
    prompt_tokens_beside: int = 0

    def add(self, decoding: list[int], reading: list[int]) -> None:
        """Count a run.

        Args:
            decoding: Rows of each request that decodes in it.
            reading: Tokens that are read in it of each prompt.
        """
        self.runs += 1
        self.requests += len(decoding) + len(reading)
        self.rows += sum(decoding) + sum(reading)
        self.decode_rows += sum(decoding)
        if decoding:
            self.prompt_tokens_beside += sum(reading)
