"""Prints what steps of each width and a prompt cost in some bundles, the first being 1.

    python benches/widths.py build/smollm2-int4 build/smollm2-w8a8

Each number of threads has a process of its own, as ONNX Runtime creates its threads once. Ratios
are those of medians, and of the shortest times, which should agree on a machine that does nothing
else. `benches/qwen_shape.py` makes bundles of another size.
"""

import argparse
import json
from pathlib import Path
from statistics import median

from coordgen_rs.tools.bench.measuring.widths import measure_widths
from coordgen_rs.tools.bench.script import run_script
from coordgen_rs.tools.own_process import in_own_process
from coordgen_rs.tools.tables import show_table


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


def cells(row):
    """One line of the table."""
    times = [f"{row[name]:.2f}" for name in ("median_ms", "best_ms")]
    ratios = [f"x{row[name]:.2f}" for name in ("median_ratio", "best_ratio")]
    return [str(row["threads"]), row["what"], row["bundle"], *times, *ratios]


def main():
    """Print the table, or the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompt", type=int, default=512, metavar="TOKENS")
    parser.add_argument(
        "--seconds", type=float, default=30, help="of each process, default %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    asked = {"prompt_tokens": options.prompt, "seconds": options.seconds}
    names = [bundle.name for bundle in options.bundles]
    rows = []
    for threads in options.threads:
        times = in_own_process(measure_widths, options.bundles, threads=threads, **asked)
        rows += rows_of(times, names, threads)
    if options.json:
        print(json.dumps(rows))
    else:
        columns = ("threads", "what", "bundle", "median, ms", "best, ms", "medians", "best")
        show_table(f"times, {names[0]} = 1", columns, [cells(row) for row in rows], num_words=3)


if __name__ == "__main__":
    run_script(main)
