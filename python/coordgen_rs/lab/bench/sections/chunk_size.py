"""Section `chunk-size`: prefill and decode under one fixed number of rows (CoordGen, Figure 5)."""

import time

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.lab.bench.measuring.repeats import in_turns, summarize
from coordgen_rs.lab.bench.measuring.workbench import Workbench
from coordgen_rs.lab.bench.reporting.section import Cell, Chart, Column, Section
from coordgen_rs.lab.bench.sections.draft_length import time_steps
from coordgen_rs.runtime.ort_session import OrtSession

TOKENS_PER_STEP = 4.2
"""Tokens per step in the paper's Figure 5."""

COLUMNS = (
    Column("rows", digits=0),
    Column("prefill", "ms/token", 3),
    Column("step", "ms", 3),
    Column("decode", "ms/token", 3),
)


def measure_chunk_size(bench: Workbench) -> Section:
    """Read one prompt, and run steps, under every width that the bundle has."""
    session, repeats = bench.session, bench.settings.repeats
    widest = session.bundle.manifest.prefill_rows
    num_tokens = min(bench.settings.prompt_len, session.capacity - session.widths[-1])
    tokens = np.random.default_rng(0).integers(session.vocab_size, size=num_tokens, dtype=np.uint32)
    widths = sorted({*session.widths, widest})
    prefill_ms = _time_prefills(session, tokens, widths, repeats)
    past_len = min(num_tokens, session.capacity // 2)
    step_ms = time_steps(session, past_len, repeats) | {
        widest: _time_wide_steps(session, tokens, widest, repeats)
    }
    rows: list[tuple[Cell, ...]] = [
        (
            width,
            summarize([ms / num_tokens for ms in prefill_ms[width]]),
            summarize(step_ms[width]),
            summarize([ms / min(TOKENS_PER_STEP, width) for ms in step_ms[width]]),
        )
        for width in widths
        if step_ms[width]
    ]
    return Section(
        "chunk-size",
        f"{num_tokens} tokens read, and steps run, under one number of rows",
        bench.how,
        COLUMNS,
        rows,
        Chart("lines", "rows", ("prefill", "decode")),
        [
            f"median (least to most) of {repeats}, in turns; the widths are those of the bundle",
            f"decode: derived, a step gives out {TOKENS_PER_STEP} tokens as in the paper's figure, "
            "or as many as it has rows",
            f"the step of {widest} rows is a chunk of the prefill graph with the head of all its "
            "rows; decoding never takes it",
        ],
    )


def _time_prefills(
    session: OrtSession, tokens: NDArray[np.uint32], widths: list[int], repeats: int
) -> dict[int, list[float]]:
    """Milliseconds of the whole prompt in chunks of each width, in turns; after a first round."""
    chosen, costs = session.widths, session.step_costs
    times_ms: dict[int, list[float]] = {width: [] for width in widths}
    try:
        for width in in_turns(widths, 1 + repeats):
            is_prefill = width not in chosen
            session.select(chosen if is_prefill else [width])
            session.rewind(0)
            start = time.perf_counter()
            session.prefill(tokens, "prefill" if is_prefill else "decode")
            times_ms[width].append(1e3 * (time.perf_counter() - start))
    finally:
        session.rewind(0)
        session.select(chosen, costs)
    return {width: times[1:] for width, times in times_ms.items()}


def _time_wide_steps(
    session: OrtSession, tokens: NDArray[np.uint32], rows: int, repeats: int
) -> list[float]:
    """Milliseconds of a full chunk under the prefill graph, logits of all rows included."""
    times_ms = []
    chunk = np.resize(tokens, rows)
    for _ in range(1 + repeats if rows <= session.capacity else 0):
        session.rewind(0)
        start = time.perf_counter()
        session.prefill(chunk, "prefill", on_logits=lambda logits: None)
        times_ms.append(1e3 * (time.perf_counter() - start))
    session.rewind(0)
    return times_ms[1:]
