"""The command `coordgen profile`: its options, and what it prints."""

import argparse
import dataclasses

from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import outputs
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.cli.terminal.text import show_bytes
from coordgen_rs.lab.profile.blocks import measure
from coordgen_rs.lab.tables import Column, show_table, tell
from coordgen_rs.loading.profile import Profile

EXAMPLES = """\
Times are medians; the spread is half the interquartile range. Use fewer threads than there are
cores: otherwise loads and runs that a plan puts side by side slow each other down.

examples:
  coordgen profile bundle --out profile.json
  coordgen profile bundle --threads 1 --json
  coordgen profile npu-bundle --provider qnn --qnn-option performance_mode=burst
"""


def add_arguments(parser: Parser) -> None:
    """The options of the command."""
    parser.declare(
        option.EXPORTED_BUNDLE,
        option.path("--out FILE").help("write the profile here, replacing what is there"),
        option.count("--repeats N", default=5).help("repeats of each load and run; default 5"),
        *option.PROVIDER,
        option.THREADS,
        option.JSON,
    )


def run(options: argparse.Namespace) -> int:
    """Measure, write the file, and print the figures."""
    if options.out is not None:
        outputs.check_file("--out", options.out)
    with progress() as on_progress:
        profile = measure(
            options.bundle,
            provider=option.chosen_provider(options),
            threads=options.threads,
            repeats=options.repeats,
            on_progress=on_progress,
        )
    if options.out is not None:
        outputs.write(options.out, profile.write)
    tell(options.json, dataclasses.asdict(profile), lambda: _show(profile))
    return 0


def _show(profile: Profile) -> None:
    heads = ["", "graph", "rows", "load, ms", "spread", "run, ms", "spread", "memory, MB"]
    rows = [
        (
            f"block {number}",
            name,
            num_rows,
            figures.load_us / 1e3,
            figures.load_spread_us / 2e3,
            figures.compute_us / 1e3,
            figures.compute_spread_us / 2e3,
            figures.num_bytes / 1e6,
        )
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
    columns = [Column(head, digits=1) for head in heads]
    show_table(f"{profile.bundle['name']} on {machine}", columns, rows, num_words=2)
    if profile.head is not None:
        print(f"head: load {profile.head.load_us / 1e3:.1f} ms, weights ", end="")
        print(show_bytes(profile.head.num_bytes))
    steps = [f"{width}: {us / 1e3:.2f}" for width, us in profile.step_us_by_width.items()]
    print(f"a step of each width, ms: {', '.join(steps)}")
