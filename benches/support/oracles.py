"""Whether drafting is ever slower than plain decoding, and how good the choice of widths is.

In: a session and prompts by task. Out: of each task the speed of plain decoding, that of drafting
beside it, also on every single prompt, and what oracles reach that know beforehand how well drafts
are accepted. Speed is measured, in turns; oracles are replayed on the recorded answers, a step
taking what the session's costs say, and so is what the drafter itself would reach by them: their
gap owes nothing to a busy machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import Drafter, Sampling, StepInputs
from coordgen_rs.errors import OptionError
from coordgen_rs.generation.drafting.drafter import make_drafter
from coordgen_rs.generation.loop import generate, plain
from coordgen_rs.generation.stats import Stats
from coordgen_rs.lab.bench.prompts import encode_prompts, read_prompts
from coordgen_rs.lab.replay.run import RecordedDrafter, RecordedSession
from coordgen_rs.loading.session import open_session
from coordgen_rs.runtime.session import Session, StepCost

ADVERSARIAL = "random"
"""The task whose prompts and answers repeat nothing: its tokens are drawn nearly evenly."""
_EVEN = Sampling(100.0)

Tokens = NDArray[np.uint32]


@dataclass(frozen=True)
class Recorded:
    """A prompt, and what the target says to it: `(tokens,) u32` each."""

    prompt: Tokens
    answer: Tokens


@dataclass(frozen=True)
class PromptFigures:
    """One prompt, answered in pairs of runs: plain decoding and drafting, one after the other.

    Attributes:
        number: Its place in its task, from 1; prompts that are too long do not count.
        prompt_len: Its tokens.
        answer_len: Tokens of the answer.
        speedups: Speed of drafting over plain decoding in each pair.
    """

    number: int
    prompt_len: int
    answer_len: int
    speedups: list[float]

    @property
    def speedup(self) -> float:
        """The median over the pairs."""
        return median(self.speedups)


@dataclass(frozen=True)
class TaskFigures:
    """One task. Speeds but the first are relative to plain decoding.

    Attributes:
        task: Its name.
        prompts: Its prompts.
        plain_tokens_per_s: Tokens a second of plain decoding, measured.
        measured: Speed of drafting, measured in turns with it.
        modelled: Speed of drafting, by the step costs alone.
        fixed: Speed of the best width for all steps of the task, by the step costs.
        fixed_width: The width of `fixed`.
        adaptive: Speed of the best width for each single step, by the step costs: no choice of
            widths can be better.
    """

    task: str
    prompts: list[PromptFigures]
    plain_tokens_per_s: float
    measured: float
    modelled: float
    fixed: float
    fixed_width: int
    adaptive: float

    @property
    def gap(self) -> float:
        """Share of the best fixed width's speed that is missed; negative where it is surpassed."""
        return 1 - self.modelled / self.fixed

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON types."""
        prompts = [{**asdict(prompt), "speedup": prompt.speedup} for prompt in self.prompts]
        return {**asdict(self), "prompts": prompts, "gap": self.gap}


class _Options(NamedTuple):
    """The options of every answer of a task."""

    max_new_tokens: int
    sampling: Sampling | None


def measure_bundle(
    bundle: Path,
    data: Sequence[Path],
    sources: Sequence[str],
    *,
    threads: int,
    limit: int,
    max_new_tokens: int,
    repeats: int,
    memory_budget: int | None = None,
) -> list[dict[str, Any]]:
    """Figures of every task of some files, and of random prompts, as JSON types.

    Args:
        bundle: The target's directory or file.
        data: Files of prompts.
        sources: Same as in `measure`.
        threads: Compute threads; a process has only one number of them.
        limit: Prompts of each task, at most.
        max_new_tokens: Longest answer; a prompt that leaves no room for it is left out.
        repeats: Times that each prompt is answered.
        memory_budget: Most bytes of blocks and experts, None for no limit.

    Raises:
        BundleError: The bundle cannot be used.
        PromptsError: The file of prompts cannot be used.
        OptionError: Same as in `measure`.
    """
    session = open_session(bundle, threads=threads, memory_budget=memory_budget)
    read = [prompt for file in data for prompt in read_prompts(file, limit=limit)]
    prompts = encode_prompts(session, read, max_new_tokens)
    prompts[ADVERSARIAL] = random_prompts(session, limit)
    found = measure(session, prompts, sources, max_new_tokens=max_new_tokens, repeats=repeats)
    is_file = bundle.suffix == ".gguf"
    weights = bundle.stem.rpartition(".")[2] if is_file else session.bundle.manifest.weights
    where = {"weights": weights, "threads": session.threads}
    return [where | figures.to_json() for figures in found]


def measure(
    session: Session,
    prompts: Mapping[str, Sequence[Tokens]],
    sources: Sequence[str],
    *,
    max_new_tokens: int = 64,
    repeats: int = 3,
) -> list[TaskFigures]:
    """Figures of every task.

    Args:
        session: The target, which knows its step costs.
        prompts: The prompts of each task, `(tokens,) u32` each.
        sources: What drafts, by the names that `Drafter` knows; it keeps what it learns for all
            prompts of a task.
        max_new_tokens: Longest answer.
        repeats: Times that each prompt is answered plainly and with drafts; medians count.

    Raises:
        OptionError: The session tells no step costs, or `repeats` is below 1.
    """
    if session.step_costs is None:
        raise OptionError("the session tells no step costs: there is no width to choose")
    if repeats < 1:
        raise OptionError(f"repeats is {repeats}, but must be at least 1")
    figures = []
    for task, of_task in prompts.items():
        options = _Options(max_new_tokens, _EVEN if task == ADVERSARIAL else None)
        records, seconds = _timed(session, of_task, sources, options, repeats)
        plain_s, drafting_s = np.median(seconds, axis=1).sum(axis=1)
        costs = {
            inputs.rows: cost
            for inputs, cost in zip(session.step_inputs, session.step_costs, strict=True)
        }
        replay = Replay(costs, session.vocab_size, session.capacity, sources)
        by_width = {width: replay.fixed(width, records) for width in costs}
        width = min(by_width, key=lambda width: by_width[width])
        plain_cost = next(iter(by_width.values()))
        figures.append(
            TaskFigures(
                task,
                [
                    PromptFigures(number, len(record.prompt), len(record.answer), speedups.tolist())
                    for number, (record, speedups) in enumerate(
                        zip(records, (seconds[0] / seconds[1]).T, strict=True), 1
                    )
                ],
                plain_tokens_per_s=sum(len(record.answer) for record in records) / float(plain_s),
                measured=float(plain_s / drafting_s),
                modelled=plain_cost / replay.chosen(records),
                fixed=plain_cost / by_width[width],
                fixed_width=width,
                adaptive=plain_cost / replay.adaptive(records),
            )
        )
    return figures


def random_prompts(session: Session, number: int, length: int = 200) -> list[Tokens]:
    """Prompts of random tokens: nothing in them repeats but by chance."""
    random = np.random.default_rng(0)
    length = min(length, session.capacity // 2)
    return [
        random.integers(session.vocab_size, size=length).astype(np.uint32) for _ in range(number)
    ]


def _timed(
    session: Session,
    prompts: Sequence[Tokens],
    sources: Sequence[str],
    options: _Options,
    repeats: int,
) -> tuple[list[Recorded], NDArray[np.float64]]:
    """What is said, and the seconds of plain decoding and of drafting, `(2, repeats, prompts)`.

    They count from the first step on: it brings plain decoding one token, and drafting several.
    Each repeat has a drafter of its own, which goes from prompt to prompt. All repeats of a prompt
    stand one behind the other, so it is read once, and which of a pair begins changes.
    """
    drafters = [make_drafter(session, sources) for _ in range(repeats)]
    seconds = np.zeros((2, repeats, len(prompts)))
    records = []
    for index, prompt in enumerate(prompts):
        answer: list[int] = []
        for repeat, drafter in enumerate(drafters):
            for drafts in (False, True) if repeat % 2 == 0 else (True, False):
                stats = Stats()
                asked = {**options._asdict(), "reuse_prefix": True, "stats": stats}
                if drafts:
                    steps = generate(session, prompt, drafter=drafter, **asked)
                else:
                    steps = plain(session, prompt, **asked)
                answer = [token for step in steps for token in step.token_ids]
                seconds[int(drafts), repeat, index] = stats.decode_s
        records.append(Recorded(prompt, np.array(answer, np.uint32)))
    return records, seconds


class PricedSession(RecordedSession):
    """Recorded answers whose steps cost what they do on a real target.

    Args:
        costs: The cost of a step of each width, narrowest first.
        vocab_size: Number of ids.
        capacity: Tokens of the longest prompt and answer together.

    Attributes:
        spent: What all steps cost so far.
    """

    def __init__(self, costs: Mapping[int, StepCost], vocab_size: int, capacity: int) -> None:
        super().__init__(list(costs), vocab_size, capacity)
        self._costs, self.spent = costs, 0.0

    def step(self, inputs: StepInputs) -> NDArray[Any]:
        """Same as in `RecordedSession`."""
        self.spent += _cost(self._costs[inputs.rows], self.length)
        return super().step(inputs)


class Replay:
    """What recorded answers cost, without a model.

    Args:
        costs: The cost of a step of each width, narrowest first.
        vocab_size: Number of ids.
        capacity: Tokens of the longest prompt and answer together.
        sources: What drafts.
    """

    def __init__(
        self,
        costs: Mapping[int, StepCost],
        vocab_size: int,
        capacity: int,
        sources: Sequence[str],
    ) -> None:
        self._costs, self._vocab_size, self._capacity = costs, vocab_size, capacity
        self._sources = sources

    def chosen(self, records: Sequence[Recorded]) -> float:
        """The cost where the drafter chooses."""
        session = self._session(self._costs)
        return _spent(session, self._drafter(session, [*self._costs.values()]), records)

    def fixed(self, width: int, records: Sequence[Recorded]) -> float:
        """The cost where every step has the same width."""
        session = self._session({width: self._costs[width]})
        return _spent(session, self._drafter(session), records)

    def adaptive(self, records: Sequence[Recorded]) -> float:
        """The least cost where the width of each step is chosen by who knows the answer.

        An optimistic bound: what is accepted on a side branch counts as if it were kept.
        """
        drafters = [self._drafter(self._session({w: cost})) for w, cost in self._costs.items()]
        total = 0.0
        for record in records:
            gains = np.stack([_gains(drafter, record) for drafter in drafters])
            total += self._least_cost(len(record.prompt), gains)
        return total

    def _least_cost(self, prompt_len: int, gains: NDArray[np.int64]) -> float:
        """The cheapest way to the end, where a step at a token brings `gains (steps, tokens)`."""
        num_tokens = gains.shape[1]
        least = np.zeros(num_tokens + 1)
        for place in reversed(range(num_tokens)):
            past_len = prompt_len - 1 + place
            least[place] = min(
                _cost(cost, past_len) + least[place + gain]
                for cost, gain in zip(self._costs.values(), gains[:, place], strict=True)
            )
        return float(least[0])

    def _session(self, costs: Mapping[int, StepCost]) -> PricedSession:
        return PricedSession(costs, self._vocab_size, self._capacity)

    def _drafter(self, session: PricedSession, costs: Sequence[StepCost] | None = None) -> Drafter:
        return Drafter(session.step_inputs, self._vocab_size, sources=self._sources, costs=costs)


def _cost(cost: StepCost, past_len: int) -> float:
    return cost.base + cost.per_token * past_len


def _spent(session: PricedSession, drafter: Drafter, records: Sequence[Recorded]) -> float:
    """What it costs to say the records."""
    for record in records:
        session.answer = record.answer
        recorded = RecordedDrafter(drafter)
        list(generate(session, record.prompt, max_new_tokens=len(record.answer), drafter=recorded))
    return session.spent


def _gains(drafter: Drafter, record: Recorded) -> NDArray[np.int64]:
    """Tokens that a step would bring at each token of the answer."""
    drafter.begin(record.prompt, len(record.answer))
    root = record.prompt[-1:]
    gains = []
    for place in range(len(record.answer)):
        rest, past_len = record.answer[place:], len(record.prompt) - 1 + place
        drafter.propose(past_len)
        gains.append(min(_accept_len(drafter, rest) + 1, len(rest)))
        drafter.propose(past_len, (root, np.zeros(1, np.uint32)))
        drafter.accept_recorded(rest)
        root = rest[:1]
    return np.array(gains)


def _accept_len(drafter: Drafter, rest: Tokens) -> int:
    """Length of the longest path of the proposed tree that the answer goes on with."""
    token_ids, parents = drafter.draft
    depths = [0]
    for token, parent in zip(token_ids[1:], parents[1:], strict=True):
        depth = depths[parent]
        agrees = 0 <= depth < len(rest) and rest[depth] == token
        depths.append(depth + 1 if agrees else -1)
    return max(depths)
