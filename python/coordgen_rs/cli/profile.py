"""The command `coordgen profile`: its options, and what it prints."""

import argparse
import dataclasses
import json
from pathlib import Path

from coordgen_rs.bench.profiling.blocks import measure
from coordgen_rs.cli import provider_options
from coordgen_rs.cli.progress import progress
from coordgen_rs.profile.file import GraphFigures, Profile
from coordgen_rs.text.byte_size import show_bytes
from coordgen_rs.text.tables import show_table

ABOUT = "measure what each block of a bundle costs on this machine"
EXAMPLES = """\
Times are medians; +- is half the range from the first to the third quartile. Compute on fewer
threads than there are cores, or loads and runs that plans put side by side take each other's time.

examples:
  coordgen profile bundle --out profile.json
  coordgen profile bundle --threads 1 --json
  coordgen profile npu-bundle --provider qnn --qnn-option performance_mode=burst
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("--out", type=Path, metavar="FILE", help="written, or replaced")
    parser.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="of each load and run, default 5"
    )
    provider_options.add_arguments(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="default: one a core")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(options: argparse.Namespace) -> int:
    """Measure, write the file, and print the figures."""
    with progress() as on_progress:
        profile = measure(
            options.bundle,
            provider=provider_options.chosen(options),
            threads=options.threads,
            repeats=options.repeats,
            on_progress=on_progress,
        )
    if options.out is not None:
        profile.write(options.out)
    if options.json:
        print(json.dumps(dataclasses.asdict(profile)))
    else:
        _show(profile)
    return 0


def _show(profile: Profile) -> None:
    rows = [
        _row(f"block {number}", name, num_rows, figures)
        for number, block in enumerate(profile.blocks)
        for name, num_rows, figures in (
            ("prefill", profile.prefill_rows, block.prefill),
            ("decode", profile.decode_rows, block.decode),
        )
    ]
    device = profile.device
    machine = f"{device['cpu']}, {device['threads']} threads"
    if device["provider"] == "qnn":
        machine = f"{device['soc']}{f', emulated by {machine}' if device['is_emulator'] else ''}"
    title = f"{profile.bundle['name']} on {machine}"
    show_table(title, ["", "graph", "rows", "load", "run", "memory"], rows)
    if profile.head is not None:
        print(f"head: load {profile.head.load_us / 1e3:.1f} ms, weights ", end="")
        print(show_bytes(profile.head.num_bytes))
    steps = [f"{width}: {us / 1e3:.2f}" for width, us in profile.step_us_by_width.items()]
    print(f"a step of each width, ms: {', '.join(steps)}")


def _row(block: str, graph: str, num_rows: int, figures: GraphFigures) -> list[str]:
    load = _time(figures.load_us, figures.load_spread_us)
    compute = _time(figures.compute_us, figures.compute_spread_us)
    return [block, graph, str(num_rows), load, compute, show_bytes(figures.num_bytes)]


def _time(median_us: float, spread_us: float) -> str:
    return f"{median_us / 1e3:.1f} +- {spread_us / 2e3:.1f} ms"
