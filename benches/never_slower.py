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
from collections.abc import Iterator
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np

from coordgen_rs._core import draft_method
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.cli.terminal.text import parse_bytes
from support.oracles import ADVERSARIAL, measure_bundle
from support.script import (
    add_counts,
    add_json,
    own_processes,
    parser_of,
    reports_errors,
    run_script,
    tell,
)
from support.tables import show_rows

_WHERE = {name: f"{{{name}}}" for name in ("weights", "threads", "task")}
SPEEDS = _WHERE | {
    "plain tokens/s": "{plain_tokens_per_s:.0f}",
    "drafting": "x{measured:.2f}",
    "by costs": "x{modelled:.2f}",
    "best fixed": "x{fixed:.2f}",
    "at width": "{fixed_width}",
    "gap": lambda row: f"{100 * row['gap']:.1f} %",
    "best adaptive": "x{adaptive:.2f}",
}
MEASURED = "limit", "max_new_tokens", "repeats", "memory_budget"
LEAST = 0.97
"""A prompt on which drafting is slower than this is named."""
SPREAD = {"least": 0, "lowest tenth": 10, "median": 50, "highest tenth": 90, "most": 100}
"""Percentiles of prompts."""

Row = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = parser_of(__doc__)
    options.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    options.add_argument(
        "--data", type=Path, nargs="+", required=True, help="prompts, one object a line"
    )
    add_counts(
        options,
        limit=(12, "prompts a task"),
        threads=([1, 2], "compute threads"),
        repeats=(5, "answers to a prompt"),
        max_new_tokens=(64, "tokens of an answer"),
    )
    options.add_argument("--memory-budget", type=parse_bytes, metavar="SIZE", help="e.g. 4G")
    options.add_argument(
        "--sources", nargs="+", default=draft_method("auto").sources(), help="default %(default)s"
    )
    add_json(options)
    return options


def spreads(rows: list[Row]) -> Iterator[Row]:
    """Prompts of all given tasks together, then random ones."""
    for (weights, threads), of_bundle in groupby(rows, lambda r: (r["weights"], r["threads"])):
        tasks = list(of_bundle)
        for name, is_random in (("all tasks", False), (ADVERSARIAL, True)):
            chosen = [row for row in tasks if (row["task"] == ADVERSARIAL) is is_random]
            speedups = [prompt["speedup"] for row in chosen for prompt in row["prompts"]]
            if speedups:
                yield {
                    **{"weights": weights, "threads": threads, "task": name},
                    "prompts": len(speedups),
                    "percentiles": np.percentile(speedups, [*SPREAD.values()]),
                    "num_slower": sum(speedup < LEAST for speedup in speedups),
                }


def slower(rows: list[Row]) -> Iterator[Row]:
    """Prompts on which drafting is slower."""
    for row in rows:
        for prompt in row["prompts"]:
            if prompt["speedup"] < LEAST:
                lowest, highest = min(prompt["speedups"]), max(prompt["speedups"])
                yield row | prompt | {"lowest": lowest, "highest": highest}


def show(rows: list[Row]) -> None:
    """Print the tables; the third only where a prompt is slower."""
    show_rows("speed, plain = 1", rows, SPEEDS, num_words=3)
    percentiles = {name: f"x{{percentiles[{at}]:.2f}}" for at, name in enumerate(SPREAD)}
    columns = _WHERE | {"prompts": "{prompts}"} | percentiles | {f"below x{LEAST}": "{num_slower}"}
    show_rows("drafting on single prompts, plain = 1", spreads(rows), columns, num_words=3)
    if named := [*slower(rows)]:
        columns = _WHERE | {
            "prompt": "{number}",
            "its tokens": "{prompt_len}",
            "new tokens": "{answer_len}",
            "median": "x{speedup:.2f}",
            "lowest..highest": "x{lowest:.2f}..x{highest:.2f}",
        }
        show_rows(f"prompts on which drafting is below x{LEAST}", named, columns, num_words=3)


@reports_errors
def main(arguments: list[str] | None = None) -> None:
    """Print the tables, or the JSON; 2 where a bundle or prompts cannot be used."""
    options = parser().parse_args(arguments)
    asked = {name: getattr(options, name) for name in MEASURED}
    pairs = list(product(options.bundles, options.threads))
    rows = []
    with own_processes() as processes, progress() as on_progress:
        for done, (bundle, threads) in enumerate(pairs):
            on_progress(f"{bundle.name}, {threads} threads", done, len(pairs))
            where = bundle, options.data, options.sources
            rows += processes.submit(measure_bundle, *where, threads=threads, **asked).result()
    tell(rows, options.json, show)


if __name__ == "__main__":
    run_script(main)
