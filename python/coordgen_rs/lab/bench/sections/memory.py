"""Section `memory`: peak memory by stage and method, a process each (CoordGen, Figure 12)."""

from dataclasses import replace

from coordgen_rs.lab.bench.measuring.repeats import Summary, summarize
from coordgen_rs.lab.bench.measuring.settings import Settings
from coordgen_rs.lab.bench.measuring.workbench import SHOWN, Workbench
from coordgen_rs.lab.bench.reporting.section import Cell, Chart, Column, Section
from coordgen_rs.lab.own_process import in_own_process
from coordgen_rs.runtime.machine import peak_resident_bytes, reset_peak

STAGES = ("opening", "prefill", "answering")

COLUMNS = (Column("method"), *(Column(stage, "MB", 1) for stage in (*STAGES, "extra")))


_MOST_PROCESSES = 3
"""Most processes of each method: they differ by less than a percent."""


def measure_memory(bench: Workbench) -> Section:
    """Answer all prompts by each shown method, in processes that have done nothing else."""
    settings = replace(bench.settings, methods=(), draft_model=None)
    repeats = min(bench.settings.repeats, _MOST_PROCESSES)
    peaks: dict[str, list[dict[str, int]]] = {name: [] for name in SHOWN}
    for repeat in range(repeats):
        for number, name in enumerate(SHOWN):
            done = repeat * len(SHOWN) + number
            bench.on_progress(f"memory, {name}", done, repeats * len(SHOWN))
            peaks[name].append(in_own_process(stage_peaks, settings, name))
    plain, *_ = peaks
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            *(_megabytes([peak[stage] for peak in of_one]) for stage in STAGES),
            _megabytes(
                [
                    peak["answering"] - base["answering"]
                    for peak, base in zip(of_one, peaks[plain], strict=True)
                ]
            ),
        )
        for name, of_one in peaks.items()
    ]
    told = any(peak["opening"] for of_one in peaks.values() for peak in of_one)
    return Section(
        "memory",
        "peak resident memory of a process",
        "measured",
        COLUMNS,
        rows if told else [],
        Chart("bars", "method", ("answering",)),
        [
            f"median (least to most) of {repeats} processes, Python and its libraries, and pages "
            "of the weights' files included; extra: over plain while answering",
        ]
        if told
        else ["this system does not tell the peak of resident memory by stage"],
    )


def stage_peaks(settings: Settings, method: str) -> dict[str, int]:
    """Bytes of resident memory at most in each stage, in this process; 0 where nobody tells."""
    if not reset_peak():  # what comes after would have the peak of what came before
        return dict.fromkeys(STAGES, 0)
    bench = Workbench.open(settings)
    peaks = {"opening": peak_resident_bytes()}
    prompts = [prompt for of_task in bench.prompts.values() for prompt in of_task]
    reset_peak()
    for prompt in prompts:
        bench.session.rewind(0)
        bench.session.prefill(prompt[:-1])
    peaks["prefill"] = peak_resident_bytes()
    reset_peak()
    for of_task in bench.prompts.values():
        drafter = bench.drafter(method)
        for prompt in of_task:
            bench.answer(prompt, drafter)
    return peaks | {"answering": peak_resident_bytes()}


def _megabytes(values: list[int]) -> Summary | None:
    return summarize([value / 1e6 for value in values])
