"""Section `sources`: `auto`, and `auto` with one source more or one less.

Rows cost what the settings say, and earlier requests are drawn on where they say so. A draft model
takes no part.
"""

from collections import defaultdict

from coordgen_rs._core import PLAIN, draft_method, draft_sources
from coordgen_rs.drafting.drafter import make_drafter
from coordgen_rs.drafting.proposer import DraftProposer
from coordgen_rs.lab.bench.measuring.repeats import summarize
from coordgen_rs.lab.bench.measuring.workbench import Workbench
from coordgen_rs.lab.bench.reporting.section import Across, Cell, Chart, Column, Section
from coordgen_rs.lab.bench.sections.methods import ALL, Tallies, Tally

COLUMNS = (
    Column("task"),
    Column("drafter"),
    Column("tokens_per_step"),
    Column("gain"),
    Column("speedup"),
    Column("answer_speedup"),
)

AUTO = "auto"
DRAW_ON_EARLIER = ("earlier-requests", "sam-earlier-requests")
"""Sources that are measured only where earlier requests may be drawn on."""


def drafters_of(*, free_rows: bool, earlier_requests: bool) -> dict[str, tuple[str, ...]]:
    """Names of drafters in the table, and their sources; plain decoding has none.

    Args:
        free_rows: Whether rows cost nothing, where `auto` has more sources.
        earlier_requests: Whether earlier requests may be drawn on.
    """
    names = [
        source.name
        for source in draft_sources()
        if source.can_be_asked_for
        and source.needs != "a draft model"
        and (earlier_requests or source.name not in DRAW_ON_EARLIER)
    ]
    method = draft_method(AUTO)
    situation = {"free_rows": free_rows, "earlier_requests": earlier_requests}
    auto = tuple(method.sources(common_phrases=True, **situation))
    less = {f"without {name}": tuple(other for other in auto if other != name) for name in auto}
    more = {f"with {name}": (*auto, name) for name in names if name not in auto}
    return {PLAIN: (), AUTO: auto, **less, **more}


def measure_sources(bench: Workbench) -> Section:
    """Answer every prompt with every choice of sources, in turns."""
    is_free, is_remembering = bench.costs is None, bench.settings.remembering
    chosen = drafters_of(free_rows=is_free, earlier_requests=is_remembering)

    def drafter(name: str) -> DraftProposer | None:
        sources = chosen[name]
        return make_drafter(bench.session, sources, free_rows=is_free) if sources else None

    tallies: Tallies = defaultdict(lambda: defaultdict(Tally))
    for given in bench.answers(list(chosen), drafter):
        for task in (given.task, ALL):
            tallies[task, given.method][given.repeat].add(given, 0.0)
    return Section(
        "sources",
        f"one source more or less, at most {bench.session.step_inputs[-1].rows} rows a step",
        bench.how,
        COLUMNS,
        [
            (task, name, *_figures(tallies, task, name))
            for task in (*bench.prompts, ALL)
            for name in chosen
        ],
        Chart("bars", "task", ("tokens_per_step", "speedup"), "drafter"),
        [
            f"median (least to most) of {bench.settings.repeats} repeats; drafters answered in "
            "turns; all gave the same tokens",
            "gain: tokens_per_step over those of auto; speedup: of decoding over plain; "
            "answer_speedup: of whole answers, prefill included",
            f"drafts are made {'as if rows cost nothing' if is_free else 'where they pay here'}; "
            f"sources {'may' if is_remembering else 'may not'} draw on earlier prompts of a task",
        ],
        Across("task", ("tokens_per_step", "gain")),
    )


def _figures(tallies: Tallies, task: str, name: str) -> tuple[Cell, ...]:
    of_plain, of_auto, own = (list(tallies[task, one].values()) for one in (PLAIN, AUTO, name))
    rate, rate_of_auto = (last.tokens / max(last.steps, 1) for last in (own[-1], of_auto[-1]))
    pairs = list(zip(of_plain, own, strict=True))
    return (
        rate,
        rate / rate_of_auto,
        summarize([plain.decode_s / (tally.decode_s or 1.0) for plain, tally in pairs]),
        summarize([plain.total_s / (tally.total_s or 1.0) for plain, tally in pairs]),
    )
