"""Prints whether drafting is ever slower than plain decoding, beside what an oracle would choose.

    python benches/never_slower.py build/embedded-fp32 build/embedded-int8 --data prompts.jsonl

DATA holds one JSON object a line, with `task` and `prompt`; prompts of random tokens, with
random answers, are added. ONNX Runtime creates its threads once, so each bundle and number of
threads has a process of its own.
"""

import argparse
import json
from itertools import product
from pathlib import Path

from coordgen_rs._core import draft_method
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.tools.tables import show_table
from support.oracles import measure_bundle
from support.script import own_processes, run_script

COLUMNS = ("weights", "threads", "task", "plain tokens/s", "drafting", "by costs", "best fixed")
ORACLES = ("at width", "gap", "best adaptive")


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    options.add_argument("--data", type=Path, required=True, help="prompts, one object a line")
    options.add_argument(
        "--limit", type=int, default=12, help="prompts a task, default %(default)s"
    )
    options.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options.add_argument("--repeats", type=int, default=3, help="default %(default)s")
    options.add_argument("--max-new-tokens", type=int, default=64, help="default %(default)s")
    options.add_argument(
        "--sources", nargs="+", default=draft_method("auto").sources(), help="default %(default)s"
    )
    options.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return options


def cells(row: dict[str, object]) -> list[str]:
    """One line of the table."""
    return [
        *(str(row[name]) for name in ("weights", "threads", "task")),
        f"{row['plain_tokens_per_s']:.0f}",
        *(f"x{row[name]:.2f}" for name in ("measured", "modelled", "fixed")),
        str(row["fixed_width"]),
        f"{100 * row['gap']:.1f} %",
        f"x{row['adaptive']:.2f}",
    ]


def main() -> None:
    """Print the table, or the JSON."""
    options = parser().parse_args()
    asked = {name: getattr(options, name) for name in ("limit", "max_new_tokens", "repeats")}
    pairs = list(product(options.bundles, options.threads))
    rows = []
    with own_processes() as processes, progress() as on_progress:
        for done, (bundle, threads) in enumerate(pairs):
            on_progress(f"{bundle.name}, {threads} threads", done, len(pairs))
            where = bundle, options.data, options.sources
            rows += processes.submit(measure_bundle, *where, threads=threads, **asked).result()
    if options.json:
        print(json.dumps(rows))
    else:
        show_table("speed, plain = 1", (*COLUMNS, *ORACLES), [cells(row) for row in rows])


if __name__ == "__main__":
    run_script(main)
