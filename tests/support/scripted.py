"""A drafter that drafts what a test tells it, so that every kind of draft can be tried."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs import Accepted, Drafter, StepInputs
from coordgen_rs.generation.drafting.proposer import WrappedDrafter

Tree = tuple[list[int], list[int]]
"""Draft nodes below the root: tokens, and parents by node (0 is the root, 1 the first of them)."""


class ScriptedDrafter(WrappedDrafter):
    """Verifies and commits as `drafter` does, but drafts `script(number of tokens given out)`."""

    def __init__(self, drafter: Drafter, script: Callable[[int], Tree]) -> None:
        super().__init__(drafter)
        self._script = script
        self._root, self._given = 0, 0

    def begin(self, prompt_ids: NDArray[np.uint32], *limits: Any, **options: Any) -> None:
        self._root, self._given = int(prompt_ids[-1]), 0
        self.drafter.begin(prompt_ids, *limits, **options)

    def propose(self, past_len: int) -> StepInputs:
        tokens, parents = self._script(self._given)
        draft = np.array([self._root, *tokens], np.uint32), np.array([0, *parents], np.uint32)
        return self.drafter.propose(past_len, draft)

    def accept(self, logits: NDArray[np.float32]) -> Accepted:
        accepted = self.drafter.accept(logits)
        self._given += len(accepted.token_ids)
        self._root = int(accepted.token_ids[-1])
        return accepted


def chain(tokens: list[int]) -> Tree:
    """A tree of one branch."""
    return tokens, list(range(len(tokens)))


def wrong(answer: list[int], given: int) -> Tree:
    """Tokens that the answer does not have there."""
    return chain([(token + 1) % 100 for token in answer[given : given + 7]])


def empty(answer: list[int], given: int) -> Tree:
    """Nothing."""
    return chain([])


def right_to_the_full_width(answer: list[int], given: int) -> Tree:
    """As much of the answer as a step verifies."""
    return chain((answer[given:] + answer)[:31])


def longer_than_the_step(answer: list[int], given: int) -> Tree:
    """More of it."""
    return chain((answer[given:] + answer)[:100])


def side_branch(answer: list[int], given: int) -> Tree:
    """A wrong first path, then the right tokens as the root's second branch."""
    coming = answer[given : given + 6]
    if not coming:
        return chain([])
    tokens = [(coming[0] + 1) % 100, *coming]
    return tokens, [0, 0, *range(2, len(tokens))]


def half_right(answer: list[int], given: int) -> Tree:
    """Two right tokens, then a fork of which only the second way is right."""
    coming = answer[given : given + 5]
    if len(coming) < 3:
        return chain(coming)
    tokens = [*coming[:2], (coming[2] + 1) % 100, *coming[2:]]
    return tokens, [0, 1, 2, 2, *range(4, len(tokens))]


SCRIPTS = (
    wrong,
    empty,
    right_to_the_full_width,
    longer_than_the_step,
    side_branch,
    half_right,
)
