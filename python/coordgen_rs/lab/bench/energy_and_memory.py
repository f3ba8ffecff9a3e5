"""Sections on what a machine spends: `memory` (Figure 12) and `energy` (Figure 11).

In: a `Workbench`. Out: a row for each of the shown methods; none where the system does not tell.
"""

from dataclasses import replace

from coordgen_rs._core import PLAIN
from coordgen_rs.lab.bench.workbench import PAPER_METHODS, Settings, Workbench
from coordgen_rs.lab.energy import EnergyMeter
from coordgen_rs.lab.fleet.tasks import in_own_process
from coordgen_rs.lab.tables import Cell, Chart, Column, Section, columns_of, in_turns, summarize
from coordgen_rs.runtime.machine import peak_resident_bytes, reset_peak

STAGES = ("opening", "prefill", "answering")

NO_SOURCE = "no energy source"

_MOST_PROCESSES = 3
"""Most processes of each method: they differ by less than a percent."""


def measure_memory(bench: Workbench) -> Section:
    """Answer all prompts by each shown method, in processes that have done nothing else."""
    settings = replace(bench.settings, methods=(), draft_model=None)
    repeats = min(bench.settings.repeats, _MOST_PROCESSES)
    peaks: dict[str, list[dict[str, int]]] = {name: [] for name in PAPER_METHODS}
    for done, name in enumerate(PAPER_METHODS * repeats):
        bench.on_progress(f"memory, {name}", done, repeats * len(PAPER_METHODS))
        peaks[name].append(in_own_process(stage_peaks, settings, name))
        plain, own = peaks[PLAIN][-1], peaks[name][-1]
        own["extra"] = own["answering"] - plain["answering"]
    is_told = any(peak["opening"] for of_one in peaks.values() for peak in of_one)
    shown = (*STAGES, "extra")
    rows: list[tuple[Cell, ...]] = [
        (name, *(summarize([peak[stage] / 1e6 for peak in peaks[name]]) for stage in shown))
        for name in PAPER_METHODS
    ]
    return Section(
        "memory",
        "peak resident memory of a process",
        "measured",
        columns_of("method", *(Column(stage, "MB", 1) for stage in shown)),
        rows if is_told else [],
        Chart("bars", "method", ("answering",)),
        [
            f"median (least to most) of {repeats} processes, Python and its libraries, and pages "
            "of the weights' files included; extra: over plain while answering"
            if is_told
            else "this system does not tell the peak of resident memory by stage",
        ],
    )


def stage_peaks(settings: Settings, method: str) -> dict[str, int]:
    """Bytes of resident memory at most in each stage, in this process; 0 where nobody tells."""
    if not reset_peak():  # what comes after would have the peak of what came before
        return dict.fromkeys(STAGES, 0)
    bench = Workbench.open(settings)
    peaks = {"opening": peak_resident_bytes()}
    reset_peak()
    for of_task in bench.prompts.values():
        for prompt in of_task:
            bench.session.rewind(0)
            bench.session.prefill(prompt[:-1])
    peaks["prefill"] = peak_resident_bytes()
    reset_peak()
    _answer_all(bench, method)
    return peaks | {"answering": peak_resident_bytes()}


def _answer_all(bench: Workbench, name: str) -> int:
    """Answer all prompts by a method; the number of tokens."""
    num_tokens = 0
    for prompts in bench.prompts.values():
        drafter = bench.drafter(name)
        num_tokens += sum(len(bench.answer(prompt, drafter).tokens) for prompt in prompts)
    return num_tokens


def measure_energy(bench: Workbench) -> Section:
    """Answer all prompts by the shown methods, in turns, with a meter running."""
    meter = EnergyMeter.find(root=bench.settings.power_root)
    rows: list[tuple[Cell, ...]] = []
    notes = [f"{NO_SOURCE} on this machine: nothing was measured"]
    if meter is not None:
        joules, num_tokens = _measure(bench, meter)
        rows = [_cells(name, joules, num_tokens) for name in PAPER_METHODS]
        notes = [
            f"source: {meter.source}, whatever else the machine does included; all prompts, median "
            f"(least to most) of {bench.settings.repeats} repeats in turns"
        ]
        if not any(joules.values()):
            notes.append("the runs were too short for the source to tell: more prompts are needed")
    return Section(
        "energy",
        "energy of all answers",
        "measured",
        columns_of("method", Column("joules", "J"), Column("per_token", "mJ"), "of_plain"),
        rows,
        Chart("bars", "method", ("per_token",)),
        notes,
    )


def _measure(bench: Workbench, meter: EnergyMeter) -> tuple[dict[str, list[float]], int]:
    """Joules of each method's repeats that were long enough to tell, and the tokens of a repeat."""
    joules: dict[str, list[float]] = {name: [] for name in PAPER_METHODS}
    num_tokens, repeats = 0, bench.settings.repeats
    bench.warm_up()
    for done, name in enumerate(in_turns(PAPER_METHODS, repeats)):
        bench.on_progress(f"energy, {name}", done, repeats * len(PAPER_METHODS))
        meter.start()
        num_tokens = _answer_all(bench, name)
        spent = meter.stop()
        if spent is not None:
            joules[name].append(spent)
    return joules, num_tokens


def _cells(name: str, joules: dict[str, list[float]], num_tokens: int) -> tuple[Cell, ...]:
    spent, plain = summarize(joules[name]), summarize(joules[PLAIN])
    of_plain = spent.median / plain.median if spent and plain and plain.median else None
    per_token = summarize([1e3 * value / num_tokens for value in joules[name]])
    return name, spent, per_token, of_plain
