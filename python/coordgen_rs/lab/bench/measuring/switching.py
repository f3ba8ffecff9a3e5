"""All switching strategies on real sessions: the same prompt in the same run, in turns.

In: a bundle, what its blocks cost, and a prompt. Out: for each strategy the time to the first
token, what of the loads was hidden, and the memory held, beside what its plan said. The tokens of
all strategies are compared on the way. On a machine whose loads are quick a delay can be added to
each.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import BlockCost, Switcher, SwitchReport
from coordgen_rs._core import strategies as known_strategies
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.bench.measuring.answers import Answered, NotLosslessError, answer
from coordgen_rs.lab.bench.measuring.slow_loads import DelayedStore
from coordgen_rs.loading.directory import ProviderChoice, open_bundle
from coordgen_rs.runtime.caches.kv_cache import KV_FORMS
from coordgen_rs.runtime.machine import peak_resident_bytes, reset_peak
from coordgen_rs.runtime.ort_session import OrtSession

STRATEGIES = (*(name for name in known_strategies() if name != "resident"), "resident")
"""Strategies in the order of a round; `resident`, which takes most memory, is the last."""


class Switched(NamedTuple):
    """One request.

    Attributes:
        answered: Its tokens and times; the first token waits for the last loads, too.
        report: How the loads went.
        peak_bytes: Most resident memory meanwhile; 0 where the system does not tell.
    """

    answered: Answered
    report: SwitchReport
    peak_bytes: int


@dataclass(frozen=True)
class SwitchBench:
    """Result of `bench_switching`.

    Attributes:
        answers: The answers of each strategy, one per round.
        prompt_tokens: Tokens of the prompt.
        load_delay_s: Seconds added to each load.
        memory_budget: Bytes of graphs that plans kept to, but for `resident`.
        one_graph_bytes: Most resident memory in the first answer of all, in which every block has
            one graph at a time.
        largest_block_bytes: What the largest graph of a block takes.
    """

    answers: dict[str, list[Switched]]
    prompt_tokens: int
    load_delay_s: float
    memory_budget: int
    one_graph_bytes: int
    largest_block_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Medians over the rounds, as JSON types."""
        facts = {name: value for name, value in vars(self).items() if name != "answers"}
        return facts | {
            "rounds": len(next(iter(self.answers.values()))),
            "strategies": {name: self.figures(name) for name in self.answers},
        }

    def figures(self, strategy: str) -> dict[str, Any]:
        """Medians of one strategy over the rounds; times in microseconds as plans have them.

        `first_token_range_us` and `exposed_range_us` are the least and the most of the rounds.
        `parts_us` is what computing and loading took, added up: the time they would take in turn.
        `exposed_of_sync` is None where loads were so quick that nobody waited under `sync` either.
        """
        answers = self.answers[strategy]
        exposed_us = self._median(strategy, "exposed_us")
        load_us = self._median(strategy, "load_us")
        prefill_us = 1e6 * statistics.median(one.answered.stats.prefill_s for one in answers)
        first_tokens_us = [1e6 * one.answered.arrivals[0][0] for one in answers]
        exposed_all_us = [one.report.exposed_us for one in answers]
        figures = {
            "chosen": answers[-1].report.strategy,
            "first_token_us": statistics.median(first_tokens_us),
            "first_token_range_us": [min(first_tokens_us), max(first_tokens_us)],
            "exposed_us": exposed_us,
            "exposed_range_us": [min(exposed_all_us), max(exposed_all_us)],
            "load_us": load_us,
            "overlap_us": self._median(strategy, "overlap_us"),
            "parts_us": prefill_us - exposed_us + load_us,
            "peak_bytes": max(one.peak_bytes for one in answers),
            "planned": answers[-1].report.to_json()["planned"],
        }
        if "sync" in self.answers:
            of_sync_us = self._median("sync", "exposed_us")
            figures["exposed_of_sync"] = exposed_us / of_sync_us if of_sync_us else None
        return figures

    def _median(self, strategy: str, name: str) -> float:
        return statistics.median(float(getattr(one.report, name)) for one in self.answers[strategy])


def bench_switching(
    path: Path | str,
    costs: Sequence[BlockCost],
    *,
    prompt_len: int = 1024,
    max_new_tokens: int = 8,
    strategies: Sequence[str] = STRATEGIES,
    rounds: int = 3,
    load_delay_s: float = 0,
    memory_budget: int | None = None,
    threads: int | None = None,
    provider: ProviderChoice | None = None,
    kv_cache: str = KV_FORMS[0],
) -> SwitchBench:
    """Answer one prompt under every strategy, in rounds, each time from all blocks under G1.

    Args:
        path: The bundle's directory.
        costs: What its blocks cost, without `load_delay_s`.
        prompt_len: Tokens of the prompt, drawn at random.
        max_new_tokens: Tokens of the answer, decoded one by one.
        strategies: What to compare.
        rounds: Answers of each strategy; one more, of `sync`, warms up.
        load_delay_s: Seconds added to each load.
        memory_budget: Bytes that graphs and experts may hold, graphs not for `resident`; None takes
            one graph of each block and the largest graph, and experts are in no budget.
        threads: Compute threads of the process; None takes one a core.
        provider: What runs it; None leaves that to the bundle.
        kv_cache: How keys and values are held.

    Raises:
        BundleError: The bundle cannot be used, or is for another provider or chip.
        ProviderError: QNN is not installed, cannot run here, or refuses the bundle.
        OptionError: An option is outside its range, or an unknown strategy.
        MemoryBudgetError: The budget is too small.
        NotLosslessError: Two strategies gave different tokens.
    """
    costs = [cost.with_load_delay(round(1e6 * load_delay_s)) for cost in costs]
    choice = provider or ProviderChoice()
    device = choice.device(open_bundle(path), share_graphs=False, kv_cache=kv_cache)
    if memory_budget is not None and device.experts is not None:
        memory_budget = device.experts.keep_within(memory_budget, costs)
    session = OrtSession(device, threads=threads, preload=False, costs=costs)
    if rounds < 1 or not 1 < prompt_len <= session.capacity - max_new_tokens:
        raise OptionError(
            f"rounds is {rounds}, but must be at least 1, and prompt_len is {prompt_len}, but must "
            f"be from 2 to {session.capacity - max_new_tokens}"
        )
    # The delay stands in for slow loads only in requests, so the session keeps its own store.
    manifest = session.bundle.manifest
    store = DelayedStore(device, load_delay_s)
    rows = manifest.prefill_rows, manifest.decode_rows
    session.switcher = Switcher(store, costs, *rows, is_shared=device.is_shared)
    largest = max(max(cost.prefill_bytes, cost.decode_bytes) for cost in costs)
    if memory_budget is None:
        memory_budget = largest + sum(max(cost.prefill_bytes, cost.decode_bytes) for cost in costs)
    prompt = np.random.default_rng(0).integers(session.vocab_size, size=prompt_len)

    def answer_under(strategy: str) -> Switched:
        budget = None if strategy == "resident" else memory_budget
        session.switcher.settle(strategy, budget)
        session.switcher.only("prefill")
        return _answer(session, prompt.astype(np.uint32), max_new_tokens)

    first = answer_under("sync")  # warms up, too
    answers: dict[str, list[Switched]] = {strategy: [] for strategy in strategies}
    for _ in range(rounds):
        for strategy in strategies:
            given = answer_under(strategy)
            if given.answered.tokens != first.answered.tokens:
                raise NotLosslessError(f"{strategy} gave other tokens than sync")
            answers[strategy].append(given)
    return SwitchBench(answers, prompt_len, load_delay_s, memory_budget, first.peak_bytes, largest)


def _answer(session: OrtSession, prompt: NDArray[np.uint32], max_new_tokens: int) -> Switched:
    is_told = reset_peak()
    answered = answer(session, prompt, None, max_new_tokens=max_new_tokens)
    report = cast(SwitchReport, answered.stats.switching)
    return Switched(answered, report, peak_resident_bytes() if is_told else 0)
