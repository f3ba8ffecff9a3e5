"""What generation needs of a target: the `Session` protocol."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs, SwitchReport


class StepCost(NamedTuple):
    """What a step takes, in microseconds: it grows with what its rows attend to.

    Attributes:
        base: Cost behind no committed token.
        per_token: Cost of every committed token more.
    """

    base: float
    per_token: float


OnLogits = Callable[[NDArray[np.float32]], None] | None
"""Reads logits, which are valid during the call only."""

GapWork = Callable[[], bool] | None
"""Some work, in small parts, for the time that loads take; returns whether there is more of it."""


class Session(Protocol):
    """A target with a cache. After any exception the cache holds exactly the committed tokens.

    Attributes:
        request: Number of the request that owns the session, counted up by each that begins.
        gap_work: Work in small parts for the time in which a step waits for a block that is still
            being loaded: called again and again, until it returns False. It must not touch this
            session.
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
        """Ways to commit that may be asked for: "canonical", "compact"."""

    @property
    def step_inputs(self) -> Sequence[StepInputs]:
        """The input buffers of the decode graphs, one a width, narrowest first."""

    @property
    def step_costs(self) -> Sequence[StepCost] | None:
        """Microseconds of a step of each width; None where all cost the same."""

    def prefill(
        self,
        token_ids: NDArray[np.uint32],
        *,
        on_logits: OnLogits = None,
    ) -> SwitchReport | None:
        """Compute and commit the given tokens behind those that are there.

        Args:
            token_ids: `(tokens,) u32`.
            on_logits: Called with the logits `(rows, vocab_size) f32` of the next tokens, several
                times, until all have had theirs; they are valid during the call only. None: nobody
                reads them, and nothing need be computed for them.

        Returns:
            How the loads went; None where nothing had to be loaded.
        """

    def step(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Run the decode graph that `inputs` belongs to.

        Args:
            inputs: Filled inputs of one of the decode graphs.

        Returns:
            Logits `(rows, vocab_size) f32`, valid until the next call. Nothing is committed.
        """

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Make `rows`, `(tokens,) u32`, ascending, of the last step part of the cache."""

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` committed tokens."""

    def close(self) -> None:
        """Release what it holds; later runs raise SessionClosedError."""
