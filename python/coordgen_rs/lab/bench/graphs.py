"""Section `graphs`: drafting and the switching of graphs, each on and off (CoordGen, Table 3)."""

from collections.abc import Sequence
from typing import NamedTuple

from coordgen_rs.lab.bench.prompts import encode_prompts, read_prompts
from coordgen_rs.lab.bench.workbench import Settings, Tally, Workbench, tallied
from coordgen_rs.lab.own_process import in_own_process
from coordgen_rs.lab.tables import ALL, Chart, Column, Section, summarize
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
        (
            Column("variant"),
            Column("per_token", "ms", 3),
            Column("exposed_loads", "ms", 3),
            Column("speedup"),
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
            f"one graph: the decode graph for all; graphs: {SWITCHING}, from the prefill graphs on",
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

    def start(name: str) -> None:
        session.switcher.settle(VARIANTS[name].switch)
        session.switcher.only(VARIANTS[name].start)

    given = bench.answers(
        list(VARIANTS), lambda name: bench.drafter(VARIANTS[name].method), before=start
    )
    tallies = tallied(given)
    return {name: tallies[ALL, name] for name in VARIANTS}
