"""What generation needs from a target: the `Session` protocol, and sessions that share runs.

In: tokens to read, steps that are filled, or candidates for a step that several requests share.
Out: logits, and reports. It needs no ONNX Runtime.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs, SwitchReport
from coordgen_rs.errors import CallOrderError, OptionError, arguments

if TYPE_CHECKING:
    from coordgen_rs._core import ExpertStore

COMMITS = ("auto", "canonical", "compact")
"""Ways to commit drafts; `auto` chooses by what was measured."""


class StepCost(NamedTuple):
    """The time of a step, in microseconds; it grows with the tokens that its rows attend to.

    Attributes:
        base: Cost with an empty cache.
        per_token: Additional cost per committed token.
        experts: Experts of all layers that it reads where its tokens are unrelated, within a memory
            budget those that are not in memory then; 0 where there are none.
        per_expert: What each of them costs.
    """

    base: float
    per_token: float
    experts: float = 0.0
    per_expert: float = 0.0


@dataclass(frozen=True)
class ExpertReport:
    """What was asked of experts, and what of it had to be read.

    Attributes:
        asked: Experts that layers have chosen, each once in a run of the layer.
        misses: Those of them that were not in memory.
        read_bytes: Bytes that were read, ahead or not.
        waited_s: Seconds in which layers waited for reads.
        ahead: Experts that were read ahead, or in part.
        ahead_used: Those of them that were chosen.
        ahead_wasted: Those of them that were dropped before.
        wasted_bytes: Bytes that were read of these.
        held_bytes: Bytes of experts in memory, now.
    """

    asked: int
    misses: int
    read_bytes: int
    waited_s: float
    ahead: int
    ahead_used: int
    ahead_wasted: int
    wasted_bytes: int
    held_bytes: int

    @classmethod
    def of(cls, store: "ExpertStore") -> Self:
        """What a store has done so far."""
        told = store.report()
        return cls(waited_s=told.pop("waited_us") / 1e6, **told)

    def since(self, before: "ExpertReport") -> "ExpertReport":
        """What came of it after `before`."""
        held = {"held_bytes": self.held_bytes}
        counts = {name: count - getattr(before, name) for name, count in asdict(self).items()}
        return ExpertReport(**(counts | held))

    def __str__(self) -> str:
        """The figures that people ask for first, on one line."""
        share = 100 * self.misses / self.asked if self.asked else 0.0
        return (
            f"{self.asked:,} asked for, {share:.1f} % of them not in memory; "
            f"{self.read_bytes / 1e9:.2f} GB read, {self.waited_s:.2f} s waited; "
            f"{self.ahead:,} read ahead, {self.ahead_used:,} of them used"
        )

    def to_json(self) -> dict[str, Any]:
        """The figures under the names that `coordgen generate --json` prints."""
        return asdict(self) | {"waited_s": round(self.waited_s, 6)}


OnLogits = Callable[[NDArray[np.float32]], None] | None
"""Reads logits, which are only valid during the call."""

OnRead = Callable[[int], None] | None
"""Told how many tokens of a prompt have been read."""

GapWork = Callable[[float], bool] | None
"""Does a small part of the work for load gaps; returns whether there is more.

Told how many microseconds the gap is expected to last from now on: it begins nothing that takes
longer.
"""


class Session(Protocol):
    """A target with a cache. After any exception the cache holds exactly the committed tokens.

    Attributes:
        request: Number of the request that owns the session; each new request adds 1.
        gap_work: Work in small parts, to do while a step waits for a block to be loaded. It is
            called repeatedly until it returns False, and must not touch this session.
    """

    request: int
    gap_work: GapWork

    @property
    def length(self) -> int:
        """Number of committed tokens."""

    @property
    def capacity(self) -> int:
        """Number of tokens that the cache can hold."""

    @property
    def vocab_size(self) -> int:
        """Number of columns of the logits."""

    @property
    def end_token_ids(self) -> Sequence[int]:
        """Tokens that end an answer."""

    @property
    def allowed_commits(self) -> Sequence[str]:
        """Ways to commit that are allowed: "canonical", "compact"."""

    @property
    def exact_commits(self) -> Sequence[str]:
        """Those of them that change no token here; "auto" takes compact where it is among them."""

    @property
    def step_inputs(self) -> Sequence[StepInputs]:
        """The input buffers of the decode graphs, one per width, narrowest first."""

    @property
    def step_costs(self) -> Sequence[StepCost] | None:
        """Microseconds of a step of each width; None if all cost the same."""

    def prefill(
        self, token_ids: NDArray[np.uint32], *, on_logits: OnLogits = None, on_read: OnRead = None
    ) -> SwitchReport | None:
        """Compute the given tokens after the committed ones, and commit them.

        Args:
            token_ids: `(tokens,) u32`.
            on_logits: Called with the logits `(rows, vocab_size) f32` of the next tokens, several
                times, until each token had its row; they are only valid during the call. With None,
                no logits are computed.
            on_read: Called behind each chunk with how many of the tokens are committed. It may end
                the prefill by an exception: what is committed stays.

        Returns:
            How loading went; None if nothing had to be loaded.
        """

    def step(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Run the decode graph that `inputs` belongs to.

        Args:
            inputs: Filled inputs of one of the decode graphs.

        Returns:
            Logits `(rows, vocab_size) f32`, valid until the next call. Nothing is committed.
        """

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Add `rows` of the last step, `(tokens,) u32` ascending, to the cache."""

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` committed tokens; some may be read again for that."""

    def close(self) -> None:
        """Release what it holds; later runs raise SessionClosedError."""


class Proposer(Protocol):
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


class Prefill(NamedTuple):
    """Tokens that a request waits for to be read.

    What is left of it follows from what is committed: an interrupt comes between no two of these.

    Attributes:
        token_ids: All of it, `(tokens,) u32`.
        start: How many tokens stand before it.
        on_logits: Same as in `Session.prefill`.
    """

    token_ids: NDArray[np.uint32]
    start: int
    on_logits: OnLogits


class SharedSession(ABC):
    """A session whose runs are shared with other requests, as far as asking for them goes.

    Attributes:
        is_driven: Whether somebody runs the batch; else what is asked for is run alone.
        asked: What it waits for: a step of what drafts for it, or tokens to be read; None where it
            waits for nothing.
    """

    is_driven = False
    asked: Proposer | Prefill | None = None
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

    def offer(self, offers: Proposer) -> None:
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
            if not (isinstance(self.asked, FilledStep) and self.asked.inputs is inputs):
                self.offer(FilledStep(inputs, inputs.rows))
            self._run_alone_if_asked()
        verified, self._verified = self._verified, None
        if verified is None:
            raise CallOrderError("the step was asked for by another request")
        return verified[1]

    @property
    def rest(self) -> int:
        """Tokens that are still to be read."""
        return len(self.left(self.asked)) if isinstance(self.asked, Prefill) else 0

    def left(self, asked: Prefill) -> NDArray[np.uint32]:
        """What is still to be read of what it has `asked`, `(tokens,) u32`."""
        return asked.token_ids[self.length - asked.start :]

    @property
    def is_waiting(self) -> bool:
        """Whether what was asked for has not run, or not all of it."""
        if isinstance(self.asked, Prefill) and not self.rest:
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
            self.offer(FilledStep(inputs, len(logits)))

    def _run_alone_if_asked(self) -> None:
        if self.asked is not None:
            self.run_alone()
        self.check()


class FilledStep:
    """Proposes a step that is filled already, as a whole.

    Args:
        inputs: The step.
        rows: How many rows of logits are expected where it runs alone: all, or those of its nodes.
    """

    def __init__(self, inputs: StepInputs, rows: int) -> None:
        self.inputs, self.rows = inputs, rows

    def propose(self, past_len: int) -> StepInputs:
        """Same as in `Proposer`."""
        return self.inputs

    def offer(self, past_len: int) -> tuple[NDArray[np.float32], int]:
        """Same as in `Proposer`."""
        num_nodes = self.inputs.num_nodes
        return np.ones(num_nodes, np.float32), num_nodes

    def take(self, num_nodes: int, cost: float | None = None) -> StepInputs:
        """Same as in `Proposer`."""
        return self.inputs


def check_session(session: object) -> None:
    """Check that something is a session.

    Raises:
        OptionError: It is something else.
    """
    if not hasattr(session, "step_inputs"):
        raise OptionError(f"session must be a session, but is {arguments.shown(session)}")
