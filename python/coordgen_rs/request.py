"""Checks of a request before anything is computed: its prompt, its limits, its prediction."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coordgen_rs.errors import (
    EmptyPromptError,
    OptionError,
    PromptTooLongError,
    TokenOutOfRangeError,
)
from coordgen_rs.target.session import Session


class Request(NamedTuple):
    """A checked request.

    Attributes:
        prompt: `(tokens,) u32`, at least one; a copy.
        limit: Most new tokens: as asked for, or as many as fit into the cache.
        is_cut: Whether fewer fit into the cache than were asked for.
    """

    prompt: NDArray[np.uint32]
    limit: int
    is_cut: bool

    def finish_reason(self, reason: str | None) -> str | None:
        """A drafter's reason as shown to users: a full cache is not the limit they set."""
        return "capacity" if reason == "length" and self.is_cut else reason


def admit(session: Session, prompt_ids: ArrayLike, max_new_tokens: int) -> Request:
    """Check a request.

    Args:
        session: The target.
        prompt_ids: `(tokens,)` integers.
        max_new_tokens: Most new tokens asked for.

    Raises:
        OptionError: `max_new_tokens` is below 1.
        EmptyPromptError: The prompt has no token.
        PromptTooLongError: It has more than the cache holds.
        TokenOutOfRangeError: It holds an unknown token.
    """
    prompt = _token_ids(prompt_ids)
    if max_new_tokens < 1:
        raise OptionError(f"max_new_tokens is {max_new_tokens}, but must be at least 1")
    if len(prompt) == 0:
        raise EmptyPromptError("the prompt is empty: there is no token to continue from")
    if len(prompt) > session.capacity:
        raise PromptTooLongError(
            f"the prompt has {len(prompt)} tokens, the cache holds {session.capacity}"
        )
    _check_known(prompt, session, "the prompt")
    # The last new token needs no slot, and the last prompt token takes one in the first step.
    room = session.capacity - len(prompt) + 1
    return Request(prompt.astype(np.uint32), min(max_new_tokens, room), room < max_new_tokens)


def predicted(session: Session, prediction: ArrayLike | None) -> NDArray[np.uint32] | None:
    """A prediction `(tokens,)` as the drafter reads it, `(tokens,) u32`; None if there is none.

    Raises:
        TokenOutOfRangeError: It holds an unknown token.
    """
    if prediction is None:
        return None
    tokens = _token_ids(prediction)
    _check_known(tokens, session, "the prediction")
    return tokens.astype(np.uint32)


def _token_ids(token_ids: ArrayLike) -> NDArray[np.int64]:
    return np.array(token_ids, np.int64).reshape(-1)


def _check_known(token_ids: NDArray[np.int64], session: Session, what: str) -> None:
    unknown = token_ids[(token_ids < 0) | (token_ids >= session.vocab_size)]
    if len(unknown):
        raise TokenOutOfRangeError(
            f"{what}: token id {unknown[0]} is outside the vocabulary of {session.vocab_size}"
        )
