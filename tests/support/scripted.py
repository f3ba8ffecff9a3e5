"""A drafter that drafts what a test tells it, so that every kind of draft can be tried."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs import Accepted, Drafter, StepInputs
from coordgen_rs.drafting.wrapped import WrappedDrafter

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
        super().begin(prompt_ids, *limits, **options)

    def propose(self, past_len: int) -> StepInputs:
        tokens, parents = self._script(self._given)
        draft = np.array([self._root, *tokens], np.uint32), np.array([0, *parents], np.uint32)
        return self.drafter.propose(past_len, draft)

    def accept(self, logits: NDArray[np.float32]) -> Accepted:
        accepted = super().accept(logits)
        self._given += len(accepted.token_ids)
        self._root = int(accepted.token_ids[-1])
        return accepted


def chain(tokens: list[int]) -> Tree:
    """A tree of one branch."""
    return tokens, list(range(len(tokens)))
