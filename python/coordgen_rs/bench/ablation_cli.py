"""The command `coordgen bench`: its options, and what it prints."""

import argparse
import json
import sys
from pathlib import Path

from coordgen_rs.bench.ablation import Ablation, ablate, read_prompts
from coordgen_rs.errors import OptionError
from coordgen_rs.progress import progress
from coordgen_rs.self_test import open_session

_PIPED_WIDTH = 200
ABOUT = "measure what each source of drafts adds, with a real model"
EXAMPLES = """\
DATA holds one JSON object a line, with `task` and `prompt`. Every answer is compared with plain
decoding. Steps are as wide as --width, whatever a row costs on this machine.

examples:
  coordgen bench bundle prompts.jsonl --ablation
  coordgen bench bundle prompts.jsonl --ablation --limit 20 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("data", type=Path, metavar="DATA", help="prompts, one JSON object a line")
    parser.add_argument(
        "--ablation",
        action="store_true",
        required=True,
        help="prompt lookup, automaton and history, each with calibration and reuse on and off",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N of each task")
    parser.add_argument("--max-new-tokens", type=int, default=96, metavar="N")
    parser.add_argument("--width", type=int, metavar="N", help="rows of a step, at most")
    parser.add_argument("--threads", type=int, metavar="N", help="default: one a core")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(options: argparse.Namespace) -> int:
    """Run the ablation and print the table."""
    if not options.json:
        _need_rich()
    prompts = read_prompts(options.data, limit=options.limit)
    with progress() as on_progress:
        session = open_session(
            options.bundle, threads=options.threads, width=options.width, on_progress=on_progress
        )
        ablation = ablate(
            session, prompts, max_new_tokens=options.max_new_tokens, on_progress=on_progress
        )
    if options.json:
        print(json.dumps(ablation.to_json()))
    else:
        show(ablation)
    return 0


def show(ablation: Ablation) -> None:
    """Print the table on stdout, gains over the base in brackets as the paper does."""
    from rich.console import Console
    from rich.table import Table

    tasks = list(ablation.num_prompts)
    table = Table(title=f"tokens_per_step, {ablation.rows} rows a step")
    table.add_column("drafts from", no_wrap=True)
    for task in tasks:
        table.add_column(task, no_wrap=True)
    for row, figures in ablation.tokens_per_step.items():
        gains = [f" (x{ablation.gain(row, task):.2f})" if row.ours else "" for task in tasks]
        cells = [f"{figures[task]:.2f}{gain}" for task, gain in zip(tasks, gains, strict=True)]
        table.add_row(" + ".join(["", *row.ours]) or row.base, *cells)
    # A pipe has no width of its own: the table is printed whole.
    Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH).print(table)


def _need_rich() -> None:
    try:
        import rich  # noqa: F401
    except ModuleNotFoundError as error:
        raise OptionError("the table needs rich: pip install rich, or take --json") from error
