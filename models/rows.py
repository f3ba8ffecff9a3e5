"""Training rows: a context, and beside each other the turns about it, as ids and weights.

In: scenes of `corpus.py`, a tokenizer, a recipe. Out: pools of rows that no other pool has, and
held-out rows to probe a model with. It knows no model.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from corpus import HELD_OUT_SEEDS, TRAIN_SEEDS, ask, scene
from model import BOS_ID, EOS_ID
from recipe import Recipe
from scene import Scene, Turn

TASK_SHARES = ("summary", "rag", "reply", "summary", "rag", "reply", "ui")
"""Which tasks training scenes are of, in turns; ui needs the fewest."""
PROBE_SCENES = 48
"""Held-out scenes a task that are scored after each pool."""


@dataclass(frozen=True)
class Rows:
    """Scenes as rows of one length: a context, and beside each other the turns about it.

    A turn sees the context and itself, as if it alone came after the context.
    `segments` is 0 in the context, k in turn k, and -1 in the padding; arrays are `(rows, len)`.
    """

    ids: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    positions: np.ndarray
    segments: np.ndarray

    @classmethod
    def empty(cls, num_rows: int, row_len: int) -> "Rows":
        """Nothing but padding."""
        ints = (np.zeros((num_rows, row_len), np.int64) for _ in range(3))
        ids, targets, positions = ints
        weights = np.zeros((num_rows, row_len), np.float32)
        return cls(ids, targets, weights, positions, np.full((num_rows, row_len), -1))

    def tensors(self, rows: slice) -> tuple[torch.Tensor, ...]:
        """Ids, targets, weights, positions and segments of some rows."""
        arrays = (self.ids, self.targets, self.weights, self.positions, self.segments)
        return tuple(torch.from_numpy(array[rows]) for array in arrays)


def _place(rows: Rows, row: int, begin: int, position: int, segment: int, ids: list[int]) -> None:
    """Writes a segment; its last id has nothing to predict."""
    part = slice(begin, begin + len(ids))
    rows.ids[row, part] = ids
    rows.targets[row, begin : begin + len(ids) - 1] = ids[1:]
    rows.positions[row, part] = np.arange(position, position + len(ids))
    rows.segments[row, part] = segment


def fill(
    rows: Rows,
    row: int,
    tokenizer: Tokenizer,
    made: Scene,
    turns: tuple[Turn, ...],
    prompt_weight: float,
) -> bool:
    """Puts a scene into a row, with as many of the turns as fit; False where none does."""
    row_len = rows.ids.shape[1]
    context = [BOS_ID, *tokenizer.encode(made.context, add_special_tokens=False).ids]
    at = len(context)
    for turn in turns:
        asked = tokenizer.encode(f"\n\n{ask(made, turn)}", add_special_tokens=False).ids
        answer = [*tokenizer.encode(turn.answer, add_special_tokens=False).ids, EOS_ID]
        end = at + len(asked) + len(answer)
        if end > row_len:
            continue
        segment = int(rows.segments[row].max()) + 1 if at > len(context) else 1
        _place(rows, row, at, len(context), segment, asked + answer)
        rows.weights[row, at : at + len(asked) - 1] = prompt_weight
        rows.weights[row, at + len(asked) - 1 : end - 1] = 1.0
        at = end
    if at == len(context):
        return False
    _place(rows, row, 0, 0, 0, context)
    rows.weights[row, : len(context) - 1] = prompt_weight
    return True


def pool(tokenizer_path: Path, recipe: Recipe, number: int) -> Rows:
    """The rows of one pool: scenes that no other pool has."""
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    num_rows = recipe.pool_steps * recipe.batch_rows
    rows = Rows.empty(num_rows, recipe.row_len)
    seed = (recipe.seed * recipe.num_pools + number) * num_rows * 2
    row = 0
    while row < num_rows:
        task = TASK_SHARES[seed % len(TASK_SHARES)]
        made = scene(task, TRAIN_SEEDS[seed], recipe.twin_share)
        turns = made.turns + made.drills
        row += fill(rows, row, tokenizer, made, turns, recipe.prompt_weight)
        seed += 1
    return rows


def probe_rows(tokenizer: Tokenizer, task: str, recipe: Recipe) -> Rows:
    """Held-out scenes of a task, each with its first turn alone."""
    rows = Rows.empty(PROBE_SCENES, recipe.row_len)
    row = 0
    for seed in HELD_OUT_SEEDS[-PROBE_SCENES:]:
        made = scene(task, seed)
        row += fill(rows, row, tokenizer, made, made.turns[:1], 0.0)
    return rows
