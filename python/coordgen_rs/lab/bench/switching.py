"""Section `switching`: all strategies of loading graphs while a prompt is read, in turns.

In: what the blocks cost, and settings. Out: for each strategy the time to the first token, what of
the loads was hidden, and the memory held, beside what its plan said. The tokens of all strategies
are compared on the way. On a machine whose loads are quick a delay can be added to each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import BlockCost, Switcher, SwitchReport
from coordgen_rs.cli.terminal.text import show_bytes
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.bench.loads import DelayedStore
from coordgen_rs.lab.bench.workbench import (
    NotLosslessError,
    Settings,
    TimedAnswer,
    Workbench,
    answer,
)
from coordgen_rs.lab.own_process import in_own_process
from coordgen_rs.lab.profile.blocks import measure
from coordgen_rs.lab.tables import Cell, Chart, Column, How, Section, ratio, summarize
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.loading.profile import Profile, fitting_costs
from coordgen_rs.runtime.machine import peak_resident_bytes, reset_peak
from coordgen_rs.runtime.onnx_runtime import set_threads
from coordgen_rs.runtime.ort_session import OrtSession

COLUMNS = (
    Column("strategy"),
    Column("chosen"),
    Column("first_token", "ms", 1),
    Column("planned", "ms", 1),
    Column("exposed", "ms", 1),
    Column("of_sync", digits=3),
    Column("loads", "ms", 1),
    Column("hidden", "%", 0),
    Column("in_turn", "ms", 1),
    Column("peak_memory", "MB", 1),
)

_MAX_NEW_TOKENS = 8


class StrategyAnswer(NamedTuple):
    """One request.

    Attributes:
        answered: Its tokens and times; the first token waits for the last loads, too.
        report: How the loads went.
        peak_bytes: Most resident memory meanwhile; 0 where the system does not tell.
    """

    answered: TimedAnswer
    report: SwitchReport
    peak_bytes: int


@dataclass(frozen=True)
class StrategyTimes:
    """Result of `bench_switching`.

    Attributes:
        answers: The answers of each strategy, one per round.
        memory_budget: Bytes of graphs that plans kept to, but for `resident`.
        one_graph_bytes: Most resident memory in the first answer of all, in which every block has
            one graph at a time.
        largest_block_bytes: What the largest graph of a block takes.
    """

    answers: dict[str, list[StrategyAnswer]]
    memory_budget: int
    one_graph_bytes: int
    largest_block_bytes: int

    def row(self, strategy: str) -> tuple[Cell, ...]:
        """The cells of one strategy: medians over the rounds.

        `in_turn` is what computing and loading took, added up: the time they would take in turn.
        `of_sync` is None where loads were so quick that nobody waited under `sync` either.
        """
        answers = self.answers[strategy]

        def middle(of: Callable[[SwitchReport], int], strategy: str = strategy) -> float:
            return median(float(of(one.report)) for one in self.answers[strategy])

        exposed_us, load_us = middle(_exposed_us), middle(lambda report: report.load_us)
        hidden = ratio(100 * middle(lambda report: report.overlap_us), load_us)
        prefill_ms = 1e3 * median(one.answered.stats.prefill_s for one in answers)
        planned = answers[-1].report.to_json()["planned"]
        is_beside = "sync" in self.answers
        return (
            strategy,
            answers[-1].report.strategy,
            summarize([1e3 * one.answered.arrivals[0][0] for one in answers]),
            None if planned is None else planned["makespan_us"] / 1e3,
            summarize([one.report.exposed_us / 1e3 for one in answers]),
            ratio(exposed_us, middle(_exposed_us, "sync")) if is_beside else None,
            load_us / 1e3,
            hidden,
            prefill_ms + (load_us - exposed_us) / 1e3,
            max(one.peak_bytes for one in answers) / 1e6 or None,
        )


def _exposed_us(report: SwitchReport) -> int:
    return report.exposed_us


def bench_switching(
    settings: Settings, costs: Sequence[BlockCost], *, max_new_tokens: int = _MAX_NEW_TOKENS
) -> StrategyTimes:
    """Answer one prompt under every strategy, in rounds, each time from all blocks under G1.

    One more answer, under `sync`, warms up. Without a memory budget, graphs may hold one graph of
    each block and the largest graph, but for `resident`, and experts are in no budget.

    Args:
        settings: Of the bundle and the section; `repeats` is the number of rounds.
        costs: What its blocks cost, without the delay.
        max_new_tokens: Tokens of the answer, decoded one by one.

    Raises:
        BundleError: The bundle cannot be used, or is for another provider or chip.
        ProviderError: QNN is not installed, cannot run here, or refuses the bundle.
        OptionError: The prompt is longer than what the bundle reads, or a strategy is unknown.
        MemoryBudgetError: The budget is too small.
        NotLosslessError: Two strategies gave different tokens.
    """
    costs = [cost.with_load_delay(round(1e6 * settings.load_delay_s)) for cost in costs]
    bundle = open_bundle(settings.bundle)
    device = settings.provider.device(bundle, share_graphs=False, kv_cache=settings.kv_cache)
    memory_budget = settings.memory_budget
    if memory_budget is not None and device.experts is not None:
        memory_budget = device.experts.keep_within(memory_budget, costs)
    session = OrtSession(device, threads=settings.threads, preload=False, costs=costs)
    most = session.capacity - max_new_tokens
    if not 1 < settings.prompt_len <= most:
        raise OptionError(f"prompt_len is {settings.prompt_len}, but must be from 2 to {most}")
    # The delay stands in for slow loads only in requests, so the session keeps its own store.
    store = DelayedStore(device, settings.load_delay_s)
    rows = bundle.manifest.prefill_rows, bundle.manifest.decode_rows
    session.switcher = Switcher(store, costs, *rows, is_shared=device.is_shared)
    block_bytes = [max(cost.prefill_bytes, cost.decode_bytes) for cost in costs]
    if memory_budget is None:
        memory_budget = max(block_bytes) + sum(block_bytes)
    prompt = np.random.default_rng(0).integers(session.vocab_size, size=settings.prompt_len)

    def answer_under(strategy: str) -> StrategyAnswer:
        budget = None if strategy == "resident" else memory_budget
        session.switcher.settle(strategy, budget)
        session.switcher.only("prefill")
        return _answer(session, prompt.astype(np.uint32), max_new_tokens)

    first = answer_under("sync")  # warms up, too
    answers: dict[str, list[StrategyAnswer]] = {strategy: [] for strategy in settings.strategies}
    for _ in range(settings.repeats):
        for strategy in settings.strategies:
            given = answer_under(strategy)
            if given.answered.tokens != first.answered.tokens:
                raise NotLosslessError(f"{strategy} gave other tokens than sync")
            answers[strategy].append(given)
    return StrategyTimes(answers, memory_budget, first.peak_bytes, max(block_bytes))


def _answer(session: OrtSession, prompt: NDArray[np.uint32], max_new_tokens: int) -> StrategyAnswer:
    is_told = reset_peak()
    answered = answer(session, prompt, None, max_new_tokens=max_new_tokens)
    report = cast(SwitchReport, answered.stats.switching)
    return StrategyAnswer(answered, report, peak_resident_bytes() if is_told else 0)


def measure_switching(bench: Workbench) -> Section:
    """Answer one prompt under every strategy, in a process of its own."""
    settings = bench.settings
    bench.on_progress("switching", 0, 1)
    profile = settings.profile and Profile.find(settings.profile)
    measured = profile or in_own_process(
        measure,
        settings.bundle,
        provider=settings.provider,
        threads=settings.threads,
        repeats=settings.repeats,
    )
    return in_own_process(strategies_section, settings, measured, bench.how)


def strategies_section(settings: Settings, profile: Profile, how: How) -> Section:
    """Run all strategies in this process; raises as `bench_switching`."""
    bundle, threads = open_bundle(settings.bundle), set_threads(settings.threads)
    prompt_len = min(settings.prompt_len, bundle.manifest.context - _MAX_NEW_TOKENS)
    settings = replace(settings, prompt_len=prompt_len, threads=threads)
    bench = bench_switching(settings, fitting_costs(profile, bundle, threads))
    return Section(
        "switching",
        f"{prompt_len} tokens of prompt, at most {show_bytes(bench.memory_budget)} of graphs but "
        "for resident",
        how,
        COLUMNS,
        [bench.row(strategy) for strategy in bench.answers],
        Chart("bars", "strategy", ("first_token", "exposed")),
        [
            f"median (least to most) of {settings.repeats} rounds in turns, each from all blocks "
            "on their prefill graphs; the same tokens from all",
            f"{settings.load_delay_s} s were added to each load, as by a slower disk",
            "planned: the makespan foreseen, as where loads take nothing from compute; in_turn: "
            "computing and loading added up",
            f"with one graph of each block {show_bytes(bench.one_graph_bytes)} were resident; "
            f"the largest graph has {show_bytes(bench.largest_block_bytes)}",
        ],
    )
