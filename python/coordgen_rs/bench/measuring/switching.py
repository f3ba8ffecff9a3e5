"""All switching strategies on real sessions: the same prompt in the same run, in turns.

In: a bundle, what its blocks cost, and a prompt. Out: for each strategy the time to the first
token, what of the loads was hidden, and the memory held, beside what its plan said. The tokens of
all strategies are compared on the way. On a machine whose loads are quick a delay can be added to
each; it takes no core from compute, as a slower disk would not.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import BlockCost, Switcher, SwitchReport
from coordgen_rs._core import strategies as known_strategies
from coordgen_rs.bench.measuring.answers import NotLosslessError
from coordgen_rs.bench.profiling.memory import peak_resident_bytes, reset_peak
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import OptionError
from coordgen_rs.generate import plain
from coordgen_rs.stats import Stats
from coordgen_rs.target.blocks import Blocks, GraphName
from coordgen_rs.target.ort_session import OrtSession
from coordgen_rs.target.provider import ProviderChoice

STRATEGIES = (*(name for name in known_strategies() if name != "resident"), "resident")
"""In the order of a round; `resident`, which takes most memory, is the last."""


class DelayedStore:
    """Blocks whose loads take longer than they do.

    Args:
        blocks: What is loaded and released.
        delay_s: Seconds added to each load.
    """

    def __init__(self, blocks: Blocks, delay_s: float) -> None:
        self._blocks, self._delay_s = blocks, delay_s

    def load(self, block: int, graph: GraphName) -> None:
        """Load a graph after the delay; raises as the blocks do."""
        time.sleep(self._delay_s)
        self._blocks.load(block, graph)

    def release(self, block: int, graph: GraphName) -> None:
        """Drop a graph."""
        self._blocks.release(block, graph)


@dataclass(frozen=True)
class Answer:
    """One request.

    Attributes:
        first_token_s: Seconds until the first token, waiting for the last loads included.
        total_s: Seconds until the last token.
        prefill_s: Seconds of the prefill, the last loads included.
        peak_bytes: Most resident memory meanwhile; 0 where the system does not tell.
        report: How the loads went.
        tokens: The answer.
    """

    first_token_s: float
    total_s: float
    prefill_s: float
    peak_bytes: int
    report: SwitchReport
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class SwitchBench:
    """Result of `bench_switching`.

    Attributes:
        answers: Of each strategy, an answer a round.
        prompt_tokens: Tokens of the prompt.
        load_delay_s: Seconds added to each load.
        memory_budget: Bytes of graphs that plans kept to, but for `resident`.
        one_graph_bytes: Most resident memory in the first answer of all, in which every block has
            one graph at a time.
        largest_block_bytes: What the largest graph of a block takes.
    """

    answers: dict[str, list[Answer]]
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
            "identical": True,
            "strategies": {name: self.figures(name) for name in self.answers},
        }

    def figures(self, strategy: str) -> dict[str, Any]:
        """Medians of one strategy over the rounds; times in microseconds as plans have them.

        `first_token_range_us` and `exposed_range_us` are the least and the most of the rounds.
        `parts_us` is what computing and loading took, added up: the time they would take in turn.
        """
        answers = self.answers[strategy]
        exposed_us = self._median(strategy, "exposed_us")
        prefill_us = 1e6 * statistics.median(answer.prefill_s for answer in answers)
        load_us = self._median(strategy, "load_us")
        first_tokens_us = [1e6 * answer.first_token_s for answer in answers]
        exposed_all_us = [answer.report.exposed_us for answer in answers]
        figures = {
            "chosen": answers[-1].report.strategy,
            "first_token_us": statistics.median(first_tokens_us),
            "first_token_range_us": [min(first_tokens_us), max(first_tokens_us)],
            "total_us": 1e6 * statistics.median(answer.total_s for answer in answers),
            "prefill_us": prefill_us,
            "exposed_us": exposed_us,
            "exposed_range_us": [min(exposed_all_us), max(exposed_all_us)],
            "load_us": load_us,
            "overlap_us": self._median(strategy, "overlap_us"),
            "parts_us": prefill_us - exposed_us + load_us,
            "num_under_other_graph": self._median(strategy, "num_under_other_graph"),
            "peak_bytes": max(answer.peak_bytes for answer in answers),
            "planned": answers[-1].report.to_json()["planned"],
        }
        if "sync" in self.answers:
            figures["exposed_of_sync"] = exposed_us / (self._median("sync", "exposed_us") or 1)
        if self.one_graph_bytes:
            reference = self.one_graph_bytes + self.largest_block_bytes
            peak_bytes = max(answer.peak_bytes for answer in answers)
            figures["peak_of_one_graph_and_block"] = peak_bytes / reference
        return figures

    def _median(self, strategy: str, name: str) -> float:
        of_each = (float(getattr(answer.report, name)) for answer in self.answers[strategy])
        return statistics.median(of_each)


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
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
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
        memory_budget: Bytes that graphs may hold, but for `resident`; None takes one graph of each
            block and the largest graph.
        threads: Compute threads of the process; None takes one a core.
        provider: What shall run it; None leaves all to the bundle.
        on_progress: Called with the strategy, the answers done, and those in all.

    Raises:
        BundleError: The bundle cannot be used, or is for another provider or chip.
        ProviderError: QNN is not installed, cannot run here, or refuses the bundle.
        OptionError: An option is outside its range, or an unknown strategy.
        MemoryBudgetError: The budget is too small.
        NotLosslessError: Two strategies gave different tokens.
    """
    costs = [cost.with_load_delay(round(1e6 * load_delay_s)) for cost in costs]
    device = (provider or ProviderChoice()).device(Bundle.open(path), share_graphs=False)
    session = OrtSession(device, threads=threads, preload=False, costs=costs)
    if rounds < 1 or not 1 < prompt_len <= session.capacity - max_new_tokens:
        raise OptionError(
            f"rounds is {rounds}, but must be at least 1, and prompt_len is {prompt_len}, but must "
            f"be from 2 to {session.capacity - max_new_tokens}"
        )
    # The delay stands in for slow loads only in requests, so the session keeps its own store.
    blocks, manifest = session.blocks, session.bundle.manifest
    store = DelayedStore(blocks, load_delay_s)
    rows = manifest.prefill_rows, manifest.decode_rows
    session.switcher = Switcher(store, costs, *rows, is_shared=blocks.is_shared)
    largest = max(max(cost.prefill_bytes, cost.decode_bytes) for cost in costs)
    if memory_budget is None:
        memory_budget = largest + sum(max(cost.prefill_bytes, cost.decode_bytes) for cost in costs)
    prompt = np.random.default_rng(0).integers(session.vocab_size, size=prompt_len)

    def answer(strategy: str) -> Answer:
        budget = None if strategy == "resident" else memory_budget
        session.switcher.settle(strategy, budget)
        session.switcher.only("prefill")
        return _answer(session, prompt, max_new_tokens)

    first = answer("sync")  # warms up, too
    expected, one_graph_bytes = first.tokens, first.peak_bytes
    answers: dict[str, list[Answer]] = {strategy: [] for strategy in strategies}
    for number in range(rounds):
        for index, strategy in enumerate(strategies):
            on_progress(strategy, number * len(strategies) + index, rounds * len(strategies))
            given = answer(strategy)
            if given.tokens != expected:
                raise NotLosslessError(f"{strategy} gave other tokens than sync")
            answers[strategy].append(given)
    return SwitchBench(answers, prompt_len, load_delay_s, memory_budget, one_graph_bytes, largest)


def _answer(session: OrtSession, prompt: NDArray[np.int64], max_new_tokens: int) -> Answer:
    stats = Stats()
    steps = plain(session, prompt, max_new_tokens=max_new_tokens, stats=stats)
    reset_peak()
    start = time.perf_counter()
    tokens = list(next(steps).token_ids)
    first_token_s = time.perf_counter() - start
    tokens += [token for step in steps for token in step.token_ids]
    total_s = time.perf_counter() - start
    report = cast(SwitchReport, stats.switching)
    peak_bytes = peak_resident_bytes()
    return Answer(first_token_s, total_s, stats.prefill_s, peak_bytes, report, tuple(tokens))
