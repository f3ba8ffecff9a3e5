"""What the loop needs from a drafter, and a drafter that changes what another one proposes."""

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import Accepted, Drafter, Sampling, StepInputs
from coordgen_rs.errors import CallOrderError
from coordgen_rs.store.background import NotCopied

if TYPE_CHECKING:
    from coordgen_rs.text.grammar.matcher import Matcher


class DraftProposer(Protocol):
    """What the loop needs from a drafter; `Drafter` implements it."""

    def begin(
        self,
        prompt_ids: NDArray[np.uint32],
        max_new_tokens: int,
        sampling: Sampling | None = None,
        prediction: NDArray[np.uint32] | None = None,
        *,
        ignore_eos: bool = False,
        num_reused: int = 0,
        grammar: "Matcher | None" = None,
        logprobs: int | None = None,
    ) -> None:
        """Start a request.

        Args:
            prompt_ids: `(tokens,) u32`. The last one is the root of the first tree.
            max_new_tokens: Most new tokens.
            sampling: How the target's tokens are chosen from its logits; None takes the likeliest.
            prediction: `(tokens,) u32`, the answer as the caller expects it.
            ignore_eos: End tokens do not end the answer.
            num_reused: Tokens, from the prompt's first, that the session has kept.
            grammar: What the target may say; given only where there is one.
            logprobs: How many alternatives are told of each token; given only where any are asked.

        Raises:
            CoordgenError: The request cannot be followed.
        """

    @property
    def reads_prefill(self) -> bool:
        """Whether it asks for the logits of the prompt."""

    def prefilled(self, logits: NDArray[np.float32]) -> None:
        """Learn what the target expects after the prompt's next tokens.

        Args:
            logits: `(rows, vocab_size) f32`, row after row from the prompt's first token on.

        Raises:
            CallOrderError: No request is running.
        """

    def propose(self, past_len: int) -> StepInputs:
        """Draft a tree, and fill the inputs of the step that will verify it.

        Args:
            past_len: Committed tokens before the root.

        Raises:
            CallOrderError: No request is running.
            ShapeError: No step fits after `past_len` tokens.
        """

    def offer(self, past_len: int) -> tuple[NDArray[np.float32], int]:
        """Draft candidates for a step that several requests share; see `Drafter`.

        Args:
            past_len: Committed tokens before the root.

        Raises:
            CallOrderError: No request is running.
            ShapeError: No step fits after `past_len` tokens.
        """

    def take(self, num_nodes: int, cost: float | None = None) -> StepInputs:
        """Fill the inputs with the worthiest of them: that is the tree which will be verified.

        Args:
            num_nodes: How many.
            cost: What they cost of the step that is shared; None where costs are not known.

        Raises:
            CallOrderError: Nothing was offered.
        """

    def accept(self, logits: NDArray[np.float32]) -> Accepted:
        """Verify the tree against the step's logits.

        Args:
            logits: `(rows, vocab_size) f32`, of the step that was proposed or taken.

        Raises:
            CallOrderError: No tree waits for it.
            ShapeError: The logits have another dtype or shape.
            NonFiniteLogitsError: A row has no usable maximum.
        """

    def draft_on(self, wait_us: float) -> bool:
        """Draft a little more while the target waits; False if there is nothing to do.

        Args:
            wait_us: Microseconds that it is expected to wait.
        """

    def end(self) -> None:
        """Give the request up, if it has not ended, and what it holds that others share."""

    @property
    def draft(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Token ids and parents of the last proposed tree, `(nodes,) u32` each."""

    @property
    def node_sources(self) -> list[str]:
        """Who put each node into it, as long as it is not verified."""

    @property
    def accept_histogram(self) -> list[int]:
        """Entry `n` counts the steps that accepted `n` draft tokens."""

    @property
    def per_source(self) -> dict[str, dict[str, int]]:
        """Draft tokens proposed and accepted, by source."""


class WrappedDrafter(NotCopied):
    """A drafter that passes calls on to another one; subclasses change what it proposes.

    Args:
        drafter: Verifies and commits.

    Attributes:
        drafter: The `drafter` argument.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self._whole: StepInputs | None = None  # what was proposed for a shared step

    def __getattr__(self, name: str) -> Any:
        """What else `Drafter` has.

        Raises:
            AttributeError: It has no such thing, or there is none yet.
        """
        if name == "drafter":
            raise AttributeError(f"this {type(self).__name__} was not set up")
        return getattr(self.drafter, name)

    def begin(self, prompt_ids: NDArray[np.uint32], *limits: Any, **options: Any) -> None:
        """Same as in `Drafter`."""
        self.drafter.begin(prompt_ids, *limits, **options)

    def prefilled(self, logits: NDArray[np.float32]) -> None:
        """Same as in `Drafter`."""
        self.drafter.prefilled(logits)

    def propose(self, past_len: int) -> StepInputs:
        """Same as in `Drafter`."""
        return self.drafter.propose(past_len)

    def accept(self, logits: NDArray[np.float32]) -> Accepted:
        """Same as in `Drafter`."""
        return self.drafter.accept(logits)

    def end(self) -> None:
        """Same as in `Drafter`."""
        self.drafter.end()

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
