"""What an answer's steps say, and steps that are made by hand."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs import Step

TokenIds = Sequence[int] | NDArray[np.uint32]


def tokens_of(steps: Iterable[Step]) -> list[int]:
    """All new tokens."""
    return [token for step in steps for token in step.token_ids]


def step_of(session: Any, tokens: TokenIds, parents: Sequence[int] = ()) -> NDArray[np.float32]:
    """Logits of a step behind what is committed: of a tree, or of a chain if nothing is said."""
    inputs = next(it for it in session.step_inputs if it.rows >= len(tokens))
    tree = list(parents) or [0, *range(len(tokens) - 1)]
    inputs.fill(np.asarray(tokens, np.uint32), np.array(tree, np.uint32), session.length)
    return session.step(inputs)[: len(tokens)].copy()


def token_by_token(session: Any, tokens: TokenIds) -> NDArray[np.float32]:
    """Logits of tokens that are committed, each in a step of its own."""
    rows = []
    for token in tokens:
        rows.append(step_of(session, [token])[0])
        session.commit(np.zeros(1, np.uint32))
    return np.stack(rows)


def prompt_logits(session: Any, prompt: NDArray[np.uint32], *graphs: str) -> NDArray[np.float32]:
    """Logits of every token of a prompt that is read from its start."""
    rows: list[NDArray[np.float32]] = []
    session.rewind(0)
    session.prefill(prompt, *graphs, on_logits=lambda part: rows.append(part.copy()))
    return np.concatenate(rows)
