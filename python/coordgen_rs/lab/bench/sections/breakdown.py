"""Section `breakdown`: where the time of an answer goes (CoordGen, Figure 13)."""

from collections import defaultdict

from coordgen_rs._core import Drafter
from coordgen_rs.lab.bench.measuring.answers import Answered
from coordgen_rs.lab.bench.measuring.clocks import ClockedDrafter, ClockedHead
from coordgen_rs.lab.bench.measuring.repeats import summarize
from coordgen_rs.lab.bench.measuring.workbench import SHOWN, Workbench
from coordgen_rs.lab.bench.reporting.section import Cell, Chart, Column, Section

PARTS = ("prefill", "decode", "calibration", "draft", "switch", "other")

COLUMNS = (
    Column("task"),
    Column("method"),
    *(Column(part, "ms", 1) for part in (*PARTS, "total")),
)

Seconds = dict[str, float]


def measure_breakdown(bench: Workbench) -> Section:
    """Answer every prompt by the shown methods, in turns, with clocks around the parts."""
    with ClockedHead(bench.session.device) as clocked:
        rows = _rows(bench, clocked)
    return Section(
        "breakdown",
        "parts of the time of an answer",
        bench.how,
        COLUMNS,
        rows,
        Chart("stacked", "task", PARTS, panels="method"),
        [
            f"mean of a task's prompts, median (least to most) of {bench.settings.repeats} repeats",
            "decode: runs of the decode graphs, which verify; calibration: the head over the "
            "prompt, and the tree of what it says; draft: reading the prompt, propose, accept",
            "switch: what compute waited for loads in the prefill; 0 where both graphs of a block "
            "are in memory",
        ],
    )


def _rows(bench: Workbench, head: ClockedHead) -> list[tuple[Cell, ...]]:
    def clocked(name: str) -> ClockedDrafter | None:
        drafter = bench.drafter(name)
        return ClockedDrafter(drafter, head) if isinstance(drafter, Drafter) else None

    sums: dict[tuple[str, str], dict[int, Seconds]]
    sums = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    for given in bench.answers(SHOWN, clocked):
        for part, seconds in parts(given.answered, given.drafter).items():
            sums[given.task, given.method][given.repeat][part] += seconds
    return [
        (
            task,
            name,
            *(
                summarize([1e3 / num_prompts * of[part] for of in sums[task, name].values()])
                for part in (*PARTS, "total")
            ),
        )
        for task, num_prompts in bench.num_prompts.items()
        for name in SHOWN
    ]


def parts(answered: Answered, drafter: ClockedDrafter | None) -> Seconds:
    """The seconds of an answer by part; "other" is what is left of the total."""
    stats = answered.stats
    switch_s = 0.0 if stats.switching is None else stats.switching.exposed_us / 1e6
    found = {
        "calibration": 0.0 if drafter is None else drafter.calibration_s,
        "draft": 0.0 if drafter is None else drafter.draft_s,
        "decode": stats.decode_s if drafter is None else drafter.verify_s,
        "switch": switch_s,
    }
    found["prefill"] = stats.prefill_s - switch_s - found["calibration"]
    found["other"] = answered.total_s - sum(found.values())
    return found | {"total": answered.total_s}
