"""What all sections of the bench measure with: settings, an open session, methods in turn.

In: what was asked for. Out: a `Workbench`, which answers every prompt by every method in turn and
compares the tokens on the way: a `TimedAnswer` for each, or their sums as a `Tally`. Its loads can
be those of another machine, from a slower disk or on a core of their own: a session over a store
that waits first, and steps timed anew. The wait takes no core from compute, as a slower disk would
not.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import PLAIN, Drafter, LookupTable, Switcher, draft_method
from coordgen_rs._core import strategies as known_strategies
from coordgen_rs.errors import CoordgenError, OptionError
from coordgen_rs.generation.drafting.draft_model import DraftModel, ModelDrafter
from coordgen_rs.generation.drafting.drafter import METHODS, READS_TABLE, make_drafter
from coordgen_rs.generation.drafting.proposer import DraftProposer
from coordgen_rs.generation.drafting.warm_up import open_table
from coordgen_rs.generation.loop import generate, plain
from coordgen_rs.generation.stats import Stats
from coordgen_rs.lab.bench.prompts import encode_prompts, read_prompts
from coordgen_rs.lab.tables import ALL, How, rotated
from coordgen_rs.loading.directory import ProviderChoice
from coordgen_rs.loading.self_test import run_self_test
from coordgen_rs.loading.session import open_session
from coordgen_rs.runtime.caches.kv_cache import KV_FORMS
from coordgen_rs.runtime.device import GRAPHS, Device, GraphName
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.session import Session

OnProgress = Callable[[str, int, int], None]

MTP = "mtp"
"""The method that drafts with the target's own head alone, where it has one."""

PAPER_METHODS = (PLAIN, "sam", "coordgen")
"""The methods of the sections that look into an answer: those of the papers' figures."""

STRATEGIES = (*(name for name in known_strategies() if name != "resident"), "resident")
"""Strategies of loading in the order of a round; `resident`, which takes most memory, is last."""


def needs_draft_model(name: str) -> bool:
    """Whether one of `METHODS` drafts from nothing but a draft model."""
    if name == PLAIN:
        return False
    method = draft_method(name)
    return method.needs_draft_model and not method.takes_mtp


@dataclass(frozen=True)
class Settings:
    """What was asked for; it travels to other processes, too.

    Attributes:
        bundle: The target's directory.
        data: A file of prompts; None where only sections are wanted that need none.
        repeats: Times that everything is measured; medians are of so many.
        max_new_tokens: Longest answer.
        ignore_eos: Whether every answer is that long, whatever end tokens it holds.
        limit: Prompts of each task, at most; None for all.
        methods: Methods of the section `methods`; empty for all that can run.
        draft_model: A bundle, for the methods that have one.
        lookup_table: What a look-up table starts with; None for an empty one.
        remembering: Whether earlier prompts of a task may be drawn on.
        is_free: Whether drafts are made as if rows cost nothing, as on an NPU.
        width: Rows of a step, at most; None for all widths of the bundle.
        threads: Compute threads; None takes one a core.
        provider: What runs it.
        memory_budget: Bytes of graphs and experts: the target keeps to it and is streamed. In the
            section `switching` it binds the strategies.
        kv_cache: How keys and values are held, also of the draft model.
        prompt_len: Tokens of the prompt of the sections that have one of their own.
        strategies: Strategies of the section `switching`.
        load_delay_s: Seconds added to each load of a block: in the section `switching`, and
            wherever the target is streamed.
        pin_loads: Whether loads have a core of their own where the target is streamed.
        profile: What the blocks cost, for plans; None measures it.
        power_root: Where sysfs is mounted, which tells the power.
    """

    bundle: Path
    data: Path | None = None
    repeats: int = 5
    max_new_tokens: int = 96
    ignore_eos: bool = False
    limit: int | None = None
    methods: tuple[str, ...] = ()
    draft_model: Path | None = None
    lookup_table: Path | None = None
    remembering: bool = True
    is_free: bool = False
    width: int | None = None
    threads: int | None = None
    provider: ProviderChoice = field(default_factory=ProviderChoice)
    memory_budget: int | None = None
    kv_cache: str = KV_FORMS[0]
    prompt_len: int = 512
    strategies: tuple[str, ...] = STRATEGIES
    load_delay_s: float = 0.0
    pin_loads: bool = False
    profile: str | None = None
    power_root: Path = Path("/sys")


class NotLosslessError(CoordgenError):
    """Methods gave different tokens: a bug, and no figure is worth anything."""


@dataclass(frozen=True)
class TimedAnswer:
    """One answer, and what can be seen from outside.

    Attributes:
        tokens: Its tokens.
        stats: Counts and times, as `generate` fills them.
        arrivals: For each step, the seconds since the request and the number of tokens given out.
        total_s: Seconds from the request to the last token.
    """

    tokens: list[int]
    stats: Stats
    arrivals: list[tuple[float, int]]
    total_s: float

    @property
    def exposed_us(self) -> int:
        """Microseconds in which compute waited for loads."""
        return 0 if self.stats.switching is None else self.stats.switching.exposed_us


def answer(
    session: Session,
    prompt: NDArray[np.uint32],
    drafter: DraftProposer | None,
    *,
    max_new_tokens: int,
    ignore_eos: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> TimedAnswer:
    """Answer a prompt, by plain decoding if there is no drafter; see `generate`."""
    stats = Stats(clock=clock)
    decode = plain if drafter is None else partial(generate, drafter=drafter)
    start = clock()
    tokens: list[int] = []
    arrivals: list[tuple[float, int]] = []
    for step in decode(
        session, prompt, max_new_tokens=max_new_tokens, ignore_eos=ignore_eos, stats=stats
    ):
        arrivals.append((clock() - start, len(step.token_ids)))
        tokens += step.token_ids
    return TimedAnswer(tokens, stats, arrivals, clock() - start)


_D = TypeVar("_D", bound=DraftProposer | None)


class MethodAnswer(NamedTuple, Generic[_D]):
    """One answer of one method.

    Attributes:
        repeat: Number of the repeat, from 0.
        task: The prompt's task.
        method: Its name.
        drafter: What drafted; None for plain decoding.
        answered: The answer.
    """

    repeat: int
    task: str
    method: str
    drafter: _D
    answered: TimedAnswer


@dataclass
class Tally:
    """What one method did in one repeat, on one task or on all.

    Attributes:
        tokens: Tokens given out.
        steps: Verifications.
        proposed: Draft tokens.
        accepted: Draft tokens that the target agreed with.
        decode_s: Seconds of decoding, drafting included.
        total_s: Seconds of whole answers, prefill included.
        host_s: Seconds of `propose` and `accept`, a draft model's own left out.
        exposed_us: Microseconds in which compute waited for loads.
    """

    tokens: int = 0
    steps: int = 0
    proposed: int = 0
    accepted: int = 0
    decode_s: float = 0.0
    total_s: float = 0.0
    host_s: float = 0.0
    exposed_us: int = 0

    @property
    def tokens_per_step(self) -> float:
        """Tokens given out for each verification."""
        return self.tokens / max(self.steps, 1)

    def add(self, answered: TimedAnswer, model_s: float) -> None:
        """Count an answer in, in which a draft model ran for `model_s` seconds."""
        stats = answered.stats
        self.tokens += stats.new_tokens
        self.steps += stats.steps
        self.proposed += sum(source["proposed"] for source in stats.per_source.values())
        self.accepted += sum(source["accepted"] for source in stats.per_source.values())
        self.decode_s += stats.decode_s
        self.total_s += answered.total_s
        self.host_s += sum(stats.drafting_us) / 1e6 - model_s
        self.exposed_us += answered.exposed_us


Tallies = dict[tuple[str, str], list[Tally]]
"""By task (or `ALL`) and method: a tally for each repeat."""


def tallied(answers: Iterator[MethodAnswer[_D]]) -> Tallies:
    """The sums of answers."""
    tallies: dict[tuple[str, str], dict[int, Tally]] = defaultdict(lambda: defaultdict(Tally))
    model_s: dict[int, float] = defaultdict(float)  # of each drafter until now
    for given in answers:
        drafter = given.drafter
        ran_s = drafter.model_s if isinstance(drafter, ModelDrafter) else 0.0
        for task in (given.task, ALL):
            tally = tallies[task, given.method][given.repeat]
            tally.add(given.answered, ran_s - model_s[id(drafter)])
        model_s[id(drafter)] = ran_s
    return {key: list(by_repeat.values()) for key, by_repeat in tallies.items()}


class Workbench:
    """An open session, prompts, and the methods to answer them by.

    Args:
        settings: What was asked for.
        session: The target.
        prompts: Encoded, by task.
        draft_model: The draft model, for the methods that have one.
        on_progress: Called with what is being done, how much of it is, and how much there is.
    """

    def __init__(
        self,
        settings: Settings,
        session: OrtSession,
        prompts: dict[str, list[NDArray[np.uint32]]],
        draft_model: DraftModel | None = None,
        on_progress: OnProgress = lambda what, done, total: None,
    ) -> None:
        self.settings, self.session, self.prompts = settings, session, prompts
        self.draft_model, self.on_progress = draft_model, on_progress
        self.costs = None if settings.is_free else session.step_costs
        self._open_table: Callable[[], LookupTable] = LookupTable
        if settings.lookup_table is not None:
            self._open_table = partial(open_table, settings.lookup_table, session.bundle)

    @classmethod
    def open(
        cls, settings: Settings, on_progress: OnProgress = lambda what, done, total: None
    ) -> Self:
        """Open the bundle, the draft model and the prompts.

        Raises:
            OptionError: A method needs a draft model where there is none, or no prompt leaves room
                for an answer.
            PromptsError: The file of prompts cannot be used.
            BundleError, ProviderError, MemoryBudgetError, DraftModelError: See `open_session`,
                `DraftModel.open`.
        """
        for name in settings.methods if settings.draft_model is None else ():
            if needs_draft_model(name):
                raise OptionError(f"method {name!r} needs a draft model")
        prompts = [] if settings.data is None else read_prompts(settings.data, limit=settings.limit)
        core = keep_a_core() if settings.pin_loads else None
        session = open_session(
            settings.bundle,
            threads=settings.threads,
            width=settings.width,
            memory_budget=settings.memory_budget,
            kv_cache=settings.kv_cache,
            provider=settings.provider,
            on_progress=on_progress,
        )
        if settings.memory_budget is not None and (settings.load_delay_s or settings.pin_loads):
            slow_loads(session, settings.load_delay_s, core)
        encoded = encode_prompts(session, prompts, settings.max_new_tokens)
        if prompts and not encoded:
            raise OptionError(
                f"no prompt of {settings.data} leaves room for {settings.max_new_tokens} new tokens"
            )
        model = None
        if settings.draft_model is not None:
            model = DraftModel.open(settings.draft_model, session)
            if settings.is_free:
                model = DraftModel(model.session)
        return cls(settings, session, encoded, model, on_progress)

    @property
    def how(self) -> How:
        """Whether times are this machine's own."""
        device = self.session.device
        is_simulated = device.clock is not None or device.is_emulator()
        return "simulated" if is_simulated else "measured"

    @property
    def methods(self) -> tuple[str, ...]:
        """Plain decoding, and what was asked for beside it, or else all that can run.

        All methods leave out the target's own head where it has none.
        """
        lacks = set[str]() if self.session.bundle.manifest.has_draft_head else {MTP}
        if self.draft_model is None:
            lacks |= {name for name in METHODS if needs_draft_model(name)}
        asked = self.settings.methods or [name for name in METHODS if name not in lacks]
        if set(METHODS) <= set(asked):
            asked = [name for name in asked if name not in lacks]
        return tuple(dict.fromkeys((PLAIN, *asked)))

    @property
    def num_prompts(self) -> dict[str, int]:
        """Prompts of each task."""
        return {task: len(of_task) for task, of_task in self.prompts.items()}

    def drafter(self, name: str) -> Drafter | ModelDrafter | None:
        """A new drafter of a method; None for plain decoding."""
        if name == PLAIN:
            return None
        model = self.draft_model if name != MTP else None
        if model is not None:  # a tree of its own for each method, which learns when it is enough
            model = DraftModel(model.session, least_that_pays=model.least_that_pays)
        method = draft_method(name)
        sources = method.sources(
            free_rows=self.costs is None,
            draft_model=model is not None or method.takes_mtp,
            earlier_requests=self.settings.remembering,
        )
        return make_drafter(
            self.session,
            name,
            lookup_table=self._open_table() if {*READS_TABLE} & {*sources} else None,
            draft_model=model if "draft-model" in sources else None,
            earlier_requests=self.settings.remembering,
            free_rows=self.settings.is_free,
        )

    def answers(
        self,
        names: Sequence[str],
        drafter_of: Callable[[str], _D],
        *,
        before: Callable[[str], object] = lambda name: None,
        repeats: int | None = None,
    ) -> Iterator[MethodAnswer[_D]]:
        """Answer every prompt by every method, in turns, so that a slow moment slows all.

        A method has a new drafter for each task and repeat, which serves all prompts of the task,
        one after another: it learns, and remembers where it may.

        Args:
            names: The names of the methods.
            drafter_of: Makes the drafter of one; `drafter` where nothing is to be added.
            before: Called with the method before each of its answers.
            repeats: How often; None for as often as the settings say.

        Raises:
            NotLosslessError: A method gave other tokens than the one before it.
        """
        repeats = repeats or self.settings.repeats
        expected: dict[tuple[str, int], list[int]] = {}
        total = repeats * sum(self.num_prompts.values())
        done = 0
        self.warm_up()
        for repeat in range(repeats):
            for task, prompts in self.prompts.items():
                drafters = {name: drafter_of(name) for name in names}
                for number, prompt in enumerate(prompts):
                    self.on_progress(f"{task}, {', '.join(names):.40}", done, total)
                    for name in rotated(names, repeat + number):
                        before(name)
                        answered = self.answer(prompt, drafters[name])
                        same = expected.setdefault((task, number), answered.tokens)
                        if answered.tokens != same:
                            raise NotLosslessError(
                                f"{name} gave other tokens than the method before it, for prompt "
                                f"{number} of {task}"
                            )
                        yield MethodAnswer(repeat, task, name, drafters[name], answered)
                    done += 1

    def answer(self, prompt: NDArray[np.uint32], drafter: DraftProposer | None) -> TimedAnswer:
        """One answer, as long as the settings allow."""
        limit, ignore_eos = self.settings.max_new_tokens, self.settings.ignore_eos
        return answer(
            self.session,
            prompt,
            drafter,
            max_new_tokens=limit,
            ignore_eos=ignore_eos,
            clock=self.session.clock,
        )

    def warm_up(self) -> None:
        """Answer a prompt that does not count: the first run of a graph takes longer."""
        for prompts in list(self.prompts.values())[:1]:
            self.answer(prompts[0], None)


class DelayedStore:
    """Blocks whose loads take longer than they do.

    Args:
        device: Whose blocks are loaded and released.
        delay_s: Seconds added to each load.
        core: The only core that loads may use; None for any.
    """

    def __init__(self, device: Device, delay_s: float, core: int | None = None) -> None:
        self._device, self._delay_s, self._core = device, delay_s, core

    def load(self, block: int, graph: GraphName) -> None:
        """Load a graph after the delay; raises as the device does."""
        if self._core is not None:
            os.sched_setaffinity(0, {self._core})  # of this thread alone, which is the loader's
        time.sleep(self._delay_s)
        self._device.load(block, graph)

    def release(self, block: int, graph: GraphName) -> None:
        """Drop a graph."""
        self._device.release(block, graph)


def keep_a_core() -> int:
    """Take a core from this thread, and from those that it starts, for loads.

    Returns:
        The core.

    Raises:
        OptionError: The system does not pin threads, or there is only one core.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise OptionError("this system does not pin threads to cores")
    *others, last = sorted(os.sched_getaffinity(0))
    if not others:
        raise OptionError(f"loads need a core of their own, but only core {last} may be used")
    os.sched_setaffinity(0, others)
    return last


def slow_loads(session: OrtSession, delay_s: float, core: int | None) -> None:
    """Stream a session's blocks through a `DelayedStore` from now on, and time its steps anew.

    Nothing changes where all blocks stay in memory.

    Raises:
        MemoryBudgetError, BlockLoadError: Same as in `OrtSession.step`.
    """
    # The first prompt decides whether blocks are streamed, and this session may have read none: its
    # steps are not timed where an earlier opening did so.
    session.rewind(0)
    session.prefill(np.zeros(1, np.uint32))
    session.rewind(0)
    if not session.switcher.is_streaming:
        return
    before, device, manifest = session.switcher, session.device, session.bundle.manifest
    before.close()
    for block in range(device.num_blocks):
        for graph in GRAPHS:
            device.release(block, graph)
    session.switcher = Switcher(
        DelayedStore(device, delay_s, core),
        [cost.with_load_delay(round(1e6 * delay_s)) for cost in before.costs],
        manifest.prefill_rows,
        manifest.decode_rows,
        is_shared=device.is_shared,
        memory_budget=before.memory_budget,
    )
    timed = run_self_test(session, {})
    session.select(session.widths, [timed.cost(w) for w in session.widths])
