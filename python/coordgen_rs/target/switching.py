"""Which graphs of a session's blocks are in memory while it reads a prompt and answers.

In: blocks that can be loaded and released, a profile, and for each prompt a strategy and a memory
budget. Out: the graph that each block is to run under, once it may, and a report of plan and
reality. The plan is `_core.plan`'s, its carrying out `_core.Loader`'s; nothing is computed here.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from coordgen_rs._core import Loader, LoadReport, Plan, Streaming, plan
from coordgen_rs.errors import MemoryBudgetError
from coordgen_rs.target.blocks import Blocks, GraphName

WhileWaiting = Callable[[], bool] | None
"""Some work, in small parts, for the time that loads take; returns whether there is more of it."""

GRAPHS: tuple[GraphName, GraphName] = ("prefill", "decode")

_LOAD_MARGIN = 1.2
"""Plans reckon with loads that take so many times what the profile says: compute waits for what
comes late, not for what comes early, and a plan that loads as late as it can leaves no room."""


@dataclass(frozen=True)
class SwitchReport:
    """How the loads of one prompt went.

    Attributes:
        strategy: The strategy of the plan; of "auto", what it chose.
        planned: The plan's own figures, microseconds and bytes; None where blocks are streamed.
        exposed_us: Microseconds that compute waited for loads, those after the prefill included.
        load_us: Microseconds that loads took.
        overlap_us: Microseconds of these during which a block was running.
        peak_bytes: Most bytes that graphs held at once, by the profile.
        num_under_other_graph: Runs under another graph than planned.
        failures: What each load that failed raised; the request went on without it.
    """

    strategy: str
    planned: dict[str, int] | None
    exposed_us: int
    load_us: int
    overlap_us: int
    peak_bytes: int
    num_under_other_graph: int
    failures: tuple[Exception, ...]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON types."""
        return vars(self) | {"failures": [str(failure) for failure in self.failures]}


class BlockCosts(NamedTuple):
    """What one block costs under G1 and G2: microseconds to load and to run once, and bytes."""

    prefill_load_us: int
    prefill_compute_us: int
    prefill_bytes: int
    decode_load_us: int
    decode_compute_us: int
    decode_bytes: int


class Switching:
    """The loads and releases of one session.

    Args:
        blocks: What is loaded and released.
        rows: `prefill_rows` and `decode_rows`.
        costs: What each block costs, measured or guessed: an unfit figure makes plans worse, never
            results, and is mended prompt by prompt.
    """

    def __init__(self, blocks: Blocks, rows: tuple[int, int], costs: Sequence[BlockCosts]) -> None:
        self._blocks, self._rows, self._costs = blocks, rows, list(costs)
        num_bytes = [(cost.prefill_bytes, cost.decode_bytes) for cost in costs]
        self._loader = Loader(blocks, len(blocks), num_bytes)
        self._streaming: Streaming | None = None
        self._is_streaming_ready = False
        self._planned: Plan | None = None

    @property
    def is_streaming(self) -> bool:
        """Whether blocks come and go in every pass, because not all of them fit."""
        return self._streaming is not None

    def ensure(self, *graphs: GraphName) -> None:
        """Load what of these graphs is not in memory, block after block, and wait for it.

        Raises:
            BlockLoadError: A block cannot be loaded; the others are.
        """
        wanted = [(block, graph) for block in range(len(self._blocks)) for graph in graphs]
        if self._streaming is None and all(self._blocks.is_loaded(*each) for each in wanted):
            return
        self._streaming = None
        self._at_once([("load", *each) for each in wanted])

    def only(self, graph: GraphName) -> None:
        """Have this graph of all blocks in memory, and no other.

        Raises:
            BlockLoadError: A block cannot be loaded; the others are.
        """
        self._streaming = None
        blocks, others = range(len(self._blocks)), [other for other in GRAPHS if other != graph]
        leaving = [("release", block, other) for block in blocks for other in others]
        self._at_once([*leaving, *(("load", block, graph) for block in blocks)])

    def ensure_some(self, block: int) -> GraphName:
        """A graph that the block can run a decode step under: G2 if it is there, else G1.

        Raises:
            BlockLoadError: It has neither, and G2 cannot be loaded.
        """
        for graph in reversed(GRAPHS):
            if self._blocks.is_loaded(block, graph):
                return graph
        self._loader.ensure(block, "decode")
        return "decode"

    @contextmanager
    def prompt(self, num_tokens: int, strategy: str, memory_budget: int | None) -> Iterator[None]:
        """While this lasts a prompt is read, its blocks loaded by a plan from what is in memory.

        Where "auto" finds no plan within the budget, blocks are streamed from then on. After an
        exception the loads that have not begun are left out, and what is in memory stays usable.

        Raises:
            OptionError: No such strategy.
            MemoryBudgetError: The budget is too small; the least that would do is named.
            BlockLoadError: A block that streaming starts with cannot be loaded.
        """
        try:
            self._begin(num_tokens, strategy, memory_budget)
            yield
        except BaseException:
            self._is_streaming_ready = False
            self._loader.cancel()
            raise

    def _begin(self, num_tokens: int, strategy: str, memory_budget: int | None) -> None:
        self._decide(num_tokens, strategy, memory_budget)
        if self._planned is not None:
            self._loader.begin(self._planned.runs, self._planned.actions)

    def stand_by(self, strategy: str, memory_budget: int | None) -> None:
        """Make ready for an answer where no prompt has to be computed, as `prompt` would leave it.

        Raises:
            OptionError, MemoryBudgetError: As of `prompt`.
            BlockLoadError: A block cannot be loaded.
        """
        self._decide(1, strategy, memory_budget)
        if self._planned is not None:
            for block in range(len(self._blocks)):
                self._at_once([("release", block, "prefill"), ("load", block, "decode")])

    def _decide(self, num_tokens: int, strategy: str, memory_budget: int | None) -> None:
        """Make a plan, or else a way of streaming.

        Raises:
            MemoryBudgetError: Neither fits into the budget.
        """
        may_stream = strategy == "auto" and memory_budget is not None
        planned = None
        self._loader.finish()  # a streamed pass leaves loads for the next; plans start from rest
        if not (may_stream and self._blocks.is_shared):
            try:
                planned = plan(
                    [_late(cost) for cost in self._costs],
                    *self._rows,
                    num_tokens,
                    strategy=strategy,
                    start=[_HELD[held] for held in self._loader.resident()],
                    memory_budget=memory_budget,
                )
            except MemoryBudgetError:
                if not may_stream:
                    raise
        streaming = None
        if planned is None and memory_budget is not None:
            streaming = Streaming(self._costs, memory_budget)
        self._planned, self._streaming, self._is_streaming_ready = planned, streaming, False

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """While this lasts all blocks run once, in order, each within `running`.

        Where blocks are streamed, begins with the loads and releases of the pass.

        Raises:
            BlockLoadError: A block that streaming starts with cannot be loaded.
        """
        try:
            if self._streaming is not None:
                if not self._is_streaming_ready:
                    self._start_streaming(self._streaming)
                self._loader.begin(self._streaming.runs, self._streaming.actions)
            yield
        except BaseException:
            self._is_streaming_ready = False
            self._loader.cancel()
            raise

    @contextmanager
    def running(self, block: int, while_waiting: WhileWaiting = None) -> Iterator[GraphName]:
        """Wait until a block may run; the graph that it is to run under stays while this lasts.

        Args:
            block: Its number.
            while_waiting: Called again and again until the block may run, or it returns False.

        Raises:
            BlockLoadError: The block has no graph, and none will come.
        """
        graph = self._loader.try_enter(block)
        while graph is None and while_waiting is not None and while_waiting():
            graph = self._loader.try_enter(block)
        if graph is None:
            graph = self._loader.enter(block)
        try:
            yield graph
        finally:
            self._loader.leave()

    def finish(self) -> SwitchReport:
        """Wait for the loads that a prompt has left, and report on them.

        What could not be loaded is told in the report: its block goes on under its other graph.
        """
        report = self._loader.finish()
        self._learn(report)
        return SwitchReport(
            strategy="streaming" if self._planned is None else self._planned.strategy,
            planned=None if self._planned is None else _figures(self._planned),
            exposed_us=report.exposed_us,
            load_us=report.busy_us,
            overlap_us=report.overlap_us,
            peak_bytes=report.peak_bytes,
            num_under_other_graph=report.num_under_other_graph,
            failures=tuple(report.failures),
        )

    def _learn(self, report: LoadReport) -> None:
        """Move what blocks cost half of the way to what they cost in a prompt."""
        seen = [
            (block, f"{graph}_load_us", end_us - start_us)
            for kind, block, graph, _, start_us, end_us in report.actions
            if kind == "load"
        ]
        prefill_rows, decode_rows = self._rows
        num_pieces = {"prefill": 1, "decode": -(-prefill_rows // decode_rows)}
        last_chunk = max((chunk for _, chunk, *_ in report.runs), default=0)
        seen += [
            (block, f"{graph}_compute_us", (end_us - start_us) // num_pieces[graph])
            for block, chunk, graph, start_us, end_us in report.runs
            if graph == "prefill" or chunk < last_chunk  # the last may be partly filled
        ]
        for block, name, seen_us in seen:
            cost = self._costs[block]
            self._costs[block] = cost._replace(**{name: (getattr(cost, name) + seen_us) // 2})

    def _start_streaming(self, streaming: Streaming) -> None:
        """Put into memory what the first pass needs, and nothing else."""
        needed = streaming.at_start
        leaving = [
            ("release", block, graph)
            for block in range(len(self._blocks))
            for graph in GRAPHS
            if graph == "prefill" or block not in needed
        ]
        self._at_once(leaving + [("load", block, "decode") for block in needed])
        self._is_streaming_ready = True

    def _at_once(self, actions: Sequence[tuple[str, int, str]]) -> None:
        self._loader.finish()  # what failed before is no failure of these
        self._loader.begin([], [(*action, 0, 0, 0) for action in actions])
        failures = self._loader.finish().failures
        if failures:
            raise failures[0]


_HELD = {
    (False, False): "nothing",
    (True, False): "prefill",
    (False, True): "decode",
    (True, True): "both",
}


def _late(cost: BlockCosts) -> BlockCosts:
    return cost._replace(
        prefill_load_us=round(_LOAD_MARGIN * cost.prefill_load_us),
        decode_load_us=round(_LOAD_MARGIN * cost.decode_load_us),
    )


def _figures(planned: Plan) -> dict[str, int]:
    names = ("makespan_us", "prefill_us", "exposed_load_us", "peak_bytes", "lower_bound_us")
    return {name: getattr(planned, name) for name in names}
