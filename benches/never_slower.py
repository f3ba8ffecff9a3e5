"""Prints whether drafting is ever slower than plain decoding, beside what an oracle would choose.

    python benches/never_slower.py build/embedded-fp32 build/embedded-int8 --data prompts.jsonl

DATA holds one JSON object a line, with `task` and `prompt`; prompts of random tokens, with
random answers, are added. ONNX Runtime creates its threads once, so each bundle and number of
threads has a process of its own.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from coordgen_rs import Tokenizer, open_session
from coordgen_rs._core import draft_method
from coordgen_rs.bench.measuring.never_slower import ADVERSARIAL, measure, random_prompts
from coordgen_rs.cli.progress import progress
from coordgen_rs.text.tables import show_table

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


def figures_of(options: argparse.Namespace) -> list[dict[str, object]]:
    """Those of one bundle on one number of threads."""
    session = open_session(options.bundles[0], threads=options.threads[0])
    tokenizer = Tokenizer.of(session.bundle)
    prompts: dict[str, list[np.ndarray]] = {}
    for line in options.data.read_text("utf-8").splitlines():
        fields = json.loads(line)
        of_task = prompts.setdefault(fields["task"], [])
        if len(of_task) < options.limit:
            of_task.append(tokenizer.encode(fields["prompt"]))
    prompts[ADVERSARIAL] = random_prompts(session, options.limit)
    with progress() as on_progress:
        found = measure(
            session,
            prompts,
            options.sources,
            max_new_tokens=options.max_new_tokens,
            repeats=options.repeats,
            on_progress=on_progress,
        )
    where = {"weights": session.bundle.manifest.weights, "threads": session.threads}
    return [where | task.to_json() for task in found]


def figures_apart(
    options: argparse.Namespace, bundle: Path, threads: int
) -> list[dict[str, object]]:
    """`figures_of` in a process of its own."""
    command = [sys.executable, __file__, bundle, "--json", "--threads", threads]
    command += ["--data", options.data, "--limit", options.limit, "--repeats", options.repeats]
    command += ["--max-new-tokens", options.max_new_tokens, "--sources", *options.sources]
    done = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


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
    if len(options.bundles) == len(options.threads) == 1:
        rows = figures_of(options)
    else:
        pairs = [(bundle, number) for bundle in options.bundles for number in options.threads]
        rows = [row for pair in pairs for row in figures_apart(options, *pair)]
    if options.json:
        print(json.dumps(rows))
    else:
        show_table("speed, plain = 1", (*COLUMNS, *ORACLES), [cells(row) for row in rows])


if __name__ == "__main__":
    main()
