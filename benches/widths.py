"""Prints what steps of each width and a prompt cost in some bundles, the first being 1.

    python benches/widths.py build/smollm2-int4 build/smollm2-int8

Each number of threads has a process of its own, as ONNX Runtime creates its threads once. Ratios
are those of medians, and of the shortest times, which should agree on a machine that does nothing
else. `benches/qwen_shape.py` makes bundles of another size.
"""

import time
from pathlib import Path
from statistics import median

import numpy as np

from coordgen_rs.loading.directory import ProviderChoice, open_bundle
from coordgen_rs.runtime.caches.kv_cache import KV_FORMS
from coordgen_rs.runtime.ort_session import OrtSession
from support.script import add_counts, add_json, own_processes, parser_of, run_script, tell
from support.tables import show_rows

CONTEXT = 64
"""Tokens before a step."""


def measure_widths(bundles, threads, prompt_tokens, seconds):
    """Run a step of each width and a prompt, each by all bundles in turns.

    Another program that takes the processor for a while slows all bundles alike. Each width and
    the prompt alike are measured for `seconds` in all, three times at least. Returns for each
    bundle the seconds of all its runs by what ran: `4 rows`, `prompt of 512`.
    """
    sessions = [opened(path, threads) for path in bundles]
    return times_in_turns([runs_of(it, prompt_tokens) for it in sessions], threads, seconds)


def times_in_turns(runs, threads, seconds):
    """Run what all have, by name, in turns; the seconds of each run, as in `measure_widths`."""
    names = [name for name in runs[0] if all(name in run for run in runs)]
    times = [{name: [] for name in names} for _ in runs]
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


def opened(path, threads, kv_cache=KV_FORMS[0]):
    """A session of a bundle, whose cache has a form."""
    device = ProviderChoice().device(open_bundle(path), kv_cache=kv_cache)
    return OrtSession(device, threads=threads)


def step(session, width):
    """What runs a step of a chain."""
    inputs = next(inputs for inputs in session.step_inputs if inputs.rows == width)
    chain = np.arange(1, width + 1, dtype=np.uint32)

    def run():
        inputs.fill_chain(chain, session.length)
        session.step(inputs)

    return run


def reading(session, num_tokens):
    """What reads a prompt of random tokens."""
    prompt = np.random.default_rng(0).integers(session.vocab_size, size=num_tokens)
    prompt = prompt.astype(np.uint32)

    def run():
        session.rewind(0)
        session.prefill(prompt)

    return run


def runs_of(session, prompt_tokens):
    """What is measured, by name, in that order: behind a prompt there are more tokens."""
    reading(session, CONTEXT)()
    names = {width: "1 row" if width == 1 else f"{width} rows" for width in session.widths}
    steps = {name: step(session, width) for width, name in names.items()}
    return steps | {f"prompt of {prompt_tokens}": reading(session, prompt_tokens)}


def rows_of(times, names, threads):
    """One line for each thing that ran: its times, then its ratios to the first bundle's."""
    for what in times[0]:
        medians = [1000 * median(taken[what]) for taken in times]
        bests = [1000 * min(taken[what]) for taken in times]
        for index, name in enumerate(names):
            yield {
                "threads": threads,
                "what": what,
                "bundle": name,
                "median_ms": medians[index],
                "best_ms": bests[index],
                "median_ratio": medians[index] / medians[0],
                "best_ratio": bests[index] / bests[0],
            }


COLUMNS = {
    "threads": "{threads}",
    "what": "{what}",
    "bundle": "{bundle}",
    "median, ms": "{median_ms:.2f}",
    "best, ms": "{best_ms:.2f}",
    "medians": "x{median_ratio:.2f}",
    "best": "x{best_ratio:.2f}",
}


def main():
    """Print the table, or the JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    add_counts(parser, threads=([1, 2], "compute threads"), prompt=(512, "tokens of the prompt"))
    parser.add_argument(
        "--seconds", type=float, default=30, help="of each process, default %(default)s"
    )
    add_json(parser)
    options = parser.parse_args()
    names = [bundle.name for bundle in options.bundles]
    rows = []
    with own_processes() as processes:
        for threads in options.threads:
            asked = options.bundles, threads, options.prompt, options.seconds
            times = processes.submit(measure_widths, *asked).result()
            rows += rows_of(times, names, threads)
    title = f"times, {names[0]} = 1"
    tell(rows, options.json, lambda rows: show_rows(title, rows, COLUMNS, num_words=3))


if __name__ == "__main__":
    run_script(main)
