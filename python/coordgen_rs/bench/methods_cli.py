"""`coordgen bench --methods`: its own options, and the table that it prints."""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from coordgen_rs import provider_cli
from coordgen_rs._core import LookupTable
from coordgen_rs.bench.ablation import read_prompts
from coordgen_rs.bench.methods import METHODS, PLAIN, Comparison, compare
from coordgen_rs.byte_size import parse_bytes
from coordgen_rs.draft_model import DraftModel
from coordgen_rs.errors import OptionError
from coordgen_rs.progress import progress
from coordgen_rs.self_test import open_session
from coordgen_rs.session import OrtSession
from coordgen_rs.tables import show_table
from coordgen_rs.warm_up import open_table

KNOWN = (PLAIN, *METHODS)
"""What `--methods` may name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `--methods` alone."""
    group = parser.add_argument_group("of --methods")
    group.add_argument(
        "--draft-model", type=Path, metavar="BUNDLE", help="for the methods edgellm and blend"
    )
    group.add_argument(
        "--lookup-table",
        type=Path,
        metavar="FILE",
        help="what the methods diaa and blend start with, from `coordgen warm-up`",
    )
    group.add_argument(
        "--history",
        choices=["none", "session"],
        default="session",
        help="whether earlier requests of a task may be drawn on; default %(default)s",
    )
    group.add_argument(
        "--costs",
        choices=["free", "measured"],
        default="free",
        help="free: rows cost nothing, as on an NPU, and steps are as wide as --width; measured: "
        "draft only where it pays on this machine; default %(default)s",
    )


def run(options: argparse.Namespace) -> int:
    """Compare the methods and print the table.

    Returns:
        0; 1 where a method gave other tokens than plain decoding.

    Raises:
        OptionError: No file of prompts was given.
    """
    if options.data is None:
        raise OptionError("--methods needs DATA, a file of prompts")
    prompts = read_prompts(options.data, limit=options.limit)
    with progress() as on_progress:
        session = open_session(
            options.bundle,
            threads=options.threads,
            width=options.width,
            memory_budget=parse_bytes(options.memory_budget) if options.memory_budget else None,
            provider=provider_cli.chosen(options),
            on_progress=on_progress,
        )
        comparison = compare(
            session,
            prompts,
            options.methods,
            draft_model=_draft_model(options, session),
            open_table=_table(options, session),
            remembering=options.history == "session",
            max_new_tokens=options.max_new_tokens or 96,
            on_progress=on_progress,
        )
    if options.json:
        print(json.dumps(comparison.to_json()))
    else:
        show(comparison)
    return 0 if comparison.identical else 1


def _draft_model(options: argparse.Namespace, session: OrtSession) -> DraftModel | None:
    """The draft model; afterwards the session tells no costs where rows are to be free."""
    model = None
    if options.draft_model is not None:
        model = DraftModel.open(options.draft_model, session)
        if options.costs == "free":
            model = DraftModel(model.session)
    if options.costs == "free":
        session.select(session.widths)
    return model


def _table(options: argparse.Namespace, session: OrtSession) -> Callable[[], LookupTable]:
    if options.lookup_table is None:
        return LookupTable
    return partial(open_table, options.lookup_table, session.bundle)


def parse_names(text: str) -> list[str]:
    """The methods of an option; "all" is every one of them."""
    return [*KNOWN] if text == "all" else text.split(",")


def show(comparison: Comparison) -> None:
    """Print the table on stdout."""
    report = comparison.to_json()
    tasks = list(comparison.num_prompts)
    rows = []
    for name, figures in report["methods"].items():
        of_tasks = (figures["per_task"][task] for task in tasks)
        cells = [f"{f['tokens_per_step']:.2f} (x{f['speedup']:.2f})" for f in (*of_tasks, figures)]
        rates = f"{figures['tokens_per_s']:.0f}", f"{100 * figures['host_share']:.1f} %"
        rows.append([name, *cells, *rates, f"{figures['extra_bytes'] / 1e6:.2f} MB"])
    columns = ["method", *tasks, "all", "tokens/s", "host share", "extra memory"]
    show_table(f"tokens_per_step (speedup), {comparison.rows} rows a step", columns, rows)
    print(f"identical to plain decoding: {'yes' if comparison.identical else 'NO'}")
