"""Time of a step of each width, and of a prompt, for several bundles in turns.

In: bundles. Out: seconds of every run. Another program that takes the processor for a while slows
all bundles alike, as they take turns; ratios of medians hold on a machine that is somewhat busy.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from coordgen_rs.opening.directory import open_bundle
from coordgen_rs.opening.provider import ProviderChoice
from coordgen_rs.target.ort_session import OrtSession

_CONTEXT = 64
"""Tokens before a step."""


def measure_widths(
    bundles: Sequence[Path], *, threads: int, prompt_tokens: int, seconds: float
) -> list[dict[str, list[float]]]:
    """Run a step of each width and a prompt, each by all bundles in turns.

    Args:
        bundles: What is measured are the widths that all have.
        threads: Compute threads of this process.
        prompt_tokens: Length of the prompt.
        seconds: How long to measure, each width and the prompt alike, three times at least.

    Returns:
        For each bundle, seconds of all its runs by what ran: `4 rows`, `prompt of 512`.

    Raises:
        BundleError: A bundle cannot be opened.
        OptionError: The number of threads cannot be set.
    """
    sessions = [_session(path, threads) for path in bundles]
    runs = [_runs(session, prompt_tokens) for session in sessions]
    names = [name for name in runs[0] if all(name in run for run in runs)]
    times: list[dict[str, list[float]]] = [{name: [] for name in names} for _ in runs]
    # Time that other programs take is not this thread's, so one thread's own time is exact.
    clock = time.thread_time if threads == 1 else time.perf_counter
    for name in names:
        for run in runs:
            run[name]()
        begin = time.perf_counter()
        while len(times[0][name]) < 3 or time.perf_counter() - begin < seconds / len(names):
            for run, taken in zip(runs, times, strict=True):
                start = clock()
                run[name]()
                taken[name].append(clock() - start)
    return times


def _session(path: Path, threads: int) -> OrtSession:
    return OrtSession(ProviderChoice().device(open_bundle(path)), threads=threads)


def _runs(session: OrtSession, prompt_tokens: int) -> dict[str, Callable[[], None]]:
    """What is measured, by name; each leaves the same number of tokens committed."""
    token_ids = np.random.default_rng(0).integers(session.vocab_size, size=prompt_tokens)
    prompt = token_ids.astype(np.uint32)

    def step(width: int) -> Callable[[], None]:
        inputs = next(inputs for inputs in session.step_inputs if inputs.rows == width)

        def run() -> None:
            inputs.fill_chain(prompt[:width], session.length)
            session.step(inputs)

        return run

    def read_prompt() -> None:
        session.rewind(0)
        session.prefill(prompt)
        session.rewind(_CONTEXT)

    read_prompt()
    names = {width: "1 row" if width == 1 else f"{width} rows" for width in session.widths}
    return {name: step(width) for width, name in names.items()} | {
        f"prompt of {prompt_tokens}": read_prompt
    }
