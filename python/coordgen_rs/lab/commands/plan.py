"""The command `coordgen plan`: its options, and what it prints."""

import argparse
import json

from coordgen_rs._core import Plan, starts, strategies
from coordgen_rs.cli.options import option, shared
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import outputs
from coordgen_rs.cli.terminal.formatting import show_bytes
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.cli.terminal.text import tell
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.bench.reporting.plots import check_matplotlib
from coordgen_rs.lab.plans.decode_simulation import WidthFigures, simulate_decode
from coordgen_rs.lab.plans.grid import plan_grid, show_grid
from coordgen_rs.lab.plans.picture import plot_plans
from coordgen_rs.lab.plans.prompt import plan_by_all, plan_prompt, plan_to_json
from coordgen_rs.lab.tables import show_table
from coordgen_rs.loading.profile import Profile

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


_WIDTHS = "1,4,8,16,32"
_OF_PLANS = ("prompt_len", "strategy", "memory_budget", "start", "plot")
_OF_DECODING = ("acceptance_rate", "tokens_per_step", "widths", "drafting_us")
"""Options of each kind of figures; None where they are not given."""


def add_arguments(parser: Parser) -> None:
    """The options of the command."""
    parser.declare(
        option.path("--profile FILE").help("what the blocks cost: a file or a name"),
        option.count("--prompt-len N").help("length of the prompt in tokens"),
        option.choice("--strategy", [*strategies(), "all"]).help("default: all"),
        option.size("--memory-budget BYTES").help(
            "most memory for the graphs, such as 800M or 2G; default: no limit"
        ),
        option.choice("--start", starts()).help(
            "what is in memory when the prompt arrives; default: prefill"
        ),
        option.path("--plot PNG").help("also draw the plans"),
        option.flag("--simulate-decode").help(
            "instead, compute the expected time per token for graphs of several widths"
        ),
        option.number("--acceptance-rate P", least=0, most=1).help(
            "probability that a draft token is accepted"
        ),
        option.word("--tokens-per-step ROWS=N,..").help(
            "instead of --acceptance-rate, measured for each width: 8=3.3,16=3.6"
        ),
        option.word("--widths ROWS,..").help(f"widths to simulate; default: {_WIDTHS}"),
        option.number("--drafting-us US", least=0).help("time to draft a step; default 0"),
        option.flag("--grid").help(
            "instead, compare all strategies with the lower bound over 180 made-up profiles"
        ),
        shared.JSON,
    )


def run(options: argparse.Namespace) -> int:
    """Plan, or simulate, and print the figures.

    Raises:
        OptionError: An option is missing, outside its range, or would be ignored.
    """
    if options.grid:
        option.refuse(
            options,
            ("profile", "simulate_decode", *_OF_PLANS, *_OF_DECODING),
            "is not for --grid, which has profiles of its own",
        )
        with progress() as on_progress:
            grid = plan_grid(on_progress)
        if options.json:
            print(json.dumps(grid))
        else:
            show_grid(grid)
        return 0
    if options.profile is None:
        raise OptionError(
            "--profile is missing: it says what the blocks cost; "
            "`coordgen profile BUNDLE --out FILE` measures that"
        )
    if options.simulate_decode:
        option.refuse(options, _OF_PLANS, "is for plans, not for --simulate-decode")
        return _simulate(options, Profile.find(str(options.profile)))
    option.refuse(options, _OF_DECODING, "is for --simulate-decode")
    return _plan(options, Profile.find(str(options.profile)))


def _plan(options: argparse.Namespace, profile: Profile) -> int:
    if options.prompt_len is None:
        raise OptionError("--prompt-len is missing: it says how many tokens are computed")
    if options.plot is not None:
        check_matplotlib()
        outputs.check_file("--plot", options.plot)
    request = {"start": options.start or "prefill", "memory_budget": options.memory_budget}
    if options.strategy in (None, "all"):
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
        tell(f"{name}: {error}")
    if options.plot is not None:
        plot_plans(plans, options.plot, title=_title(options, profile))
    return 0


def _title(options: argparse.Namespace, profile: Profile) -> str:
    limit = options.memory_budget
    budget = "" if limit is None else f", at most {show_bytes(limit)}"
    marked = "figures from a paper, " if profile.source == "paper" else ""
    return (
        f"{marked}{len(profile.blocks)} blocks, prompt of {options.prompt_len} tokens, "
        f"{-(-options.prompt_len // profile.prefill_rows)} chunks of {profile.prefill_rows}, "
        f"start: {options.start or 'prefill'}{budget}"
    )


def _show(options: argparse.Namespace, profile: Profile, plans: dict[str, Plan]) -> None:
    columns = [
        "strategy",
        "resolved to",
        "makespan, ms",
        "prefill, ms",
        "exposed load, ms",
        "peak memory, MB",
        "makespan / lower bound",
    ]
    rows = [
        [
            name,
            plan.strategy,
            f"{plan.makespan_us / 1e3:,.1f}",
            f"{plan.prefill_us / 1e3:,.1f}",
            f"{plan.exposed_load_us / 1e3:,.1f}",
            f"{plan.peak_bytes / 1e6:,.1f}",
            f"{_ratio(plan):.3f}",
        ]
        for name, plan in plans.items()
    ]
    show_table(_title(options, profile), columns, rows, num_words=2)


def _ratio(plan: Plan) -> float:
    return plan.makespan_us / plan.lower_bound_us if plan.lower_bound_us else 1.0


def _simulate(options: argparse.Namespace, profile: Profile) -> int:
    figures = simulate_decode(
        profile.step_us_by_width,
        [_whole(rows) for rows in (options.widths or _WIDTHS).split(",")],
        acceptance_rate=options.acceptance_rate,
        known_tokens_per_step=_by_width(options.tokens_per_step),
        drafting_us=options.drafting_us or 0.0,
    )
    best = min(figures, key=lambda width: width.ms_per_token)
    if options.json:
        widths = {width.rows: _width_to_json(width) for width in figures}
        print(json.dumps({"widths": widths, "best": best.rows}))
        return 0
    columns = ["rows", "step, ms", "tokens_per_step", "time per token, ms"]
    rows = [
        [
            str(width.rows),
            f"{width.step_ms:.2f}",
            f"{width.tokens_per_step:.2f}",
            f"{width.ms_per_token:.2f}",
        ]
        for width in figures
    ]
    show_table("expected decoding", columns, rows)
    print(f"best: {best.rows} rows")
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
