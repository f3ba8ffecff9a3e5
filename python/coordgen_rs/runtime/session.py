"""What generation needs from a target: the `Session` protocol."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs, SwitchReport
from coordgen_rs.errors import OptionError, arguments

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

GapWork = Callable[[], bool] | None
"""Does a small part of the work for load gaps; returns whether there is more."""


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
        self,
        token_ids: NDArray[np.uint32],
        *,
        on_logits: OnLogits = None,
        on_read: OnRead = None,
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


def check_session(session: object) -> None:
    """Check that something is a session.

    Raises:
        OptionError: It is something else.
    """
    if not hasattr(session, "step_inputs"):
        raise OptionError(f"session must be a session, but is {arguments.shown(session)}")
