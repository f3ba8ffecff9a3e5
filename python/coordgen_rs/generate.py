"""The whole algorithm on one screen: `generate`, and `plain`, the baseline that it must equal."""

import time
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coordgen_rs._core import Accepted, Drafter, StepInputs
from coordgen_rs.errors import (
    CallOrderError,
    EmptyPromptError,
    NonFiniteLogitsError,
    OptionError,
    PromptTooLongError,
    TokenOutOfRangeError,
)
from coordgen_rs.session import Session
from coordgen_rs.stats import Stats

DRAFT_SOURCES: dict[str, tuple[str, ...]] = {
    "auto": ("automaton",),
    "automaton": ("automaton",),
    "lookup": ("lookup",),
}


class Step(NamedTuple):
    """What one verification gave out.

    Attributes:
        token_ids: The new tokens, in order.
        accept_len: How many of them, from the first, are accepted draft tokens; the target's own
            comes after them.
    """

    token_ids: list[int]
    accept_len: int


class Drafting(Protocol):
    """What the loop needs of a drafter; `Drafter` has it, and so has whatever stands in for one."""

    def begin(self, prompt_ids: NDArray[np.uint32], max_new_tokens: int) -> None:
        """Start a request."""

    def propose(self, past_len: int) -> StepInputs:
        """Draft a tree, and fill the inputs of the step that is to verify it."""

    def accept(self, logits: NDArray[np.float32]) -> Accepted:
        """Verify the tree against the step's logits."""

    @property
    def accept_histogram(self) -> list[int]:
        """Entry `n` counts the steps that accepted `n` draft tokens."""

    @property
    def per_source(self) -> dict[str, dict[str, int]]:
        """Draft tokens proposed and accepted, by source."""


def generate(
    session: Session,
    prompt_ids: ArrayLike,
    *,
    max_new_tokens: int = 256,
    drafter: Drafting | None = None,
    stats: Stats | None = None,
) -> Iterator[Step]:
    """Yield the tokens that `plain` would yield, several at a time.

    Lookups draft a tree, one run of a decode graph verifies it, and what agrees with the target's
    own greedy choice is given out (CoordGen, section 2.2). Stopping early leaves `session`
    holding exactly the committed tokens.

    Args:
        session: The target.
        prompt_ids: `(tokens,)` integers, at least one.
        max_new_tokens: Upper limit of new tokens; the cache's capacity is another.
        drafter: Made by `make_drafter` for this session; keep one to keep what it learned.
        stats: Filled as generation goes.

    Raises:
        EmptyPromptError, PromptTooLongError, TokenOutOfRangeError: The prompt cannot be used.
        NonFiniteLogitsError: The target answered NaN.
        CallOrderError: Another request took the session before this one had ended.
    """
    stats = Stats() if stats is None else stats
    drafter = make_drafter(session) if drafter is None else drafter
    prompt, limit = _admit(session, prompt_ids, max_new_tokens, stats)
    drafter.begin(prompt, limit)
    with stats.timing("prefill_s"):
        session.rewind(0)
        session.prefill(prompt[:-1])  # the last prompt token is the root of the first draft
    try:
        while stats.finish_reason is None:
            start = time.perf_counter()
            _check_owner(session, len(prompt) - 1 + stats.new_tokens)
            inputs = drafter.propose(session.length)
            proposed = time.perf_counter()
            logits = session.step(inputs)
            verified = time.perf_counter()
            accepted = drafter.accept(logits)
            end = time.perf_counter()
            session.commit(accepted.rows)
            stats.drafting_us.append(1e6 * (proposed - start + end - verified))
            _count(stats, len(accepted.token_ids), time.perf_counter() - start)
            stats.finish_reason = _reason(accepted.finish_reason, limit, max_new_tokens)
            yield Step(accepted.token_ids.tolist(), accepted.accept_len)
    finally:
        stats.accept_histogram, stats.per_source = drafter.accept_histogram, drafter.per_source


def plain(
    session: Session,
    prompt_ids: ArrayLike,
    *,
    max_new_tokens: int = 256,
    stats: Stats | None = None,
) -> Iterator[Step]:
    """Greedy decoding, a token a run of the narrowest decode graph: no drafts, no tree mask.

    Arguments and errors as of `generate`.
    """
    stats = Stats() if stats is None else stats
    prompt, limit = _admit(session, prompt_ids, max_new_tokens, stats)
    with stats.timing("prefill_s"):
        session.rewind(0)
        session.prefill(prompt[:-1])
    inputs, token, first_row = session.step_inputs[0], prompt[-1:], np.zeros(1, np.uint32)
    while stats.finish_reason is None:
        start = time.perf_counter()
        _check_owner(session, len(prompt) - 1 + stats.new_tokens)
        inputs.fill_chain(token, session.length)
        logits = session.step(inputs)[0]
        token[0] = logits.argmax()  # the first maximum: ties go to the lowest id
        if not np.isfinite(logits[token[0]]):
            raise NonFiniteLogitsError("row 0 of the logits holds no usable maximum")
        session.commit(first_row)
        _count(stats, 1, time.perf_counter() - start)
        if token[0] in session.end_token_ids:
            stats.finish_reason = "stop"
        elif stats.new_tokens == limit:
            stats.finish_reason = _reason("length", limit, max_new_tokens)
        yield Step(token.tolist(), 0)


def make_drafter(session: Session, draft: str = "auto", commit: str = "canonical") -> Drafter:
    """A drafter for `session`.

    Args:
        session: The target; its measured step costs decide how wide a draft pays.
        draft: "auto", "automaton" (suffix automaton over the request) or "lookup" (prompt lookup).
        commit: "canonical" (exact on every provider) or "compact" (exact where the arithmetic is).

    Raises:
        OptionError: No such draft or commit.
    """
    if draft not in DRAFT_SOURCES:
        raise OptionError(f"draft is {draft!r}, but must be one of {', '.join(DRAFT_SOURCES)}")
    return Drafter(
        session.step_inputs,
        session.vocab_size,
        sources=DRAFT_SOURCES[draft],
        costs=session.step_costs,
        commit=commit,
        end_token_ids=session.end_token_ids,
    )


def _admit(
    session: Session, prompt_ids: ArrayLike, max_new_tokens: int, stats: Stats
) -> tuple[NDArray[np.uint32], int]:
    """Check the prompt; return it as a fresh array, with the number of tokens that can follow."""
    prompt = np.array(prompt_ids, np.int64).reshape(-1)
    if max_new_tokens < 1:
        raise OptionError(f"max_new_tokens is {max_new_tokens}, but must be at least 1")
    if len(prompt) == 0:
        raise EmptyPromptError("the prompt is empty: there is no token to continue from")
    if len(prompt) > session.capacity:
        raise PromptTooLongError(
            f"the prompt has {len(prompt)} tokens, the cache holds {session.capacity}"
        )
    unknown = prompt[(prompt < 0) | (prompt >= session.vocab_size)]
    if len(unknown):
        raise TokenOutOfRangeError(
            f"token id {unknown[0]} is outside the vocabulary of {session.vocab_size}"
        )
    stats.prompt_tokens = len(prompt)
    # The last token given out needs no slot, and the last prompt token takes one in the first step.
    return prompt.astype(np.uint32), min(max_new_tokens, session.capacity - len(prompt) + 1)


def _check_owner(session: Session, expected_len: int) -> None:
    if session.length != expected_len:
        raise CallOrderError(
            f"the session holds {session.length} tokens, this request left {expected_len}: another "
            "request has taken the session"
        )


def _count(stats: Stats, new_tokens: int, seconds: float) -> None:
    stats.steps += 1
    stats.new_tokens += new_tokens
    stats.decode_s += seconds


def _reason(reason: str | None, limit: int, max_new_tokens: int) -> str | None:
    return "capacity" if reason == "length" and limit < max_new_tokens else reason
