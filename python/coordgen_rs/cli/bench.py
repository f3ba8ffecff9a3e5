"""The command `coordgen bench`: its options, and what it prints and writes."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coordgen_rs.bench.measuring.settings import METHODS, Settings
from coordgen_rs.bench.measuring.workbench import Workbench
from coordgen_rs.bench.reporting.condition import Condition
from coordgen_rs.bench.reporting.plots import check_matplotlib, plot_section
from coordgen_rs.bench.reporting.report import chosen_sections, document
from coordgen_rs.bench.reporting.section import Section
from coordgen_rs.bench.sections import SECTIONS
from coordgen_rs.cli import provider_options
from coordgen_rs.cli.progress import progress
from coordgen_rs.text.byte_size import parse_bytes

ABOUT = "run benchmarks with a real model, as tables, JSON and plots"
_ABOUT_SECTIONS = "\n".join(f"  {name:14}{entry.about}" for name, entry in SECTIONS.items())
EXAMPLES = f"""\
DATA has one JSON object per line, with `task` and `prompt`. Methods take turns on the same prompts,
and all answers are compared. Each figure is a median, with the lowest and highest repeat.

sections:
{_ABOUT_SECTIONS}

examples:
  coordgen bench bundle prompts.jsonl --json bench.json --plots plots
  coordgen bench bundle prompts.jsonl --quick
  coordgen bench bundle prompts.jsonl --sections methods,ablation --limit 20
  coordgen bench bundle prompts.jsonl --sections methods --methods all --draft-model small-bundle \\
      --costs free
  coordgen bench bundle prompts.jsonl --sections methods --methods chain,edgellm \\
      --draft-model small-bundle --memory-budget 400M
  coordgen bench bundle --sections switching --threads 1 --load-delay 0.5
"""
QUICK: dict[str, int] = {"repeats": 2, "limit": 2, "max_new_tokens": 40, "prompt_len": 256}
"""What `--quick` sets, unless an option says otherwise."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="from `coordgen export`")
    parser.add_argument(
        "data", type=Path, nargs="?", metavar="DATA", help="prompts, one JSON object per line"
    )
    parser.add_argument(
        "--sections", type=_names, metavar="NAME,..", help="only these sections; default: all"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="take a few minutes: "
        + ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in QUICK.items()),
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write all figures and conditions to FILE; - prints them instead of tables",
    )
    parser.add_argument(
        "--plots", type=Path, metavar="DIR", help="draw each section as PNG and SVG"
    )
    parser.add_argument(
        "--repeats", type=int, metavar="N", help="repeats of each measurement; default 5"
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="only the first N prompts of each task"
    )
    parser.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="most tokens per answer; default 96"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="compute threads; default: one per core"
    )
    parser.add_argument("--width", type=int, metavar="N", help="most rows per step")
    provider_options.add_arguments(parser)
    _add_drafting(parser.add_argument_group("options of sections that draft"))
    _add_switching(parser.add_argument_group("options for switching and streaming"))


def _add_drafting(group: Any) -> None:
    group.add_argument(
        "--methods",
        type=lambda text: [*METHODS] if text == "all" else _names(text),
        metavar="NAME,..",
        help=f"any of {', '.join(METHODS)}; or all; default: those that can run",
    )
    group.add_argument(
        "--draft-model",
        type=Path,
        metavar="BUNDLE",
        help="the draft model, for methods that need one",
    )
    group.add_argument(
        "--lookup-table",
        type=Path,
        metavar="FILE",
        help="initial table of the methods diaa and blend, from `coordgen warm-up`",
    )
    group.add_argument(
        "--history",
        choices=["none", "earlier-requests"],
        default="earlier-requests",
        help="whether methods may draft from earlier prompts of a task; default %(default)s",
    )
    group.add_argument(
        "--costs",
        choices=["free", "measured"],
        default="measured",
        help="measured: draft only where it pays on this machine; free: rows cost nothing, as on "
        "an NPU, and every step is as wide as possible; default %(default)s",
    )


def _add_switching(group: Any) -> None:
    group.add_argument(
        "--memory-budget",
        metavar="SIZE",
        help="most memory for the target's graphs, e.g. 800M; blocks that do not fit are streamed",
    )
    group.add_argument(
        "--profile", metavar="FILE", help="a profile from `coordgen profile`; default: measured now"
    )
    group.add_argument(
        "--prompt-len",
        type=int,
        metavar="L",
        help="length of made-up prompts in tokens; default 512",
    )
    group.add_argument(
        "--strategies",
        type=_names,
        metavar="NAME,..",
        help="strategies for the section switching; default: all",
    )
    group.add_argument(
        "--load-delay",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="delay added to each load in the section switching",
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def run(options: argparse.Namespace) -> int:
    """Measure, print, write and draw; what was measured before an error is kept."""
    settings = settings_of(options)
    names = chosen_sections(options.sections, settings)
    if options.plots is not None:
        check_matplotlib()
    with progress() as on_progress:
        bench = Workbench.open(settings, on_progress)
    condition = Condition.of(bench.session, settings.data, bench.num_prompts, _asked(settings))
    caption = condition.caption()
    measured: list[Section] = []
    try:
        for name in names:
            with progress() as bench.on_progress:
                measured.append(SECTIONS[name].measure(bench))
            if options.json != "-":
                measured[-1].show(caption)
            if options.plots is not None:
                plot_section(measured[-1], caption, options.plots)
    finally:
        if options.json is not None:
            report = document(condition, measured, is_complete=len(measured) == len(names))
            _write(json.dumps(report, indent=1), options.json)
    return 0


def settings_of(options: argparse.Namespace) -> Settings:
    """The options as settings; those of `--quick` unless an option says otherwise.

    Raises:
        OptionError: An option is outside its range.
    """
    numbers = {name: getattr(options, name) for name in QUICK}
    quick = QUICK if options.quick else {}
    given = quick | {name: value for name, value in numbers.items() if value is not None}
    if options.strategies is not None:
        given["strategies"] = tuple(options.strategies)
    budget = options.memory_budget
    return Settings(
        bundle=options.bundle,
        data=options.data,
        methods=tuple(options.methods or ()),
        draft_model=options.draft_model,
        lookup_table=options.lookup_table,
        remembering=options.history == "earlier-requests",
        is_free=options.costs == "free",
        width=options.width,
        threads=options.threads,
        provider=provider_options.chosen(options),
        memory_budget=None if budget is None else parse_bytes(budget),
        load_delay_s=options.load_delay,
        profile=options.profile,
        **given,
    )


def _asked(settings: Settings) -> dict[str, object]:
    """The settings that change figures, as JSON types, without those in the condition."""
    elsewhere = {"bundle", "data", "threads", "provider", "power_root"}
    shown = {name: value for name, value in asdict(settings).items() if name not in elsewhere}
    return {name: value.name if isinstance(value, Path) else value for name, value in shown.items()}


def _write(text: str, file: str) -> None:
    if file == "-":
        print(text)
    else:
        Path(file).write_text(text + "\n", "utf-8")
