"""Sections on rows: `draft-length` (Figure 6), time of a step, and `chunk-size` (Figure 5).

In: a `Workbench`, with or without prompts. Out: a row for each number of rows that the bundle has.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs
from coordgen_rs.generation.drafting.drafter import make_drafter
from coordgen_rs.lab.bench.latency import ClockedDrafter, ClockedHead
from coordgen_rs.lab.bench.workbench import Workbench
from coordgen_rs.lab.tables import Chart, Column, Section, columns_of, in_turns, summarize
from coordgen_rs.runtime.ort_session import OrtSession

DRAFTING = ("prompt-lookup", "coordgen")
"""Methods whose drafts are counted: the existing one of the paper's histogram, and the paper's."""

TOKENS_PER_STEP = 4.2
"""Tokens per step in the paper's Figure 5."""

_STEPS_A_REPEAT = 10


def measure_draft_length(bench: Workbench) -> Section:
    """Time steps of all widths in turns; draft on the prompts, if any, as if rows cost nothing."""
    session = bench.session
    num_steps = _STEPS_A_REPEAT * bench.settings.repeats
    past_len = min(bench.settings.prompt_len, session.capacity // 2)
    times_ms = time_steps(session, past_len, num_steps)
    shares = [_shares(bench, name) for name in DRAFTING]
    medians = {rows: float(np.median(times)) for rows, times in times_ms.items()}
    narrowest = medians[session.widths[0]]
    return Section(
        "draft-length",
        f"time of a step behind {past_len} tokens",
        bench.how,
        columns_of(
            *(
                Column("rows", digits=0),
                Column("step", "ms", 3),
                Column("per_row", "ms", 3),
                "cost",
            ),
            *(Column(f"drafts_{name.replace('-', '_')}", "%", 1) for name in DRAFTING),
        ),
        [
            (
                width,
                summarize(times_ms[width]),
                medians[width] / width,
                medians[width] / narrowest,
                *(of_one[index] for of_one in shares),
            )
            for index, width in enumerate(session.widths)
        ],
        Chart("lines", "rows", ("step", "per_row")),
        [
            f"median (least to most) of {num_steps} steps of each width, in turns",
            f"per_row: the step's time over its rows; cost: over that of {session.widths[0]} rows",
            "drafts: share of a method's steps that need this width, on the prompts, as if rows "
            "cost nothing",
        ],
    )


def _shares(bench: Workbench, name: str) -> Sequence[float | None]:
    """Percent of the steps whose tree, root included, fits into a width and no narrower one."""
    widths, counts = bench.session.widths, Counter[int]()
    for prompts in bench.prompts.values():
        drafter = make_drafter(bench.session, name, earlier_requests=True, free_rows=True)
        clocked = ClockedDrafter(drafter, ClockedHead(bench.session.device))
        for prompt in prompts:
            bench.answer(prompt, clocked)
        for draft_len, count in clocked.draft_lens.items():
            counts[min(bisect_left(widths, draft_len + 1), len(widths) - 1)] += count
    total = counts.total()
    return [100 * counts[index] / total if total else None for index in range(len(widths))]


def measure_chunk_size(bench: Workbench) -> Section:
    """Read one prompt, and run steps, under every width that the bundle has."""
    session, repeats = bench.session, bench.settings.repeats
    widest = session.bundle.manifest.prefill_rows
    num_tokens = min(bench.settings.prompt_len, session.capacity - session.widths[-1])
    tokens = _random_tokens(session, num_tokens)
    widths = sorted({*session.widths, widest})
    prefill_ms = _time_prefills(session, tokens, widths, repeats)
    past_len = min(num_tokens, session.capacity // 2)
    step_ms = time_steps(session, past_len, repeats)
    step_ms[widest] = _time_wide_steps(session, tokens, widest, repeats)
    return Section(
        "chunk-size",
        f"{num_tokens} tokens read, and steps run, under one number of rows",
        bench.how,
        (
            *(Column("rows", digits=0), Column("prefill", "ms/token", 3)),
            *(Column("step", "ms", 3), Column("decode", "ms/token", 3)),
        ),
        [
            (
                width,
                summarize([ms / num_tokens for ms in prefill_ms[width]]),
                summarize(step_ms[width]),
                summarize([ms / min(TOKENS_PER_STEP, width) for ms in step_ms[width]]),
            )
            for width in widths
            if step_ms[width]
        ],
        Chart("lines", "rows", ("prefill", "decode")),
        [
            f"median (least to most) of {repeats}, in turns; the widths are those of the bundle",
            f"decode: derived, a step gives out {TOKENS_PER_STEP} tokens as in the paper's figure, "
            "or as many as it has rows",
            f"the step of {widest} rows is a chunk of the prefill graph with the head of all its "
            "rows; decoding never takes it",
        ],
    )


def _random_tokens(session: OrtSession, num: int) -> NDArray[np.uint32]:
    return np.random.default_rng(0).integers(session.vocab_size, size=num, dtype=np.uint32)


def time_steps(session: OrtSession, past_len: int, num_steps: int) -> dict[int, list[float]]:
    """Milliseconds of steps of each width in use, in turns, behind so many random tokens."""
    tokens = _random_tokens(session, past_len + session.widths[-1])

    def run(inputs: StepInputs) -> float:
        inputs.fill_chain(tokens[past_len : past_len + inputs.rows], session.length)
        start = time.perf_counter()
        session.step(inputs)
        return 1e3 * (time.perf_counter() - start)

    session.rewind(0)
    session.prefill(tokens[:past_len])
    times_ms: dict[int, list[float]] = {inputs.rows: [] for inputs in session.step_inputs}
    for inputs in session.step_inputs:
        run(inputs)
    for inputs in in_turns(session.step_inputs, num_steps):
        times_ms[inputs.rows].append(run(inputs))
    session.rewind(0)
    return times_ms


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
