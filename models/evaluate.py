"""Scores the embedded model on held-out scenes: `python evaluate.py BUNDLE --examples 200`.

In: a bundle made of it. Out: one line a task, from greedy answers of the engine that it is for.
exact: the answer is the expected one, to the letter. facts: every value that had to be copied is in
it. overlap: share of the answer's token 4-grams that occur in the prompt (what can be copied).
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordgen_rs import Session, Tokenizer, generate, make_drafter, open_session
from coordgen_rs.lab.tables import show_table
from corpus import EOS, HELD_OUT_SEEDS, TASKS, Example, example

NGRAM_LEN = 4
MAX_NEW_TOKENS = 96


def answers(
    session: Session, tokenizer: Tokenizer, prompts: list[NDArray[np.uint32]]
) -> list[list[int]]:
    """Ids of the greedy answer to each prompt, without the end token."""
    drafter = make_drafter(session)
    made = []
    for prompt in prompts:
        steps = generate(session, prompt, max_new_tokens=MAX_NEW_TOKENS, drafter=drafter)
        ids = [token for step in steps for token in step.token_ids]
        made.append(ids[:-1] if tokenizer.token(ids[-1]) == EOS else ids)
    return made


def ngram_overlap(prompt: Sequence[int], answer: list[int]) -> float | None:
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
        text, prompt = tokenizer.decode(ids), tokenizer.encode(wanted.prompt).tolist()
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
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--prompts", type=Path, help="folder for one prompt file a task")
    arguments = parser.parse_args()
    session = open_session(arguments.bundle)
    tokenizer = Tokenizer.of(session.bundle)
    rows = []
    for task in TASKS:
        examples = [example(task, seed) for seed in HELD_OUT_SEEDS[: arguments.examples]]
        made = answers(session, tokenizer, [tokenizer.encode(wanted.prompt) for wanted in examples])
        got = score(tokenizer, examples, made)
        shares = [f"{share:.3f}" for share in (got.exact, got.facts, got.overlap)]
        rows.append([task, *shares, f"{got.prompt_len:.0f}", f"{got.answer_len:.0f}"])
        if arguments.prompts is not None:
            chosen = showpiece(tokenizer, examples, made)
            (arguments.prompts / f"{task}.txt").write_text(chosen.prompt)
    columns = ("task", "exact", "facts", "overlap", "prompt length", "answer length")
    show_table(f"{arguments.examples} held-out examples per task", columns, rows)


if __name__ == "__main__":
    main()
