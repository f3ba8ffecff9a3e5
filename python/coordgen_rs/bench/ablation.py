"""What calibration, reuse and history each add, on a real model: the layout of the paper's Table 4.

In: a session and prompts by task. Out: tokens a step of every combination, by task. Every answer
is compared with plain decoding on the way. It measures drafting, not time: every step is as wide as
the session allows, as on a processor where rows cost nothing.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from coordgen_rs._core import Drafter
from coordgen_rs.errors import CoordgenError
from coordgen_rs.generate import Step, generate, plain
from coordgen_rs.session import OrtSession
from coordgen_rs.stats import Stats
from coordgen_rs.tokenizer import Tokenizer

BASES: dict[str, tuple[str, ...]] = {
    "prompt-lookup": ("lookup",),
    "automaton": ("automaton",),
    "automaton + history (SAM)": ("automaton", "session"),
}
"""What drafts by itself, by its name in the table; history is earlier requests of the same task."""

OURS = ("calibration", "reuse")


class PromptsError(CoordgenError):
    """A file of prompts cannot be used; the message names the file and the line."""


class NotLosslessError(CoordgenError):
    """Drafting gave other tokens than plain decoding: a bug, and no figure is worth anything."""


class Prompt(NamedTuple):
    """A prompt, and the task that it belongs to."""

    task: str
    prompt: str


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        base: A key of `BASES`.
        ours: Which of `OURS` are on.
    """

    base: str
    ours: tuple[str, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """All that drafts, by the names that `Drafter` knows."""
        return BASES[self.base] + self.ours


ROWS = [Row(base, ours) for base in BASES for ours in ((), OURS[:1], OURS[1:], OURS)]


@dataclass(frozen=True)
class Ablation:
    """Result of `ablate`.

    Attributes:
        tokens_per_step: Of each row by task, `accept_len + 1` averaged over the task's steps, and
            over all steps under "all".
        num_prompts: Prompts of each task, and "all".
        rows: Rows of a step, its root included.
    """

    tokens_per_step: dict[Row, dict[str, float]]
    num_prompts: dict[str, int]
    rows: int

    def gain(self, row: Row, task: str) -> float:
        """How many times the tokens a step of the row's base."""
        base = self.tokens_per_step[Row(row.base, ())][task]
        return self.tokens_per_step[row][task] / base

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON types."""
        return {
            "rows": self.rows,
            "num_prompts": self.num_prompts,
            "ablation": [
                {
                    "base": row.base,
                    **{name: name in row.ours for name in OURS},
                    "sources": list(row.sources),
                    "tokens_per_step": {task: round(x, 4) for task, x in figures.items()},
                    "gain": {task: round(self.gain(row, task), 4) for task in figures},
                }
                for row, figures in self.tokens_per_step.items()
            ],
        }


def read_prompts(path: Path, *, limit: int | None = None) -> list[Prompt]:
    """The prompts of a file, lines with `task` and `prompt`; the first `limit` of each task.

    Raises:
        PromptsError: No line, or one that is no such object.
        OSError: The file cannot be read.
    """
    prompts: list[Prompt] = []
    counts: dict[str, int] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                fields = json.loads(line)
                prompt = Prompt(fields["task"], fields["prompt"])
            except (ValueError, TypeError, KeyError) as error:
                message = f"{path}: line {number} has no task and prompt: {error!r}"
                raise PromptsError(message) from error
            counts[prompt.task] = counts.get(prompt.task, 0) + 1
            if limit is None or counts[prompt.task] <= limit:
                prompts.append(prompt)
    if not prompts:
        raise PromptsError(f"{path} holds no prompt")
    return prompts


def ablate(
    session: OrtSession,
    prompts: Iterable[Prompt],
    *,
    max_new_tokens: int = 96,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Ablation:
    """Answer every prompt under every row of the table.

    A drafter serves all prompts of a task, one after another, so that it learns and, where history
    is on, remembers. Prompts that leave no room for an answer are left out.

    Args:
        session: The target, with the widths that are to be used.
        prompts: Of any number of tasks.
        max_new_tokens: Longest answer.
        on_progress: Called with a task, the answers done and those in all.

    Raises:
        NotLosslessError: A row gave other tokens than plain decoding.
    """
    tokenizer = Tokenizer.of(session.bundle)
    encoded: dict[str, list[Any]] = {}
    for task, text in prompts:
        token_ids = tokenizer.encode(text)
        if 0 < len(token_ids) <= session.capacity - max_new_tokens:
            encoded.setdefault(task, []).append(token_ids)
    counts: dict[Row, dict[str, tuple[int, int]]] = {row: {} for row in ROWS}
    total, done = sum(map(len, encoded.values())), 0
    for task, of_task in encoded.items():
        drafters = {row: _drafter(session, row.sources) for row in ROWS}
        for prompt in of_task:
            expected = _tokens(plain(session, prompt, max_new_tokens=max_new_tokens))
            for row, drafter in drafters.items():
                stats = Stats()
                steps = generate(
                    session, prompt, max_new_tokens=max_new_tokens, drafter=drafter, stats=stats
                )
                if _tokens(steps) != expected:
                    raise NotLosslessError(
                        f"{' + '.join(row.sources)} gave other tokens than plain decoding, after "
                        f"prompt {done} of the usable ones ({task})"
                    )
                num_tokens, num_steps = counts[row].get(task, (0, 0))
                counts[row][task] = (num_tokens + stats.new_tokens, num_steps + stats.steps)
            done += 1
            if on_progress is not None:
                on_progress(task, done, total)
    num_prompts = {task: len(of_task) for task, of_task in encoded.items()} | {"all": total}
    rows = session.step_inputs[-1].rows
    return Ablation({row: _rates(by_task) for row, by_task in counts.items()}, num_prompts, rows)


def _drafter(session: OrtSession, sources: Sequence[str]) -> Drafter:
    """A drafter that fills the widest step: no costs."""
    return Drafter(
        session.step_inputs,
        session.vocab_size,
        sources=sources,
        end_token_ids=session.end_token_ids,
    )


def _rates(by_task: dict[str, tuple[int, int]]) -> dict[str, float]:
    tokens, steps = (sum(column) for column in zip(*by_task.values(), strict=True))
    return {task: new / num for task, (new, num) in by_task.items()} | {"all": tokens / steps}


def _tokens(steps: Iterator[Step]) -> list[int]:
    return [token for step in steps for token in step.token_ids]
