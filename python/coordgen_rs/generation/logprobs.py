"""How likely the target held the tokens of its answer: records of what the core tells.

In: tuples, as the core gives them with each step. Out: a record for each token. Probabilities are
those of the softmax of the target's own logits, before biases, penalties, grammars and temperature.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from coordgen_rs.errors import arguments

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
