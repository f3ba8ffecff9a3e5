"""Section `graphs`: drafting and the switching of graphs, each on and off (CoordGen, Table 3)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coordgen_rs.lab.bench.measuring.answers import Answered
from coordgen_rs.lab.bench.measuring.prompts import encode_prompts, read_prompts
from coordgen_rs.lab.bench.measuring.repeats import summarize
from coordgen_rs.lab.bench.measuring.settings import Settings
from coordgen_rs.lab.bench.measuring.workbench import Workbench
from coordgen_rs.lab.bench.reporting.section import Cell, Chart, Column, Section
from coordgen_rs.lab.own_process import in_own_process
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.runtime.device import GraphName
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.session import StepCost

SWITCHING = "just_in_time"


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
    "+ graphs": Variant("plain", SWITCHING, "prefill"),
    "+ drafts (sam)": Variant("sam", "single", "decode"),
    "+ graphs + drafts (sam)": Variant("sam", SWITCHING, "prefill"),
    "ours": Variant("coordgen", SWITCHING, "prefill"),
}
"""Variants by their names in the table; the paper's are NPU, +G, +SD, +G+SD, Ours."""

COLUMNS = (
    Column("variant"),
    Column("per_token", "ms", 3),
    Column("exposed_loads", "ms", 3),
    Column("speedup"),
)


class Times(NamedTuple):
    """Milliseconds per token, and of exposed loads per answer, in each repeat, by variant."""

    per_token_ms: dict[str, list[float]]
    exposed_ms: dict[str, list[float]]


def measure_graphs(bench: Workbench) -> Section:
    """Answer every prompt under every variant, in turns, in a process of its own."""
    bench.on_progress("graphs", 0, 1)
    times = in_own_process(time_variants, bench.settings, bench.session.widths, bench.costs)
    plain, *_ = times.per_token_ms.values()
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            summarize(times.per_token_ms[name]),
            summarize(times.exposed_ms[name]),
            summarize([one / ms for one, ms in zip(plain, times.per_token_ms[name], strict=True)]),
        )
        for name in VARIANTS
    ]
    return Section(
        "graphs",
        "drafting and switching, each on and off",
        bench.how,
        COLUMNS,
        rows,
        Chart("bars", "variant", ("per_token",)),
        [
            f"whole answers, prefill included; median (least to most) of {bench.settings.repeats} "
            "repeats in turns",
            "the graphs of a block are loaded apart, as on an NPU, also where they are one file",
            f"one graph: the decode graph for all; graphs: {SWITCHING}, from the prefill graphs on",
        ],
    )


def time_variants(
    settings: Settings, widths: Sequence[int], costs: Sequence[StepCost] | None
) -> Times:
    """Time all variants in this process; raises as `Workbench.open` and `Workbench.answers`.

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

    def start(name: str) -> None:
        session.switcher.settle(VARIANTS[name].switch)
        session.switcher.only(VARIANTS[name].start)

    sums: dict[str, dict[int, Sums]] = {name: defaultdict(Sums) for name in VARIANTS}
    for given in bench.answers(
        list(VARIANTS), lambda name: bench.drafter(VARIANTS[name].method), start
    ):
        sums[given.method][given.repeat].add(given.answered)
    num_prompts = sum(bench.num_prompts.values())
    return Times(
        {name: [1e3 * s.seconds / s.tokens for s in of.values()] for name, of in sums.items()},
        {
            name: [s.exposed_us / 1e3 / num_prompts for s in of.values()]
            for name, of in sums.items()
        },
    )


@dataclass
class Sums:
    """Sums over all answers of a variant in one repeat: seconds, tokens, exposed loads."""

    seconds: float = 0.0
    tokens: int = 0
    exposed_us: int = 0

    def add(self, answered: Answered) -> None:
        """Count an answer in."""
        report = answered.stats.switching
        self.seconds += answered.total_s
        self.tokens += len(answered.tokens)
        self.exposed_us += 0 if report is None else report.exposed_us
