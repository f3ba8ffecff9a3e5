"""`coordgen bench --ablation`: its options, and what it prints."""

import argparse
import json
import sys
from pathlib import Path

from coordgen_rs import provider_cli
from coordgen_rs.bench.ablation import Ablation, ablate, read_prompts
from coordgen_rs.errors import OptionError
from coordgen_rs.progress import progress
from coordgen_rs.self_test import open_session

_PIPED_WIDTH = 200
NOTE = """\
DATA holds one JSON object a line, with `task` and `prompt`. Every answer is compared with plain
decoding. Steps are as wide as --width, whatever a row costs on this machine."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `--ablation`, which `--methods` has too."""
    group = parser.add_argument_group("of --ablation and --methods")
    group.add_argument(
        "data", type=Path, nargs="?", metavar="DATA", help="prompts, one JSON object a line"
    )
    group.add_argument("--limit", type=int, metavar="N", help="only the first N of each task")
    group.add_argument("--width", type=int, metavar="N", help="rows of a step, at most")


def run(options: argparse.Namespace) -> int:
    """Run the ablation and print the table.

    Raises:
        OptionError: No file of prompts was given.
    """
    if options.data is None:
        raise OptionError("--ablation needs DATA, a file of prompts")
    if not options.json:
        _need_rich()
    prompts = read_prompts(options.data, limit=options.limit)
    with progress() as on_progress:
        session = open_session(
            options.bundle,
            threads=options.threads,
            width=options.width,
            provider=provider_cli.chosen(options),
            on_progress=on_progress,
        )
        ablation = ablate(
            session, prompts, max_new_tokens=options.max_new_tokens or 96, on_progress=on_progress
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
