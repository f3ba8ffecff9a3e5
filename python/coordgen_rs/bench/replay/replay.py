"""Replay: recorded answers play the target, so that drafters are measured without a model.

A record's answer is what its model said, so a tree's node is accepted when its path is what stands
there. Drafting costs what it costs in generation, masks included; only the target is missing.
"""

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coordgen_rs._core import Drafter, StepInputs
from coordgen_rs.bench.replay.templates import TokenizedRecord
from coordgen_rs.errors import OptionError

DRAFTERS: dict[str, tuple[str, ...]] = {
    "prompt-lookup": ("lookup",),
    "automaton": ("automaton",),
    "sam": ("sam",),
    "coordgen": ("automaton",),
}
HISTORIES = ("none", "session")
_WITH_EARLIER: dict[str, tuple[str, ...]] = {
    "sam": ("sam-session",),
    "coordgen": ("automaton", "session"),
}


@dataclass
class ReplayResult:
    """What a drafter made of some records.

    Attributes:
        drafter: Its name.
        budget: Draft tokens a step, the root not counted.
        records: Number of records.
        tokens: Tokens given out, end tokens included.
        steps: Verifications.
        per_task: Task to (tokens, steps).
        propose_us: Microseconds of every `propose`, step inputs included.
        accept_us: Microseconds of every `accept`, learning included.
        memory_bytes: Bytes held by the drafter after the last record.
    """

    drafter: str
    budget: int
    records: int = 0
    tokens: int = 0
    steps: int = 0
    per_task: dict[str, tuple[int, int]] = field(default_factory=dict)
    propose_us: list[float] = field(default_factory=list)
    accept_us: list[float] = field(default_factory=list)
    memory_bytes: int = 0

    @property
    def tokens_per_step(self) -> float:
        """`accept_len + 1`, averaged over all steps."""
        return self.tokens / max(self.steps, 1)

    def to_json(self) -> dict[str, Any]:
        """The figures under the names that `coordgen replay --json` prints."""
        tasks = sorted(self.per_task.items())
        return {
            "drafter": self.drafter,
            "budget": self.budget,
            "records": self.records,
            "tokens": self.tokens,
            "steps": self.steps,
            "tokens_per_step": round(self.tokens_per_step, 4),
            "per_task": {task: round(tokens / steps, 4) for task, (tokens, steps) in tasks},
            "propose_us": _percentiles(self.propose_us),
            "accept_us": _percentiles(self.accept_us),
            "memory_bytes": self.memory_bytes,
        }


def replay(
    records: Iterable[TokenizedRecord],
    *,
    drafter: str = "coordgen",
    budget: int = 16,
    history: str = "none",
    commit: str = "compact",
    vocab_size: int,
) -> ReplayResult:
    """Let a drafter say recorded answers, one record after the other.

    Args:
        records: What to say.
        drafter: One of `DRAFTERS`.
        budget: Draft tokens a step; the step has a row more, for the root.
        history: "none", or "session": earlier records draft for later ones.
        commit: "compact" gives out every accepted token at once, as the literature counts;
            "canonical" feeds what was accepted on a side branch again.
        vocab_size: Number of ids of the tokenizer.

    Returns:
        Counts and times. Each record is asked for in one request of a drafter that keeps what it
        learned of its sources.

    Raises:
        OptionError: No such drafter, history or commit, or a budget below 1.
    """
    records = list(records)
    replaying = _Replaying(records, drafter, budget, history, commit, vocab_size)
    result = ReplayResult(drafter, budget)
    per_task: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for record in records:
        steps = replaying.replay(record, result)
        result.records += 1
        result.tokens += len(record.answer)
        result.steps += steps
        per_task[record.task][0] += len(record.answer)
        per_task[record.task][1] += steps
    result.per_task = {task: (tokens, steps) for task, (tokens, steps) in per_task.items()}
    result.memory_bytes = replaying.memory_bytes()
    return result


class _Replaying:
    """A drafter at work on records, and what earlier ones left to it."""

    def __init__(
        self,
        records: list[TokenizedRecord],
        drafter: str,
        budget: int,
        history: str,
        commit: str,
        vocab_size: int,
    ) -> None:
        if drafter not in DRAFTERS:
            raise OptionError(f"drafter is {drafter!r}, but must be one of {', '.join(DRAFTERS)}")
        if history not in HISTORIES:
            raise OptionError(f"history is {history!r}, but must be none or session")
        if budget < 1:
            raise OptionError(f"budget is {budget}, but must be at least 1")
        sources = DRAFTERS[drafter]
        if history == "session":
            sources = _WITH_EARLIER.get(drafter, sources)
        longest = max((len(record.prompt) + len(record.answer) for record in records), default=0)
        rows, attended = budget + 1, longest + budget + 1
        inputs = StepInputs(
            np.zeros(rows, np.int64),
            np.zeros(rows, np.int64),
            np.zeros((1, 1, rows, attended), np.float32),
        )
        self._drafter = Drafter([inputs], vocab_size, sources=sources, commit=commit)

    def replay(self, record: TokenizedRecord, result: ReplayResult) -> int:
        """Let the drafter say one record; returns the number of steps it takes."""
        drafter, prompt, answer = self._drafter, record.prompt, record.answer
        drafter.begin(prompt, len(answer))
        steps = given_out = 0
        while given_out < len(answer):
            rest = answer[given_out:]
            start = time.perf_counter()
            drafter.propose(len(prompt) - 1 + given_out)
            proposed = time.perf_counter()
            accepted = drafter.accept_recorded(rest)
            end = time.perf_counter()
            result.propose_us.append(1e6 * (proposed - start))
            result.accept_us.append(1e6 * (end - proposed))
            given_out += len(accepted.token_ids)
            steps += 1
        return steps

    def memory_bytes(self) -> int:
        """Bytes held by the drafter's sources."""
        return self._drafter.memory_bytes()


def _percentiles(values: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(values, [50, 99]) if values else (0.0, 0.0)
    return {"p50": round(float(p50), 2), "p99": round(float(p99), 2)}
