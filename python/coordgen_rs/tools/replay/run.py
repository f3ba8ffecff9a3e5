"""Replay: recorded answers play the target, so that drafters are measured without a model.

A record's answer is what its model said, so a tree's node is accepted when its path is what stands
there. Drafting costs what it costs in generation on a CPU; only the target is missing.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import Accepted, Drafter, StepInputs, draft_method, draft_methods
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.generation.loop import generate
from coordgen_rs.tools.replay.target import RecordedDrafter, RecordedSession
from coordgen_rs.tools.replay.templates import TokenizedRecord

MOST_BUDGET = 4_095
"""Draft tokens a step, many times what a target computes at once."""

HISTORIES = ("none", "earlier-requests")

OnStep = Callable[
    [TokenizedRecord, tuple[NDArray[np.uint32], NDArray[np.uint32]], NDArray[np.uint32]], None
]
"""Told of every step: the record, the tree (token ids and parents), what is left of the answer."""


def _can_replay(name: str) -> bool:
    try:
        return bool(draft_method(name).sources(recorded=True))
    except OptionError:
        return False


DRAFTERS = tuple(method.name for method in draft_methods() if _can_replay(method.name))
"""The methods of the registry that draft without logits and without a draft model."""


@dataclass
class ReplayResult:
    """What a drafter achieved on some records.

    Attributes:
        drafter: Its name.
        budget: Draft tokens a step, the root not counted.
        records: Number of records.
        tokens: Tokens given out, end tokens included.
        steps: Verifications.
        rows: Rows verified: the nodes of all trees, their roots included.
        per_task: Task to (tokens, steps).
        propose_us: Microseconds of every `propose`, step inputs included.
        accept_us: Microseconds of the `accept` of the same step, learning included.
        memory_bytes: Bytes held by the drafter after the last record.
    """

    drafter: str
    budget: int
    records: int = 0
    tokens: int = 0
    steps: int = 0
    rows: int = 0
    per_task: dict[str, tuple[int, int]] = field(default_factory=dict)
    propose_us: list[float] = field(default_factory=list)
    accept_us: list[float] = field(default_factory=list)
    memory_bytes: int = 0

    @property
    def tokens_per_step(self) -> float:
        """`accept_len + 1`, averaged over all steps."""
        return self.tokens / max(self.steps, 1)

    @property
    def rows_per_token(self) -> float:
        """Rows verified for each token given out; plain decoding verifies one."""
        return self.rows / max(self.tokens, 1)

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
            "rows_per_token": round(self.rows_per_token, 4),
            "per_task": {task: round(tokens / steps, 4) for task, (tokens, steps) in tasks},
            "propose_us": _percentiles(self.propose_us),
            "accept_us": _percentiles(self.accept_us),
            "step_us": _percentiles([*map(sum, zip(self.propose_us, self.accept_us, strict=True))]),
            "memory_bytes": self.memory_bytes,
        }


def replay(
    records: Iterable[TokenizedRecord],
    *,
    drafter: str = "auto",
    budget: int = 16,
    history: str = "none",
    commit: str = "compact",
    vocab_size: int,
    on_step: OnStep | None = None,
) -> ReplayResult:
    """Replay recorded answers through a drafter, one record after another.

    Args:
        records: The recorded requests.
        drafter: One of `DRAFTERS`.
        budget: Draft tokens a step, 1 to `MOST_BUDGET`; the step has a row more, for the root.
        history: "none", or "earlier-requests": earlier records draft for later ones.
        commit: "compact" gives out every accepted token at once, as the literature counts;
            "canonical" feeds what was accepted on a side branch again.
        vocab_size: Number of ids of the tokenizer.
        on_step: Called before each verification.

    Returns:
        Counts and times. Each record is asked for in one request of a drafter that keeps what it
        learned of its sources.

    Raises:
        OptionError: No such drafter, history or commit, or a budget out of range.
    """
    if history not in HISTORIES:
        raise OptionError(f"history is {history!r}, but must be one of {', '.join(HISTORIES)}")
    budget = arguments.count("budget", budget, most=MOST_BUDGET)
    records = list(records)
    longest = max((len(record.prompt) + len(record.answer) for record in records), default=0)
    session = RecordedSession([budget + 1], vocab_size, longest)
    sources = draft_method(drafter).sources(
        recorded=True, earlier_requests=history == "earlier-requests"
    )
    core = Drafter(session.step_inputs, vocab_size, sources=sources, commit=commit)
    timed = _TimedDrafter(core, on_step)
    result = ReplayResult(drafter, budget, propose_us=timed.propose_us, accept_us=timed.accept_us)
    per_task: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for record in records:
        session.answer, timed.record = record.answer, record
        max_new_tokens = len(record.answer)
        steps = generate(session, record.prompt, max_new_tokens=max_new_tokens, drafter=timed)
        per_task[record.task][0] += max_new_tokens
        per_task[record.task][1] += sum(1 for _ in steps)
    result.records = len(records)
    result.tokens = sum(tokens for tokens, _ in per_task.values())
    result.steps = sum(steps for _, steps in per_task.values())
    result.per_task = {task: (tokens, steps) for task, (tokens, steps) in per_task.items()}
    result.rows = timed.rows
    result.memory_bytes = timed.memory_bytes()
    return result


class _TimedDrafter(RecordedDrafter):
    """A drafter that counts rows, and notes the microseconds of each `propose` and `accept`."""

    def __init__(self, drafter: Drafter, on_step: OnStep | None) -> None:
        super().__init__(drafter)
        self.record: TokenizedRecord | None = None
        self._on_step = on_step
        self.propose_us: list[float] = []
        self.accept_us: list[float] = []
        self.rows = 0

    def propose(self, past_len: int) -> StepInputs:
        start = time.perf_counter()
        inputs = self.drafter.propose(past_len)
        self.propose_us.append(1e6 * (time.perf_counter() - start))
        self.rows += inputs.num_nodes
        return inputs

    def accept(self, logits: NDArray[Any]) -> Accepted:
        if self._on_step is not None and self.record is not None:
            self._on_step(self.record, self.drafter.draft, logits)
        start = time.perf_counter()
        accepted = super().accept(logits)
        self.accept_us.append(1e6 * (time.perf_counter() - start))
        return accepted


def _percentiles(values: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(values, [50, 99]) if values else (0.0, 0.0)
    return {"p50": round(float(p50), 2), "p99": round(float(p99), 2)}
