"""A step of a request, and what it does where the target runs: alone at once, or with others.

In: a session, and what drafts. Out: inputs of a step whose logits the session has, tokens that are
read, and how likely the target held them: by the softmax of its own logits, before biases,
penalties, grammars and temperature. A sequence (`runtime/batch.py`) waits for the others: until
then its request yields `WAITS`.
"""

from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs, SwitchReport
from coordgen_rs.errors import arguments
from coordgen_rs.generation.drafting.proposer import DraftProposer
from coordgen_rs.generation.stats import Stats
from coordgen_rs.runtime.session import OnLogits, OnRead, Proposer, Session, SharedSession

MAX_ALTERNATIVES = 20
"""The most alternatives that are told of a token."""

CoreLogprob = tuple[float, list[tuple[int, float]]]
"""What the core tells of a token."""


class TopLogprob(NamedTuple):
    """A token that may have come in another's place.

    Attributes:
        token_id: The token.
        logprob: The natural logarithm of its probability; minus infinity for what is impossible.
    """

    token_id: int
    logprob: float


class TokenLogprob(NamedTuple):
    """How likely the target held a token of its answer.

    Attributes:
        token_id: The token.
        logprob: The natural logarithm of its probability.
        top: The likeliest tokens in its place, as many as were asked for, the likeliest first. The
            token itself is among them only if it is so likely.
    """

    token_id: int
    logprob: float
    top: tuple[TopLogprob, ...]


def checked(logprobs: object) -> int | None:
    """How many alternatives are asked for; None where no logprobs are.

    Raises:
        OptionError: It is no such number, or above 20.
    """
    if logprobs is None:
        return None
    return arguments.count("logprobs", logprobs, least=0, most=MAX_ALTERNATIVES)


def records(token_ids: Sequence[int], told: Iterable[CoreLogprob]) -> tuple[TokenLogprob, ...]:
    """The records of tokens, by what is told of each."""
    return tuple(
        TokenLogprob(token, logprob, tuple(TopLogprob(*one) for one in top))
        for token, (logprob, top) in zip(token_ids, told, strict=True)
    )


class StepTree(NamedTuple):
    """A tree as it was verified. Node 0 is the root: the last token before the step.

    Attributes:
        token_ids: The token of each node.
        parents: The parent of each node, which comes before it; the root's is 0.
        sources: Who proposed each node, as in `Step.sources`; the root's is "target".
    """

    token_ids: list[int]
    parents: list[int]
    sources: list[str]

    def path(self, token_ids: Sequence[int]) -> list[int]:
        """The nodes below the root along the first of `token_ids`, as far as the tree has them."""
        children = {
            (parent, token): node
            for node, (parent, token) in enumerate(zip(self.parents, self.token_ids, strict=True))
            if node
        }
        found, at = list[int](), 0
        for token in token_ids:
            if (at, token) not in children:
                break
            at = children[at, token]
            found.append(at)
        return found


class Step(NamedTuple):
    """The result of one verification.

    Attributes:
        token_ids: The new tokens, in order.
        accept_len: How many of them, from the first, are accepted draft tokens; the target's own
            comes after them.
        provisional: Tokens that are likely to come next; the target may say others.
        sources: Who drafted each token: the name of a source, or "target" if nobody did.
        num_drafted: Draft tokens that were verified, on all branches of the tree.
        num_rows: Rows of the graph that verified them.
        tree: The draft tree, where trees were asked for.
        logprobs: How likely the target held each of `token_ids`, where that was asked for.
    """

    token_ids: list[int]
    accept_len: int
    provisional: Sequence[int] = ()
    sources: Sequence[str] = ()
    num_drafted: int = 0
    num_rows: int = 1
    tree: StepTree | None = None
    logprobs: Sequence[TokenLogprob] = ()


WAITS = Step([], 0)
"""Yielded where a request waits for the next run of its batch."""


def prefill(
    session: Session,
    token_ids: NDArray[np.uint32],
    *,
    on_logits: OnLogits = None,
    on_read: OnRead = None,
) -> Generator[Step, None, SwitchReport | None]:
    """Compute and commit tokens; arguments, result and errors are those of `Session.prefill`."""
    if not isinstance(session, SharedSession):
        return session.prefill(token_ids, on_logits=on_logits, on_read=on_read)
    session.ask_to_read(token_ids, on_logits)
    while session.rest:
        yield from _run(session)
        session.check()
        if on_read is not None:
            on_read(len(token_ids) - session.rest)
    return None


def drafted(session: Session, drafter: Proposer, stats: Stats) -> Generator[Step, None, StepInputs]:
    """The inputs of a step: filled, or, where it is shared, verified already.

    Args:
        session: The target.
        drafter: Fills them.
        stats: Counts a step's waiting as verification.
    """
    if not isinstance(session, SharedSession):
        return drafter.propose(session.length)
    session.offer(drafter)
    stats.begin("verify")
    yield from _run(session)
    return session.taken()


def _run(session: SharedSession) -> Generator[Step]:
    """Wait for a run that has rows of the session; where nobody runs the batch, it runs alone."""
    rest = session.rest
    while session.is_driven and session.is_waiting and session.rest == rest:
        yield WAITS
    if session.is_waiting and session.rest == rest:
        session.run_alone()


class PlainStep:
    """The step of plain decoding: one token in the narrowest step that fits.

    Args:
        session: The target.
        root: The token, `(1,) u32`, as it is when the step is filled.
    """

    def __init__(self, session: Session, root: NDArray[np.uint32]) -> None:
        self._session, self._root = session, root

    def propose(self, past_len: int) -> StepInputs:
        """Fill the step behind `past_len` tokens."""
        every = self._session.step_inputs
        fitting = (inputs for inputs in every if past_len + inputs.rows <= inputs.attended)
        inputs = next(fitting, every[0])  # whose `fill_chain` refuses it by name
        inputs.fill_chain(self._root, past_len)
        return inputs

    def offer(self, past_len: int) -> tuple[NDArray[np.float32], int]:
        """The token alone, behind `past_len` others."""
        return np.ones(1, np.float32), 1

    def take(self, num_nodes: int, cost: float | None = None) -> StepInputs:
        """The step of one node, whatever `num_nodes` and its `cost`."""
        return self.propose(self._session.length)


def first_path(inputs: StepInputs) -> list[int]:
    """The tokens of the tree's first path, below its root."""
    depths = inputs.position_ids[: inputs.num_nodes] - inputs.position_ids[0]
    path_len = np.count_nonzero(depths == np.arange(len(depths)))  # row i is i tokens deep
    path: list[int] = inputs.input_ids[1:path_len].tolist()
    return path


def tree_of(drafter: DraftProposer) -> StepTree:
    """The tree that a drafter has proposed and not yet verified."""
    token_ids, parents = drafter.draft
    return StepTree(token_ids.tolist(), parents.tolist(), drafter.node_sources)
