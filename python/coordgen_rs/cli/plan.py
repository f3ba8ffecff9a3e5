"""The command `coordgen plan`: its options, and what it prints."""

import argparse
import json
import sys
from pathlib import Path

from coordgen_rs._core import Plan, strategies
from coordgen_rs.bench.plans.decode_simulation import WidthFigures, simulate_decode
from coordgen_rs.bench.plans.grid import plan_grid, show_grid
from coordgen_rs.bench.plans.picture import plot_plans
from coordgen_rs.cli.progress import progress
from coordgen_rs.errors import OptionError
from coordgen_rs.profile.file import Profile
from coordgen_rs.profile.plan import STARTS, plan_by_all, plan_prompt, plan_to_json
from coordgen_rs.text.byte_size import parse_bytes, show_bytes
from coordgen_rs.text.tables import show_table

ABOUT = "plan when to load which graph during a prefill, by every strategy"
EXAMPLES = """\
A profile is a file written by `coordgen profile`, or the name of one with figures from the CoordGen
paper, such as redmi-k60-pro-qwen2.5-1.5b; an unknown name lists them all.

examples:
  coordgen plan --profile profile.json --prompt-len 1024
  coordgen plan --profile profile.json --prompt-len 1024 --memory-budget 800M --plot plan.png
  coordgen plan --profile profile.json --prompt-len 200 --start decode --strategy auto --json
  coordgen plan --profile redmi-k60-pro-qwen2.5-1.5b --simulate-decode --acceptance-rate 0.7
  coordgen plan --grid
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--profile", metavar="FILE", help="what the blocks cost: a file or a name")
    parser.add_argument(
        "--prompt-len", type=int, metavar="N", help="length of the prompt in tokens"
    )
    parser.add_argument(
        "--strategy", choices=[*strategies(), "all"], default="all", help="default: %(default)s"
    )
    parser.add_argument(
        "--memory-budget",
        metavar="BYTES",
        help="most memory for the graphs, such as 800M or 2G; default: no limit",
    )
    parser.add_argument(
        "--start",
        choices=STARTS,
        default="prefill",
        help="what is in memory when the prompt arrives; default: %(default)s",
    )
    parser.add_argument("--plot", type=Path, metavar="PNG", help="also draw the plans")
    parser.add_argument(
        "--simulate-decode",
        action="store_true",
        help="instead, compute the expected time per token for graphs of several widths",
    )
    parser.add_argument(
        "--acceptance-rate",
        type=float,
        metavar="P",
        help="probability that a draft token is accepted",
    )
    parser.add_argument(
        "--tokens-per-step",
        metavar="ROWS=N,..",
        help="instead of --acceptance-rate, measured for each width: 8=3.3,16=3.6",
    )
    parser.add_argument(
        "--widths",
        default="1,4,8,16,32",
        metavar="ROWS,..",
        help="widths to simulate; default: %(default)s",
    )
    parser.add_argument(
        "--drafting-us",
        type=float,
        default=0.0,
        metavar="US",
        help="time to draft a step; default 0",
    )
    parser.add_argument(
        "--grid",
        action="store_true",
        help="instead, compare all strategies with the lower bound over 180 made-up profiles",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(options: argparse.Namespace) -> int:
    """Plan, or simulate, and print the figures.

    Raises:
        OptionError: An option is missing, or outside its range.
    """
    if options.grid:
        with progress() as on_progress:
            grid = plan_grid(on_progress)
        if options.json:
            print(json.dumps(grid))
        else:
            show_grid(grid)
        return 0
    if options.profile is None:
        raise OptionError("--profile is missing: it says what the blocks cost")
    profile = Profile.find(options.profile)
    return _simulate(options, profile) if options.simulate_decode else _plan(options, profile)


def _plan(options: argparse.Namespace, profile: Profile) -> int:
    if options.prompt_len is None:
        raise OptionError("--prompt-len is missing: it says how many tokens are computed")
    budget = None if options.memory_budget is None else parse_bytes(options.memory_budget)
    request = {"start": options.start, "memory_budget": budget}
    if options.strategy == "all":
        results = plan_by_all(profile, options.prompt_len, **request)
    else:
        one = plan_prompt(profile, options.prompt_len, strategy=options.strategy, **request)
        results = {options.strategy: one}
    plans = {name: plan for name, plan in results.items() if isinstance(plan, Plan)}
    refusals = {name: error for name, error in results.items() if not isinstance(error, Plan)}
    if not plans:
        raise refusals["auto"]
    if options.json:
        print(json.dumps({"strategies": {name: plan_to_json(p) for name, p in plans.items()}}))
    else:
        _show(options, profile, plans)
    for name, error in refusals.items():
        print(f"{name}: {error}", file=sys.stderr)
    if options.plot is not None:
        plot_plans(plans, options.plot, title=_title(options, profile))
    return 0


def _title(options: argparse.Namespace, profile: Profile) -> str:
    budget = f", at most {options.memory_budget}" if options.memory_budget else ""
    marked = "figures from a paper, " if profile.source == "paper" else ""
    return (
        f"{marked}{len(profile.blocks)} blocks, prompt of {options.prompt_len} tokens, "
        f"{-(-options.prompt_len // profile.prefill_rows)} chunks of {profile.prefill_rows}, "
        f"start: {options.start}{budget}"
    )


def _show(options: argparse.Namespace, profile: Profile, plans: dict[str, Plan]) -> None:
    columns = [
        "strategy",
        "makespan",
        "prefill",
        "exposed load",
        "peak memory",
        "makespan / lower bound",
    ]
    rows = [
        [
            name if name == plan.strategy else f"{name} ({plan.strategy})",
            f"{plan.makespan_us / 1e3:,.1f} ms",
            f"{plan.prefill_us / 1e3:,.1f} ms",
            f"{plan.exposed_load_us / 1e3:,.1f} ms",
            show_bytes(plan.peak_bytes),
            f"{_ratio(plan):.3f}",
        ]
        for name, plan in plans.items()
    ]
    show_table(_title(options, profile), columns, rows)


def _ratio(plan: Plan) -> float:
    return plan.makespan_us / plan.lower_bound_us if plan.lower_bound_us else 1.0


def _simulate(options: argparse.Namespace, profile: Profile) -> int:
    figures = simulate_decode(
        profile.step_us_by_width,
        [_whole(rows) for rows in options.widths.split(",")],
        acceptance_rate=options.acceptance_rate,
        known_tokens_per_step=_by_width(options.tokens_per_step),
        drafting_us=options.drafting_us,
    )
    best = min(figures, key=lambda width: width.ms_per_token)
    if options.json:
        widths = {width.rows: _width_to_json(width) for width in figures}
        print(json.dumps({"widths": widths, "best": best.rows}))
        return 0
    columns = ["rows", "step", "tokens_per_step", "time per token"]
    rows = [
        [
            f"{width.rows}{' (best)' if width is best else ''}",
            f"{width.step_ms:.2f} ms",
            f"{width.tokens_per_step:.2f}",
            f"{width.ms_per_token:.2f} ms",
        ]
        for width in figures
    ]
    show_table("expected decoding", columns, rows)
    return 0


def _width_to_json(width: WidthFigures) -> dict[str, float]:
    return {
        "step_ms": width.step_ms,
        "tokens_per_step": width.tokens_per_step,
        "ms_per_token": width.ms_per_token,
    }


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**31):
        raise OptionError(f"{text!r} is not a number of rows")
    return int(text)


def _by_width(text: str | None) -> dict[int, float] | None:
    if text is None:
        return None
    pairs = [pair.partition("=") for pair in text.split(",")]
    try:
        return {_whole(rows): float(tokens) for rows, _, tokens in pairs}
    except ValueError as error:
        raise OptionError(f"{text!r} is not like 8=3.3,16=3.6") from error
