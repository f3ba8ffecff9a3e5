"""Section `energy`: joules a token by each method, where the system tells any (Figure 11)."""

from coordgen_rs._core import PLAIN
from coordgen_rs.lab.bench.measuring.repeats import rotated, summarize
from coordgen_rs.lab.bench.measuring.workbench import SHOWN, Workbench
from coordgen_rs.lab.bench.reporting.section import Cell, Chart, Column, Section
from coordgen_rs.lab.energy.meter import EnergyMeter

COLUMNS = (
    Column("method"),
    Column("joules", "J"),
    Column("per_token", "mJ"),
    Column("of_plain"),
)

NO_SOURCE = "no energy source"


def measure_energy(bench: Workbench) -> Section:
    """Answer all prompts by the shown methods, in turns, with a meter running."""
    meter = EnergyMeter.find(root=bench.settings.power_root)
    rows: list[tuple[Cell, ...]] = []
    notes = [f"{NO_SOURCE} on this machine: nothing was measured"]
    if meter is not None:
        joules, num_tokens = _measure(bench, meter)
        rows = [_cells(name, joules, num_tokens) for name in SHOWN]
        notes = [
            f"source: {meter.source}, whatever else the machine does included; all prompts, median "
            f"(least to most) of {bench.settings.repeats} repeats in turns"
        ]
        if not any(joules.values()):
            notes.append("the runs were too short for the source to tell: more prompts are needed")
    chart = Chart("bars", "method", ("per_token",))
    return Section("energy", "energy of all answers", "measured", COLUMNS, rows, chart, notes)


def _measure(bench: Workbench, meter: EnergyMeter) -> tuple[dict[str, list[float]], int]:
    """Joules of each method's repeats that were long enough to tell, and the tokens of a repeat."""
    joules: dict[str, list[float]] = {name: [] for name in SHOWN}
    num_tokens = 0
    bench.warm_up()
    for repeat in range(bench.settings.repeats):
        for name in rotated(SHOWN, repeat):
            bench.on_progress(f"energy, {name}", repeat, bench.settings.repeats)
            meter.start()
            num_tokens = _answer_all(bench, name)
            spent = meter.stop()
            if spent is not None:
                joules[name].append(spent)
    return joules, num_tokens


def _answer_all(bench: Workbench, name: str) -> int:
    num_tokens = 0
    for prompts in bench.prompts.values():
        drafter = bench.drafter(name)
        num_tokens += sum(len(bench.answer(prompt, drafter).tokens) for prompt in prompts)
    return num_tokens


def _cells(name: str, joules: dict[str, list[float]], num_tokens: int) -> tuple[Cell, ...]:
    spent, plain = summarize(joules[name]), summarize(joules[PLAIN])
    of_plain = spent.median / plain.median if spent and plain and plain.median else None
    per_token = summarize([1e3 * value / num_tokens for value in joules[name]])
    return name, spent, per_token, of_plain
