"""Replay: recorded answers play the target, so that drafters are measured without a model.

A record's answer is what its model said, so a tree's node is accepted when its path is what stands
there. Drafting costs what it costs in generation on a CPU; only the target is missing. How long the
answer is, no drafter knows, but as in use it knows which token ends it: nothing is drafted behind.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import (
    Accepted,
    Drafter,
    PhraseTable,
    SharedHistory,
    StepInputs,
    SwitchReport,
    draft_method,
    draft_methods,
)
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.generation.drafting.drafter import MethodNames
from coordgen_rs.generation.drafting.proposer import WrappedDrafter
from coordgen_rs.generation.loop import generate
from coordgen_rs.lab.replay.records import TokenizedRecord
from coordgen_rs.lab.replay.rows import RecordedRows
from coordgen_rs.runtime.session import GapWork, OnLogits, OnRead, StepCost
from coordgen_rs.store.history.nearest import Likeness


class RecordedSession:
    """A session whose answers are known.

    Args:
        widths: Rows of its steps, narrowest first.
        vocab_size: Number of ids.
        capacity: Tokens of the longest prompt and answer together.

    Attributes:
        answer: `(tokens,) u32`, what it says to the next prompt.
        has_rows: Whether it tells the rows of the next prompt.
    """

    end_token_ids: Sequence[int] = ()
    allowed_commits = exact_commits = ("canonical", "compact")
    request = 0
    step_costs: Sequence[StepCost] | None = None
    gap_work: GapWork = None

    def __init__(self, widths: Sequence[int], vocab_size: int, capacity: int) -> None:
        self.vocab_size, self.capacity = vocab_size, capacity
        self.step_inputs = [_inputs(rows, capacity + widths[-1]) for rows in widths]
        self.length = self._prompt_len = 0
        self.answer: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self.has_rows = False

    def prefill(
        self, token_ids: NDArray[np.uint32], *, on_logits: OnLogits = None, on_read: OnRead = None
    ) -> SwitchReport | None:
        """Commit the prompt but for its last token; for logits, tell the places of its tokens."""
        if self.has_rows and on_logits is not None:
            places: Any = np.arange(len(token_ids))
            on_logits(places)
        self.length += len(token_ids)
        self._prompt_len = self.length + 1
        return None

    def step(self, inputs: StepInputs) -> NDArray[Any]:
        """What is left of the answer, `(tokens,) u32`, for `RecordedDrafter`."""
        return self.answer[self.length + 1 - self._prompt_len :]

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Make `rows`, `(tokens,) u32`, of the last step part of the text."""
        self.length += len(rows)

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` committed tokens."""
        self.length = length

    def close(self) -> None:
        """Do nothing: it holds nothing."""


class RecordedDrafter(WrappedDrafter):
    """A drafter that verifies against a recorded answer instead of logits.

    Attributes:
        rows: What the target held likely; None where the record does not tell it.
    """

    rows: RecordedRows | None = None
    _root = 0

    def prefilled(self, logits: NDArray[Any]) -> None:
        """Tell the sources of the rows at these places, `(tokens,) i64`, of the prompt."""
        if self.rows is not None:
            self.drafter.prefilled_top_k(*self.rows.top_k(logits))

    def propose(self, past_len: int) -> StepInputs:
        """Same as in `Drafter`."""
        self._root = past_len
        return self.drafter.propose(past_len)

    def accept(self, logits: NDArray[Any]) -> Accepted:
        """Verify the tree against what is left of the answer, `(tokens,) u32`."""
        if self.rows is None:
            return self.drafter.accept_recorded(logits)
        return self.drafter.accept_recorded(logits, self.rows.top_k(self.places(self.rows)))

    def places(self, rows: RecordedRows) -> NDArray[np.int64]:
        """The row of each node of the last tree, -1 where it is not on the record."""
        return rows.places(self._root, *self.drafter.draft)


def _inputs(rows: int, slots: int) -> StepInputs:
    path = np.zeros(slots, np.int32), np.zeros(1, np.int32), np.zeros(2, np.int32)
    return StepInputs(np.zeros(rows, np.int64), np.zeros(rows, np.int64), path=path)


MOST_BUDGET = 4_095
"""Draft tokens a step, many times what a target computes at once."""

HISTORIES = ("none", "earlier-requests", "by-task", "nearest")
"""Which earlier records draft: none, all, those of the task, or of the task that the prompt is most
like; so the last three are one database, an oracle's choice among several, and `Likeness`'s."""

OnStep = Callable[
    [TokenizedRecord, tuple[NDArray[np.uint32], NDArray[np.uint32]], NDArray[np.uint32]], None
]
"""Told of every step: the record, the tree (token ids and parents), what is left of the answer."""


def _can_replay(name: str, *, recorded: bool) -> bool:
    try:
        return bool(draft_method(name).sources(recorded=recorded))
    except OptionError:
        return False


DRAFTERS = tuple(it.name for it in draft_methods() if _can_replay(it.name, recorded=True))
"""The methods of the registry that draft without logits and without a draft model."""

_OF_ROWS = tuple(it.name for it in draft_methods() if _can_replay(it.name, recorded=False))
ROW_DRAFTERS = MethodNames((*DRAFTERS, *(name for name in _OF_ROWS if name not in DRAFTERS)))
"""These, then those that only records with rows can replay."""


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
        known_rows: Those of them that the records tell; None where they tell none.
        per_task: Task to (tokens, steps).
        propose_us: Microseconds of every `propose`, step inputs included.
        accept_us: Microseconds of the `accept` of the same step, learning included.
        begin_us: Microseconds of every `begin`, in which the prompt is read.
        memory_bytes: Most bytes that the drafter held at the end of a record.
    """

    drafter: str
    budget: int
    records: int = 0
    tokens: int = 0
    steps: int = 0
    rows: int = 0
    known_rows: int | None = None
    per_task: dict[str, tuple[int, int]] = field(default_factory=dict)
    propose_us: list[float] = field(default_factory=list)
    accept_us: list[float] = field(default_factory=list)
    begin_us: list[float] = field(default_factory=list)
    memory_bytes: int = 0

    def end_record(self, task: str, num_tokens: int, num_steps: int, held_bytes: int) -> None:
        """Count a record in, at whose end the drafter held so many bytes."""
        tokens, steps = self.per_task.get(task, (0, 0))
        self.per_task[task] = tokens + num_tokens, steps + num_steps
        self.records += 1
        self.tokens += num_tokens
        self.steps += num_steps
        self.memory_bytes = max(self.memory_bytes, held_bytes)

    @property
    def tokens_per_step(self) -> float:
        """`accept_len + 1`, averaged over all steps."""
        return self.tokens / max(self.steps, 1)

    @property
    def known_share(self) -> float | None:
        """Which share of the rows verified the sources learned from as a live run's would."""
        return None if self.known_rows is None else self.known_rows / max(self.rows, 1)

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
            "known_rows": None if self.known_share is None else round(self.known_share, 4),
            "per_task": {task: round(tokens / steps, 4) for task, (tokens, steps) in tasks},
            "propose_us": _percentiles(self.propose_us),
            "accept_us": _percentiles(self.accept_us),
            "step_us": _percentiles([*map(sum, zip(self.propose_us, self.accept_us, strict=True))]),
            "begin_us": _percentiles(self.begin_us),
            "memory_bytes": self.memory_bytes,
        }


def replay(
    records: Iterable[TokenizedRecord],
    *,
    drafter: str | Sequence[str] = "auto",
    budget: int = 16,
    history: str = "none",
    commit: str = "compact",
    vocab_size: int,
    phrases: PhraseTable | None = None,
    on_step: OnStep | None = None,
) -> ReplayResult:
    """Replay recorded answers through a drafter, one record after another.

    Args:
        records: The recorded requests. Where all tell what the target held likely, sources that
            learn from logits draft, too: from the rows of the prompt, and of those nodes that are
            on the record.
        drafter: One of `DRAFTERS`, of records with rows of `ROW_DRAFTERS`; or names of sources.
        budget: Draft tokens a step, 1 to `MOST_BUDGET`; the step has a row more, for the root.
        history: One of `HISTORIES`.
        commit: "compact" gives out every accepted token at once, as the literature counts;
            "canonical" feeds what was accepted on a side branch again.
        vocab_size: Number of ids of the tokenizer.
        phrases: What is common in most texts, in tokens of that tokenizer.
        on_step: Called before each verification.

    Returns:
        Counts and times. Each record is asked for in one request of a drafter, one for each
        database, that keeps what it learned of its sources.

    Raises:
        OptionError: No such drafter, history or commit, or a budget out of range.
    """
    arguments.one_of("history", history, HISTORIES)
    budget = arguments.count("budget", budget, most=MOST_BUDGET)
    records = list(records)
    longest = max((len(record.prompt) + len(record.answer) for record in records), default=0)
    beyond = budget + 1  # tokens that a step may give out more than are left
    behind = np.full(beyond, vocab_size, np.uint32)  # an id that no text has
    vocab_size += 1
    session = RecordedSession([budget + 1], vocab_size, longest + beyond)
    session.end_token_ids = sorted({one for record in records for one in record.end_token_ids})
    session.has_rows = bool(records) and all(record.rows is not None for record in records)
    if isinstance(drafter, str):
        method = draft_method(drafter)
        tree, sources = (
            method.tree,
            method.sources(
                free_rows=True,
                recorded=not session.has_rows,
                common_phrases=phrases is not None,
                earlier_requests=history == "earlier-requests",
            ),
        )
    else:
        tree, sources = "best-first", arguments.names("drafter", drafter)
    databases = defaultdict[str, SharedHistory](lambda: SharedHistory(vocab_size))
    likeness = Likeness()
    shown = drafter if isinstance(drafter, str) else ",".join(drafter)
    result = ReplayResult(shown, budget, known_rows=0 if session.has_rows else None)

    @cache
    def drafter_of(name: str | None) -> _TimedDrafter:
        core = Drafter(
            session.step_inputs,
            vocab_size,
            sources=sources,
            commit=commit,
            end_token_ids=session.end_token_ids,
            phrases=phrases,
            tree=tree,
            history=None if name is None else databases[name],
        )
        return _TimedDrafter(core, behind, result, on_step)

    for record in records:
        name = record.task if history in ("by-task", "nearest") else None
        timed = drafter_of((history == "nearest" and likeness.nearest(record.prompt)) or name)
        session.answer, timed.record = record.answer, record
        timed.rows = record.rows if session.has_rows else None
        num_left, num_steps = len(record.answer), 0
        with closing(
            generate(session, record.prompt, max_new_tokens=num_left + beyond, drafter=timed)
        ) as steps:
            while num_left > 0:
                num_left -= len(next(steps).token_ids)
                num_steps += 1
            result.end_record(record.task, len(record.answer), num_steps, timed.memory_bytes())
        if name is not None:
            text = np.concatenate([record.prompt, record.answer])
            databases[name].remember(text)
            likeness.add(name, text)
    return result


class _TimedDrafter(RecordedDrafter):
    """A drafter that notes in a result how long its calls took, and the rows of its trees.

    Args:
        drafter: What drafts.
        behind: `(tokens,) u32`, what the target says behind the answer.
        result: Filled with what is noted.
        on_step: Same as in `replay`.
    """

    def __init__(
        self,
        drafter: Drafter,
        behind: NDArray[np.uint32],
        result: ReplayResult,
        on_step: OnStep | None,
    ) -> None:
        super().__init__(drafter)
        self.record: TokenizedRecord | None = None
        self._behind, self._result, self._on_step = behind, result, on_step

    def begin(self, prompt_ids: NDArray[np.uint32], *limits: Any, **options: Any) -> None:
        start = time.perf_counter()
        self.drafter.begin(prompt_ids, *limits, **options)
        self._result.begin_us.append(1e6 * (time.perf_counter() - start))

    def propose(self, past_len: int) -> StepInputs:
        start = time.perf_counter()
        inputs = super().propose(past_len)
        self._result.propose_us.append(1e6 * (time.perf_counter() - start))
        self._result.rows += inputs.num_nodes
        return inputs

    def accept(self, logits: NDArray[Any]) -> Accepted:
        if self._on_step is not None and self.record is not None:
            self._on_step(self.record, self.drafter.draft, logits)
        said = np.append(logits, self._behind)
        if self.rows is not None:
            known = int((self.places(self.rows) >= 0).sum())
            self._result.known_rows = (self._result.known_rows or 0) + known
        start = time.perf_counter()
        accepted = super().accept(said)
        self._result.accept_us.append(1e6 * (time.perf_counter() - start))
        return accepted


def _percentiles(values: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(values, [50, 99]) if values else (0.0, 0.0)
    return {"p50": round(float(p50), 2), "p99": round(float(p99), 2)}
