"""Sections on switching graphs: `switching`, all strategies, and `graphs` (CoordGen, Table 3).

In: a `Workbench`, and what the blocks cost. Out: `switching` has for each strategy of loading
graphs, while a prompt is read, in turns, the time to the first token, what of the loads was hidden,
and the memory held, beside what its plan said; `graphs` has drafting and switching each on and off.
The tokens of all are compared on the way. On a machine whose loads are quick a delay can be added
to each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import BlockCost, Switcher, SwitchReport
from coordgen_rs.cli.terminal.text import show_bytes
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.bench.prompts import encode_prompts, read_prompts
from coordgen_rs.lab.bench.workbench import (
    DelayedStore,
    NotLosslessError,
    Settings,
    Tally,
    TimedAnswer,
    Workbench,
    answer,
    tallied,
)
from coordgen_rs.lab.fleet.tasks import in_own_process
from coordgen_rs.lab.loads.profile import measure
from coordgen_rs.lab.tables import (
    ALL,
    Cell,
    Chart,
    Column,
    How,
    Section,
    columns_of,
    ratio,
    summarize,
)
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.loading.profile import Profile, fitting_costs
from coordgen_rs.runtime.device import GraphName
from coordgen_rs.runtime.machine import peak_resident_bytes, reset_peak
from coordgen_rs.runtime.onnx_runtime import set_threads
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.session import StepCost


class Variant(NamedTuple):
    """One column of the paper's table.

    Attributes:
        method: What drafts.
        switch: The strategy of loading graphs.
        start: The graphs that are in memory when a prompt comes.
    """

    method: str
    switch: str
    start: GraphName


VARIANTS = {
    "one graph": Variant("plain", "single", "decode"),
    "+ graphs": Variant("plain", "greedy", "prefill"),
    "+ drafts (sam)": Variant("sam", "single", "decode"),
    "+ graphs + drafts (sam)": Variant("sam", "greedy", "prefill"),
    "coordgen": Variant("coordgen", "greedy", "prefill"),
    "+ graphs, just_in_time": Variant("plain", "just_in_time", "prefill"),
    "coordgen, just_in_time": Variant("coordgen", "just_in_time", "prefill"),
}
"""Variants by their names in the table; the paper's are NPU, +G, +SD, +G+SD, Ours, and no more."""


def measure_graphs(bench: Workbench) -> Section:
    """Answer every prompt under every variant, in turns, in a process of its own."""
    bench.on_progress("graphs", 0, 1)
    tallies = in_own_process(time_variants, bench.settings, bench.session.widths, bench.costs)
    num_prompts = sum(bench.num_prompts.values())
    per_token_ms = {
        name: [1e3 * tally.total_s / tally.tokens for tally in of_one]
        for name, of_one in tallies.items()
    }
    plain, *_ = per_token_ms.values()
    return Section(
        "graphs",
        "drafting and switching, each on and off",
        bench.how,
        columns_of(
            *("variant", Column("per_token", "ms", 3), Column("exposed_loads", "ms", 3), "speedup")
        ),
        [
            (
                name,
                summarize(per_token_ms[name]),
                summarize([tally.exposed_us / 1e3 / num_prompts for tally in tallies[name]]),
                summarize([one / ms for one, ms in zip(plain, per_token_ms[name], strict=True)]),
            )
            for name in VARIANTS
        ],
        Chart("bars", "variant", ("per_token",)),
        [
            f"whole answers, prefill included; median (least to most) of {bench.settings.repeats} "
            "repeats in turns",
            "the graphs of a block are loaded apart, as on an NPU, also where they are one file",
            "one graph: the decode graph for all; graphs: greedy (k*), or just_in_time, from the "
            "prefill graphs on, within the memory of one graph of each block",
        ],
    )


def time_variants(
    settings: Settings, widths: Sequence[int], costs: Sequence[StepCost] | None
) -> dict[str, list[Tally]]:
    """A tally of each repeat for every variant, in this process; raises as `Workbench.answers`.

    Args:
        settings: What was asked for.
        widths: Those that drafts may use.
        costs: The cost of a step of each; None where rows are free.
    """
    bundle = open_bundle(settings.bundle)
    device = settings.provider.device(bundle, share_graphs=False, kv_cache=settings.kv_cache)
    session = OrtSession(device, threads=settings.threads, preload=False)
    session.select(widths, costs)
    data = [] if settings.data is None else read_prompts(settings.data, limit=settings.limit)
    bench = Workbench(settings, session, encode_prompts(session, data, settings.max_new_tokens))
    session.switcher.ensure("prefill", "decode")

    known = session.switcher.costs
    one_graph = sum(max(cost.prefill_bytes, cost.decode_bytes) for cost in known)

    def start(name: str) -> None:
        variant = VARIANTS[name]
        session.switcher.settle(variant.switch)  # without a budget `only` takes what it needs
        session.switcher.only(variant.start)
        session.switcher.settle(variant.switch, one_graph)

    given = bench.answers(
        list(VARIANTS), lambda name: bench.drafter(VARIANTS[name].method), before=start
    )
    tallies = tallied(given)
    return {name: tallies[ALL, name] for name in VARIANTS}


COLUMNS = columns_of(
    *("strategy", "chosen", Column("first_token", "ms", 1), Column("planned", "ms", 1)),
    *(Column("exposed", "ms", 1), Column("of_sync", digits=3), Column("loads", "ms", 1)),
    *(Column("hidden", "%", 0), Column("in_turn", "ms", 1), Column("peak_memory", "MB", 1)),
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
        answers, beside = self.answers[strategy], self.answers.get("sync")
        reports = [one.report for one in answers]
        exposed_us, load_us, overlap_us = (
            median(float(getattr(report, name)) for report in reports)
            for name in ("exposed_us", "load_us", "overlap_us")
        )
        prefill_ms = 1e3 * median(one.answered.stats.prefill_s for one in answers)
        planned = reports[-1].to_json()["planned"]
        return (
            strategy,
            reports[-1].strategy,
            summarize([1e3 * one.answered.arrivals[0][0] for one in answers]),
            None if planned is None else planned["makespan_us"] / 1e3,
            summarize([report.exposed_us / 1e3 for report in reports]),
            ratio(exposed_us, median(it.report.exposed_us for it in beside)) if beside else None,
            load_us / 1e3,
            ratio(100 * overlap_us, load_us),
            prefill_ms + (load_us - exposed_us) / 1e3,
            max(one.peak_bytes for one in answers) / 1e6 or None,
        )


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
