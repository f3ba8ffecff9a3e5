"""Scores the embedded model on held-out scenes: `python evaluate.py --examples 200`.

In: a Hugging Face directory as `train.py` writes it. Out: one line a task, from greedy answers.
exact: the answer is the expected one, to the letter. facts: every value that had to be copied is in
it. overlap: share of the answer's token 4-grams that occur in the prompt (what can be drafted).
"""

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from corpus import HELD_OUT_SEEDS, TASKS, Example, example
from model import BOS_ID, EOS_ID, Cache, Params, Shape, forward, load

NGRAM_LEN = 4
BATCH_ROWS = 50

State = tuple[jax.Array, Cache]
"""The last token of each row, and the cache of those before it."""


@partial(jax.jit, static_argnums=(1, 4))
def decode(
    params: Params, shape: Shape, prompts: jax.Array, lens: jax.Array, num_new: int
) -> jax.Array:
    """Greedy continuations `(batch, num_new)` i32 of prompts `(batch, len)` padded at their end.

    Padding leaves rubbish in the slots behind a prompt; each is overwritten before it can be seen.
    """
    batch, prompt_len = prompts.shape
    slots = (batch, prompt_len + num_new, shape.num_heads, shape.head_dim)
    cache = [(jnp.zeros(slots), jnp.zeros(slots)) for _ in range(shape.num_layers)]
    positions = jnp.broadcast_to(jnp.arange(prompt_len), prompts.shape)
    logits, cache = forward(params, shape, prompts, positions, cache)
    last = jnp.take_along_axis(logits, (lens - 1)[:, None, None], 1)[:, 0]

    def step(state: State, index: jax.Array) -> tuple[State, jax.Array]:
        token, cache = state
        logits, cache = forward(params, shape, token[:, None], (lens + index)[:, None], cache)
        return (logits[:, 0].argmax(-1), cache), token

    _, tokens = jax.lax.scan(step, (last.argmax(-1), cache), jnp.arange(num_new))
    return tokens.T


def answers(
    params: Params, shape: Shape, tokenizer: Tokenizer, prompts: list[str], num_new: int = 96
) -> list[list[int]]:
    """Ids of the greedy answer to each prompt, without the end token."""
    encoded = [tokenizer.encode(prompt).ids for prompt in prompts]
    lens = np.array([len(ids) for ids in encoded])
    padded = np.full((len(encoded), -(-lens.max() // 64) * 64), BOS_ID, np.int32)
    for row, ids in enumerate(encoded):
        padded[row, : len(ids)] = ids
    made = np.asarray(decode(params, shape, padded, lens, num_new))
    return [row[: row.index(EOS_ID)] if EOS_ID in row else row for row in made.tolist()]


def ngram_overlap(prompt: list[int], answer: list[int]) -> float | None:
    """Share of the answer's 4-grams that occur in the prompt; None where the answer has none."""
    windows = [tuple(answer[i : i + NGRAM_LEN]) for i in range(len(answer) - NGRAM_LEN + 1)]
    seen = {tuple(prompt[i : i + NGRAM_LEN]) for i in range(len(prompt) - NGRAM_LEN + 1)}
    return sum(window in seen for window in windows) / len(windows) if windows else None


@dataclass(frozen=True)
class Score:
    """Means over the examples of one task."""

    exact: float
    facts: float
    overlap: float
    prompt_len: float
    answer_len: float


def score(tokenizer: Tokenizer, examples: list[Example], made: list[list[int]]) -> Score:
    """Compares the answers that were made with those that were wanted."""
    exact, facts, overlaps, prompt_lens = [], [], [], []
    for wanted, ids in zip(examples, made, strict=True):
        text, prompt = tokenizer.decode(ids), tokenizer.encode(wanted.prompt).ids
        exact.append(text == wanted.answer)
        facts.append(all(fact in text for fact in wanted.facts))
        overlaps.append(ngram_overlap(prompt, ids) or 0.0)
        prompt_lens.append(len(prompt))
    answer_lens = [len(ids) for ids in made]
    columns = (exact, facts, overlaps, prompt_lens, answer_lens)
    return Score(*(float(np.mean(column)) for column in columns))


def showpiece(tokenizer: Tokenizer, examples: list[Example], made: list[list[int]]) -> Example:
    """The example with the longest answer among those that the model gets right to the letter."""
    right = [
        (len(ids), -index)
        for index, (wanted, ids) in enumerate(zip(examples, made, strict=True))
        if tokenizer.decode(ids) == wanted.answer
    ]
    return examples[-max(right)[1]]


def main() -> None:
    """Prints the scores of each task, and writes demo prompts if asked to."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent / "embedded")
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--prompts", type=Path, help="folder for one prompt file a task")
    arguments = parser.parse_args()
    params, shape = load(arguments.model)
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    print("task     exact  facts  overlap  prompt  answer")
    for task in TASKS:
        examples = [example(task, seed) for seed in HELD_OUT_SEEDS[: arguments.examples]]
        made: list[list[int]] = []
        for begin in range(0, len(examples), BATCH_ROWS):
            prompts = [wanted.prompt for wanted in examples[begin : begin + BATCH_ROWS]]
            made += answers(params, shape, tokenizer, prompts)
        got = score(tokenizer, examples, made)
        print(
            f"{task:8} {got.exact:5.3f}  {got.facts:5.3f}  {got.overlap:7.3f}"
            f"  {got.prompt_len:6.0f}  {got.answer_len:6.0f}",
            flush=True,
        )
        if arguments.prompts is not None:
            chosen = showpiece(tokenizer, examples, made)
            (arguments.prompts / f"{task}.txt").write_text(chosen.prompt)


if __name__ == "__main__":
    main()
