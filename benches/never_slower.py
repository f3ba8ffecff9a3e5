"""Prints whether drafting is ever slower than plain decoding, beside what an oracle would choose.

    python benches/never_slower.py build/embedded-fp32 build/embedded-int8 --data prompts.jsonl
    python benches/never_slower.py SmolLM2-135M-Instruct.Q4_0.gguf --data benches/prompts/*.jsonl

    python benches/never_slower.py mixture.gguf --memory-budget 1500M --data benches/prompts/*.jsonl

A BUNDLE may be a GGUF file, which is run as it is. `benches/peers/shape_file.py` writes one of a
mixture's shape, which within a budget reads its experts from disk. DATA holds one JSON object a
line, with `task` and `prompt` or `messages`; prompts of random tokens, with random answers, are
added. Each prompt is answered plainly and with drafts in turns, and a speedup is taken within each
pair of answers: a prompt's is the median. ONNX Runtime creates its threads once, so each bundle and
number of threads has a process of its own.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np

from coordgen_rs._core import draft_method
from coordgen_rs.cli.terminal.formatting import parse_bytes
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.errors import CoordgenError
from coordgen_rs.lab.tables import show_table
from support.oracles import ADVERSARIAL, measure_bundle
from support.script import own_processes, run_script

COLUMNS = ("weights", "threads", "task", "plain tokens/s", "drafting", "by costs", "best fixed")
ORACLES = ("at width", "gap", "best adaptive")
MEASURED = "limit", "max_new_tokens", "repeats", "memory_budget"
LEAST = 0.97
"""A prompt on which drafting is slower than this is named."""
SPREAD = {"least": 0, "lowest tenth": 10, "median": 50, "highest tenth": 90, "most": 100}
"""Percentiles of prompts."""

Row = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    options.add_argument(
        "--data", type=Path, nargs="+", required=True, help="prompts, one object a line"
    )
    options.add_argument(
        "--limit", type=int, default=12, help="prompts a task, default %(default)s"
    )
    options.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options.add_argument("--memory-budget", type=parse_bytes, metavar="SIZE", help="e.g. 4G")
    options.add_argument("--repeats", type=int, default=5, help="default %(default)s")
    options.add_argument("--max-new-tokens", type=int, default=64, help="default %(default)s")
    options.add_argument(
        "--sources", nargs="+", default=draft_method("auto").sources(), help="default %(default)s"
    )
    options.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return options


def cells(row: Row) -> list[str]:
    """A task's line of the first table."""
    return [
        *(str(row[name]) for name in ("weights", "threads", "task")),
        f"{row['plain_tokens_per_s']:.0f}",
        *(f"x{row[name]:.2f}" for name in ("measured", "modelled", "fixed")),
        str(row["fixed_width"]),
        f"{100 * row['gap']:.1f} %",
        f"x{row['adaptive']:.2f}",
    ]


def spread_cells(rows: list[Row]) -> Iterator[list[str]]:
    """The lines of the second table: all tasks of given prompts together, then random ones."""
    for (weights, threads), of_bundle in groupby(rows, lambda r: (r["weights"], r["threads"])):
        tasks = list(of_bundle)
        for name, is_random in (("all tasks", False), (ADVERSARIAL, True)):
            chosen = [row for row in tasks if (row["task"] == ADVERSARIAL) is is_random]
            speedups = [prompt["speedup"] for row in chosen for prompt in row["prompts"]]
            if speedups:
                percentiles = np.percentile(speedups, [*SPREAD.values()])
                num_slower = sum(speedup < LEAST for speedup in speedups)
                yield [
                    *(weights, str(threads), name, str(len(speedups))),
                    *(f"x{speedup:.2f}" for speedup in percentiles),
                    str(num_slower),
                ]


def slower_cells(rows: list[Row]) -> Iterator[list[str]]:
    """The lines of the third table: prompts on which drafting is slower."""
    for row in rows:
        for prompt in row["prompts"]:
            if prompt["speedup"] < LEAST:
                lengths = (str(prompt[name]) for name in ("number", "prompt_len", "answer_len"))
                lowest, highest = min(prompt["speedups"]), max(prompt["speedups"])
                yield [
                    *(str(row[name]) for name in ("weights", "threads", "task")),
                    *lengths,
                    f"x{prompt['speedup']:.2f}",
                    f"x{lowest:.2f}..x{highest:.2f}",
                ]


def show(rows: list[Row]) -> None:
    """Print the tables; the third only where a prompt is slower."""
    show_table("speed, plain = 1", (*COLUMNS, *ORACLES), [cells(row) for row in rows], num_words=3)
    columns = "weights", "threads", "task", "prompts", *SPREAD, f"below x{LEAST}"
    show_table("drafting on single prompts, plain = 1", columns, [*spread_cells(rows)], num_words=3)
    if slower := [*slower_cells(rows)]:
        columns = "weights", "threads", "task", "prompt", "its tokens", "new tokens", "median"
        title = f"prompts on which drafting is below x{LEAST}"
        show_table(title, (*columns, "lowest..highest"), slower, num_words=3)


def main() -> int:
    """Print the tables, or the JSON; 2 where a bundle or prompts cannot be used."""
    options = parser().parse_args()
    asked = {name: getattr(options, name) for name in MEASURED}
    pairs = list(product(options.bundles, options.threads))
    rows = []
    try:
        with own_processes() as processes, progress() as on_progress:
            for done, (bundle, threads) in enumerate(pairs):
                on_progress(f"{bundle.name}, {threads} threads", done, len(pairs))
                where = bundle, options.data, options.sources
                rows += processes.submit(measure_bundle, *where, threads=threads, **asked).result()
    except CoordgenError as error:
        print(f"never_slower.py: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(rows))
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    run_script(main)
