"""Sections on what is drafted: `methods` side by side, `sources` of auto, and EdgeLLM's parts.

In: a `Workbench`. Out: a row for each task and drafter, tasks together last; on the same prompts,
in turns. `edgellm` (EdgeLLM, Figure 22) is measured where the target is streamed.
"""

from collections.abc import Iterator
from typing import Any

from coordgen_rs._core import PLAIN, Drafter, draft_method, draft_sources
from coordgen_rs.generation.drafting.draft_model import ModelDrafter
from coordgen_rs.generation.drafting.drafter import make_drafter
from coordgen_rs.generation.drafting.proposer import DraftProposer
from coordgen_rs.lab.bench.workbench import MethodAnswer, Tally, Workbench, tallied
from coordgen_rs.lab.tables import (
    ALL,
    Across,
    Cell,
    Chart,
    Column,
    Section,
    columns_of,
    ratio,
    summarize,
)
from coordgen_rs.runtime.ort_session import OrtSession


def measure_methods(bench: Workbench) -> Section:
    """Answer every prompt by every method, in turns."""
    held: dict[tuple[str, str], int] = {}

    def noted(answers: Iterator[MethodAnswer[Any]]) -> Iterator[MethodAnswer[Any]]:
        for given in answers:
            for key in ((given.task, given.method), (ALL, given.method)):
                held[key] = max(held.get(key, 0), extra_bytes(given.drafter))
            yield given

    tallies = tallied(noted(bench.answers(bench.methods, bench.drafter)))

    def cells(task: str, method: str) -> tuple[Cell, ...]:
        own = tallies[task, method]
        last = own[-1]
        return (
            last.tokens_per_step,
            ratio(last.accepted, last.proposed),
            summarize([tally.tokens / (tally.decode_s or 1.0) for tally in own]),
            *_speedups(tallies[task, PLAIN], own),
            ratio(last.host_s, last.decode_s),
            held[task, method] / 1e6,
        )

    return Section(
        "methods",
        f"at most {bench.session.step_inputs[-1].rows} rows a step",
        bench.how,
        columns_of(
            *("task", "method", "tokens_per_step", "accepted_share"),
            *(Column("tokens_per_s", "1/s", 0), "speedup", "answer_speedup"),
            *(Column("host_share", digits=3), Column("extra_memory", "MB")),
        ),
        [(task, name, *cells(task, name)) for task in _tasks(bench) for name in bench.methods],
        Chart("bars", "task", ("tokens_per_s", "tokens_per_step"), "method"),
        [
            f"median (least to most) of {bench.settings.repeats} repeats; methods answered in "
            "turns; all gave the same tokens",
            "speedup: of decoding over plain; answer_speedup: of whole answers, prefill included",
            "accepted_share: of the draft tokens; host_share: propose and accept in the decoding "
            "time",
            f"drafts are made {_price(bench, 'where it pays on this machine')}; methods "
            f"{_may(bench)} draft from earlier prompts of a task",
        ],
        Across("task", ("tokens_per_step", "speedup")),
    )


def extra_bytes(drafter: Drafter | ModelDrafter | None) -> int:
    """What a method holds beside the target, a draft model's weights and cache included."""
    if drafter is None:
        return 0
    held = drafter.memory_bytes()
    if isinstance(drafter, ModelDrafter) and isinstance(drafter.model.session, OrtSession):
        session = drafter.model.session
        held += session.cache.nbytes
        held += sum(file.num_bytes for file in session.bundle.manifest.files.values())
    return held


AUTO = "auto"
DRAW_ON_EARLIER = ("earlier-requests", "sam-earlier-requests")
"""Sources that are measured only where earlier requests may be drawn on."""


def drafters_of(*, free_rows: bool, earlier_requests: bool) -> dict[str, tuple[str, ...]]:
    """Names of drafters in the table `sources`, and their sources; plain decoding has none.

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
    """Answer every prompt by `auto`, and with one source more or less; a draft model takes no part.

    Rows cost what the settings say, and earlier requests are drawn on where they say so.
    """
    is_free = bench.costs is None
    chosen = drafters_of(free_rows=is_free, earlier_requests=bench.settings.remembering)

    def drafter(name: str) -> DraftProposer | None:
        sources = chosen[name]
        return make_drafter(bench.session, sources, free_rows=is_free) if sources else None

    tallies = tallied(bench.answers(list(chosen), drafter))

    def cells(task: str, name: str) -> tuple[Cell, ...]:
        own, of_auto = tallies[task, name], tallies[task, AUTO]
        rate = own[-1].tokens_per_step
        speedups = _speedups(tallies[task, PLAIN], own)
        return rate, rate / of_auto[-1].tokens_per_step, *speedups

    return Section(
        "sources",
        f"one source more or less, at most {bench.session.step_inputs[-1].rows} rows a step",
        bench.how,
        columns_of("task", "drafter", "tokens_per_step", "gain", "speedup", "answer_speedup"),
        [(task, name, *cells(task, name)) for task in _tasks(bench) for name in chosen],
        Chart("bars", "task", ("tokens_per_step", "speedup"), "drafter"),
        [
            f"median (least to most) of {bench.settings.repeats} repeats; drafters answered in "
            "turns; all gave the same tokens",
            "gain: tokens_per_step over those of auto; speedup: of decoding over plain; "
            "answer_speedup: of whole answers, prefill included",
            f"drafts are made {_price(bench, 'where they pay here')}; sources {_may(bench)} draw "
            "on earlier prompts of a task",
        ],
        Across("task", ("tokens_per_step", "gain")),
    )


SP, BNV, SF, PP = "speculative", "edgellm-bnv", "edgellm-bnv-sf", "edgellm-bnv-pp"
EDGELLM = "edgellm"
ADDS = {SP: (PLAIN,), BNV: (SP,), SF: (BNV,), PP: (BNV,), EDGELLM: (SF, PP)}
"""EdgeLLM's Figure 22: each method, and those that lack one part of it alone.

The text names fallback before provisional generation, and explains them the other way round.
"""


def measure_edgellm(bench: Workbench) -> Section:
    """Answer every prompt by EdgeLLM's parts, in turns; what each adds."""
    ran: dict[tuple[str, str, int], ModelDrafter] = {}

    def noted(answers: Iterator[MethodAnswer[Any]]) -> Iterator[MethodAnswer[Any]]:
        for given in answers:
            if isinstance(given.drafter, ModelDrafter):
                ran[given.task, given.method, given.repeat] = given.drafter
            yield given

    tallies = tallied(noted(bench.answers([PLAIN, *ADDS], bench.drafter)))

    def cells(task: str, method: str, before: str) -> tuple[Cell, ...]:
        own, others = tallies[task, method], tallies[task, before]
        steps = sum(tally.steps for tally in own)
        drafters = [of for (t, m, _), of in ran.items() if m == method and task in (t, ALL)]
        gains = [other.decode_s / tally.decode_s for other, tally in zip(others, own, strict=True)]
        return (
            ratio(sum(of.num_drafted for of in drafters), steps),
            ratio(sum(tally.proposed for tally in own), steps),
            ratio(sum(of.num_provisional for of in drafters), steps),
            ratio(sum(of.model.core.num_promoted for of in drafters), steps),
            own[-1].tokens_per_step,
            summarize([tally.tokens / tally.decode_s for tally in own]),
            summarize(gains),
        )

    parts = [(method, before) for method, all_before in ADDS.items() for before in all_before]
    return Section(
        "edgellm",
        "what each part of EdgeLLM adds",
        bench.how,
        columns_of(
            *("task", "method", "beside", "drafted", "verified", "provisional"),
            *("kept", "tokens_per_step", Column("tokens_per_s", "1/s"), "gain"),
        ),
        [(task, *part, *cells(task, *part)) for task in _tasks(bench) for part in parts],
        Chart("bars", "method", ("tokens_per_s", "gain"), "beside", "task"),
        [
            f"median (least to most) of {bench.settings.repeats} repeats; methods answered in "
            "turns; all gave the same tokens",
            "gain: of decoding over the method beside, which lacks one part; in the paper 1.4 to "
            "2.1 by branches (bnv), 1.08 to 1.20 by the fallback (sf), up to 1.51 by provisional "
            "generation (pp)",
            "drafted, verified: tokens of the draft model a step; provisional: those that it read "
            "while the target waited for blocks; kept: those of them that it then drafted",
        ],
        Across("task", ("tokens_per_step", "gain")),
    )


def _tasks(bench: Workbench) -> tuple[str, ...]:
    return (*bench.prompts, ALL)


def _speedups(of_plain: list[Tally], own: list[Tally]) -> tuple[Cell, Cell]:
    """Of decoding and of whole answers, over plain decoding of the same repeat."""
    pairs = list(zip(of_plain, own, strict=True))
    return (
        summarize([plain.decode_s / (tally.decode_s or 1.0) for plain, tally in pairs]),
        summarize([plain.total_s / (tally.total_s or 1.0) for plain, tally in pairs]),
    )


def _price(bench: Workbench, where_measured: str) -> str:
    return "as if rows cost nothing" if bench.costs is None else where_measured


def _may(bench: Workbench) -> str:
    return "may" if bench.settings.remembering else "may not"
