"""Section `methods`: published methods and ours side by side, on the same prompts, in turns."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from coordgen_rs._core import PLAIN, Drafter
from coordgen_rs.drafting.draft_model import ModelDrafter
from coordgen_rs.lab.bench.measuring.repeats import ratio, summarize
from coordgen_rs.lab.bench.measuring.workbench import Given, Workbench
from coordgen_rs.lab.bench.reporting.section import Across, Cell, Chart, Column, Section
from coordgen_rs.runtime.ort_session import OrtSession

ALL = "all"
"""The task of the rows over all tasks."""

COLUMNS = (
    Column("task"),
    Column("method"),
    Column("tokens_per_step"),
    Column("accepted_share"),
    Column("tokens_per_s", "1/s", 0),
    Column("speedup"),
    Column("answer_speedup"),
    Column("host_share", digits=3),
    Column("extra_memory", "MB"),
)


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
    """

    tokens: int = 0
    steps: int = 0
    proposed: int = 0
    accepted: int = 0
    decode_s: float = 0.0
    total_s: float = 0.0
    host_s: float = 0.0

    def add(self, given: Given[Any], model_s: float) -> None:
        """Count an answer in, in which a draft model ran for `model_s` seconds."""
        stats = given.answered.stats
        self.tokens += stats.new_tokens
        self.steps += stats.steps
        self.proposed += sum(source["proposed"] for source in stats.per_source.values())
        self.accepted += sum(source["accepted"] for source in stats.per_source.values())
        self.decode_s += stats.decode_s
        self.total_s += given.answered.total_s
        self.host_s += sum(stats.drafting_us) / 1e6 - model_s


Tallies = dict[tuple[str, str], dict[int, Tally]]
"""Tallies by task and method, then by repeat."""


def measure_methods(bench: Workbench) -> Section:
    """Answer every prompt by every method, in turns."""
    tallies: Tallies = defaultdict(lambda: defaultdict(Tally))
    held: dict[tuple[str, str], int] = defaultdict(int)
    model_s: dict[int, float] = defaultdict(float)
    for given in bench.answers(bench.methods, bench.drafter):
        drafter = given.drafter
        ran_s = drafter.model_s if isinstance(drafter, ModelDrafter) else 0.0
        for task in (given.task, ALL):
            tallies[task, given.method][given.repeat].add(given, ran_s - model_s[id(drafter)])
            held[task, given.method] = max(held[task, given.method], extra_bytes(drafter))
        model_s[id(drafter)] = ran_s
    rows: list[tuple[Cell, ...]] = [
        (task, method, *_figures(tallies, task, method), held[task, method] / 1e6)
        for task in (*bench.prompts, ALL)
        for method in bench.methods
    ]
    return Section(
        "methods",
        f"at most {bench.session.step_inputs[-1].rows} rows a step",
        bench.how,
        COLUMNS,
        rows,
        Chart("bars", "task", ("tokens_per_s", "tokens_per_step"), "method"),
        _notes(bench),
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


def _figures(tallies: Tallies, task: str, method: str) -> tuple[Cell, ...]:
    of_method, of_plain = list(tallies[task, method].values()), list(tallies[task, PLAIN].values())
    last, pairs = of_method[-1], list(zip(of_plain, of_method, strict=True))
    return (
        last.tokens / max(last.steps, 1),
        ratio(last.accepted, last.proposed),
        summarize([tally.tokens / (tally.decode_s or 1.0) for tally in of_method]),
        summarize([plain.decode_s / (tally.decode_s or 1.0) for plain, tally in pairs]),
        summarize([plain.total_s / (tally.total_s or 1.0) for plain, tally in pairs]),
        ratio(last.host_s, last.decode_s),
    )


def _notes(bench: Workbench) -> list[str]:
    rows = "as if rows cost nothing" if bench.costs is None else "where it pays on this machine"
    earlier = "may" if bench.settings.remembering else "may not"
    return [
        f"median (least to most) of {bench.settings.repeats} repeats; methods answered in turns; "
        "all gave the same tokens",
        "speedup: of decoding over plain; answer_speedup: of whole answers, prefill included",
        "accepted_share: of the draft tokens; host_share: propose and accept in the decoding time",
        f"drafts are made {rows}; methods {earlier} draft from earlier prompts of a task",
    ]
