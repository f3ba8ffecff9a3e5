"""Checks of a request before anything is computed: its prompt, its limits, what is there of it."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coordgen_rs.errors import EmptyPromptError, OptionError, PromptTooLongError, arguments
from coordgen_rs.runtime.session import Session

if TYPE_CHECKING:
    from coordgen_rs.text.grammar.matcher import Matcher


class Limits(Protocol):
    """What limits a request: the tokens that a model knows, and how many it can hold."""

    @property
    def vocab_size(self) -> int:
        """Number of ids in its vocabulary."""

    @property
    def capacity(self) -> int:
        """Most tokens that it can hold."""


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


def admit(session: Limits, prompt_ids: ArrayLike, max_new_tokens: int) -> Request:
    """Check a request.

    Args:
        session: The target, or a host of it.
        prompt_ids: `(tokens,)` integers.
        max_new_tokens: Most new tokens asked for.

    Raises:
        OptionError: The prompt is not integers, or `max_new_tokens` is below 1 or no integer.
        ShapeError: The prompt has more than one dimension.
        EmptyPromptError: The prompt has no token.
        PromptTooLongError: It has more than the cache holds.
        TokenOutOfRangeError: It holds an unknown token.
    """
    prompt = arguments.token_ids("the prompt", prompt_ids, session.vocab_size)
    max_new_tokens = arguments.count("max_new_tokens", max_new_tokens)
    if len(prompt) == 0:
        raise EmptyPromptError("the prompt is empty: there is no token to continue from")
    if len(prompt) > session.capacity:
        raise PromptTooLongError(
            f"the prompt has {len(prompt)} tokens, the cache holds {session.capacity}: give less, "
            "or open the model with a larger context (--context N)"
        )
    # The last new token needs no slot, and the last prompt token takes one in the first step.
    room = session.capacity - len(prompt) + 1
    return Request(prompt, min(max_new_tokens, room), room < max_new_tokens)


def admit_grammar(
    session: Session, grammar: "Matcher | None", *, ignore_eos: bool
) -> "dict[str, Matcher]":
    """Start an answer under a grammar. The keyword for the drafter; none where there is no grammar.

    Raises:
        OptionError: The grammar is no `Matcher`, or one of another vocabulary.
        UnsupportedGrammarError: It allows no token at all.
    """
    if grammar is None:
        return {}
    from coordgen_rs.text.grammar.matcher import Matcher

    if not isinstance(grammar, Matcher):
        raise OptionError(
            "grammar must come from Vocabulary.matcher, but is " + arguments.shown(grammar)
        )
    if grammar.vocab_size != session.vocab_size:
        raise OptionError(
            f"the grammar is of a vocabulary of {grammar.vocab_size} tokens, the target's has "
            f"{session.vocab_size}"
        )
    grammar.begin(ignore_eos=ignore_eos)
    return {"grammar": grammar}
