"""Section `draft-length`: time of a step by its rows, and how long drafts are (Figure 6)."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import numpy as np

from coordgen_rs._core import Drafter, StepInputs
from coordgen_rs.drafting.drafter import make_drafter
from coordgen_rs.lab.bench.measuring.clocks import ClockedDrafter, ClockedHead
from coordgen_rs.lab.bench.measuring.repeats import in_turns, summarize
from coordgen_rs.lab.bench.measuring.workbench import Workbench
from coordgen_rs.lab.bench.reporting.section import Cell, Chart, Column, Section
from coordgen_rs.runtime.ort_session import OrtSession

DRAFTING = ("prompt-lookup", "coordgen")
"""Methods whose drafts are counted: the existing one of the paper's histogram, and ours."""

COLUMNS = (
    Column("rows", digits=0),
    Column("step", "ms", 3),
    Column("per_row", "ms", 3),
    Column("cost"),
    *(Column(f"drafts_{name.replace('-', '_')}", "%", 1) for name in DRAFTING),
)

_STEPS_A_REPEAT = 10


def measure_draft_length(bench: Workbench) -> Section:
    """Time steps of all widths in turns; draft on the prompts, if any, as if rows cost nothing."""
    session = bench.session
    num_steps = _STEPS_A_REPEAT * bench.settings.repeats
    past_len = min(bench.settings.prompt_len, session.capacity // 2)
    times_ms = time_steps(session, past_len, num_steps)
    shares = {name: _shares(bench, name) for name in DRAFTING}
    medians = {rows: float(np.median(times)) for rows, times in times_ms.items()}
    narrowest = medians[session.widths[0]]
    rows: list[tuple[Cell, ...]] = [
        (
            width,
            summarize(times_ms[width]),
            medians[width] / width,
            medians[width] / narrowest,
            *(shares[name][index] for name in DRAFTING),
        )
        for index, width in enumerate(session.widths)
    ]
    return Section(
        "draft-length",
        f"time of a step behind {past_len} tokens",
        bench.how,
        COLUMNS,
        rows,
        Chart("lines", "rows", ("step", "per_row")),
        [
            f"median (least to most) of {num_steps} steps of each width, in turns",
            f"per_row: the step's time over its rows; cost: over that of {session.widths[0]} rows",
            "drafts: share of a method's steps that need this width, on the prompts, as if rows "
            "cost nothing",
        ],
    )


def time_steps(session: OrtSession, past_len: int, num_steps: int) -> dict[int, list[float]]:
    """Milliseconds of steps of each width in use, in turns, behind so many random tokens."""
    tokens = np.random.default_rng(0).integers(
        session.vocab_size, size=past_len + session.widths[-1], dtype=np.uint32
    )
    session.rewind(0)
    session.prefill(tokens[:past_len])
    times_ms: dict[int, list[float]] = {inputs.rows: [] for inputs in session.step_inputs}
    for inputs in session.step_inputs:
        _step_ms(session, inputs, tokens[past_len:])
    for inputs in in_turns(session.step_inputs, num_steps):
        times_ms[inputs.rows].append(_step_ms(session, inputs, tokens[past_len:]))
    session.rewind(0)
    return times_ms


def _step_ms(session: OrtSession, inputs: StepInputs, tokens: np.ndarray) -> float:
    inputs.fill_chain(tokens[: inputs.rows], session.length)
    start = time.perf_counter()
    session.step(inputs)
    return 1e3 * (time.perf_counter() - start)


def _shares(bench: Workbench, name: str) -> Sequence[float | None]:
    """Percent of the steps whose tree, root included, fits into a width and no narrower one."""
    widths, counts = bench.session.widths, Counter[int]()
    for prompts in bench.prompts.values():
        drafter = make_drafter(bench.session, name, earlier_requests=True, free_rows=True)
        if isinstance(drafter, Drafter):
            clocked = ClockedDrafter(drafter, ClockedHead(bench.session.device))
            for prompt in prompts:
                bench.answer(prompt, clocked)
            for draft_len, count in clocked.draft_lens.items():
                counts[min(bisect_left(widths, draft_len + 1), len(widths) - 1)] += count
    total = counts.total()
    return [100 * counts[index] / total if total else None for index in range(len(widths))]
