"""The command `coordgen plan`: which graph of which block is loaded and released when.

In: a profile and the length of a prompt. Out: the core's `Plan` by one strategy or by all, as a
table, as JSON, as a picture; or a simulation. The planning itself is in `src/load/plan`.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from coordgen_rs._core import Action, Plan, Run, starts, strategies
from coordgen_rs._core import plan as plan_blocks
from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import outputs, text
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.cli.terminal.text import show_bytes
from coordgen_rs.errors import MemoryBudgetError, OptionError
from coordgen_rs.lab.plans.simulation import plan_grid, show_grid, simulate_decode
from coordgen_rs.lab.plots import check_matplotlib, plot_plans
from coordgen_rs.lab.tables import Cell, Column, show_table, tell
from coordgen_rs.loading.profile import Profile

_RUN = ("block", "chunk", "graph", "start_us", "end_us")
_ACTION = ("kind", "block", "graph", "after_runs", "start_us", "end_us")

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


_WIDTHS = (1, 4, 8, 16, 32)
_OF_PLANS = ("prompt_len", "strategy", "memory_budget", "start", "plot")
_OF_DECODING = ("acceptance_rate", "tokens_per_step", "widths", "drafting_us")
"""Options of each kind of figures; None where they are not given."""


def _by_width(name: str, typed: str) -> dict[int, float]:
    """Tokens per step by rows.

    Raises:
        OptionError: It is no such list.
    """
    try:
        pairs = [pair.partition("=") for pair in typed.split(",")]
        return {int(rows): float(tokens) for rows, _, tokens in pairs}
    except ValueError as error:
        raise OptionError(f"{name} {typed!r} is not like 8=3.3,16=3.6") from error


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
        option.Option("--tokens-per-step ROWS=N,..", _by_width).help(
            "instead of --acceptance-rate, measured for each width: 8=3.3,16=3.6"
        ),
        option.several(option.count("--widths ROWS,..", most=2**31 - 1)).help(
            f"widths to simulate; default: {','.join(map(str, _WIDTHS))}"
        ),
        option.number("--drafting-us US", least=0).help("time to draft a step; default 0"),
        option.flag("--grid").help(
            "instead, compare all strategies with the lower bound over 180 made-up profiles"
        ),
        option.JSON,
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
        tell(options.json, grid, lambda: show_grid(grid))
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
    document = {"strategies": {name: plan_to_json(plan) for name, plan in plans.items()}}
    tell(options.json, document, lambda: _show(options, profile, plans))
    for name, error in refusals.items():
        text.tell(f"{name}: {error}")
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
    figures = ["makespan, ms", "prefill, ms", "exposed load, ms", "peak memory, MB"]
    columns = [Column(head, digits=1) for head in ("strategy", "resolved to", *figures)]
    columns.append(Column("makespan / lower bound", digits=3))
    rows = [
        (
            name,
            plan.strategy,
            plan.makespan_us / 1e3,
            plan.prefill_us / 1e3,
            plan.exposed_load_us / 1e3,
            plan.peak_bytes / 1e6,
            plan.makespan_us / plan.lower_bound_us if plan.lower_bound_us else 1.0,
        )
        for name, plan in plans.items()
    ]
    show_table(_title(options, profile), columns, rows, num_words=2)


def _simulate(options: argparse.Namespace, profile: Profile) -> int:
    figures = simulate_decode(
        profile.step_us_by_width,
        options.widths or _WIDTHS,
        acceptance_rate=options.acceptance_rate,
        known_tokens_per_step=options.tokens_per_step,
        drafting_us=options.drafting_us or 0.0,
    )
    best = min(figures, key=lambda width: width.ms_per_token)
    widths = {width.rows: width.to_json() for width in figures}

    def show() -> None:
        columns = ["rows", "step, ms", "tokens_per_step", "time per token, ms"]
        rows: list[tuple[Cell, ...]] = [(str(width), *of.values()) for width, of in widths.items()]
        show_table("expected decoding", columns, rows)
        print(f"best: {best.rows} rows")

    tell(options.json, {"widths": widths, "best": best.rows}, show)
    return 0


def plan_prompt(
    profile: Profile,
    prompt_len: int,
    *,
    strategy: str = "auto",
    start: str = "prefill",
    memory_budget: int | None = None,
) -> Plan:
    """The plan of one strategy.

    Args:
        profile: What the blocks cost.
        prompt_len: Tokens of the prompt that are computed.
        strategy: One of `strategies()`.
        start: What is in memory of every block, one of `_core.starts()`.
        memory_budget: Most bytes that the graphs may take at once; None for no limit.

    Raises:
        OptionError: A name is unknown, or `prompt_len` is below 1 or needs too many chunks.
        MemoryBudgetError: No plan fits into the budget; the message says how much is needed.
    """
    return plan_blocks(
        profile.block_costs(),
        profile.prefill_rows,
        profile.decode_rows,
        prompt_len,
        strategy=strategy,
        start=start,
        memory_budget=memory_budget,
    )


def plan_by_all(
    profile: Profile, prompt_len: int, *, start: str = "prefill", memory_budget: int | None = None
) -> dict[str, Plan | MemoryBudgetError]:
    """The plan of every strategy by name, or the error if it has none within the budget.

    Raises:
        OptionError: Same as in `plan_prompt`.
    """
    plans: dict[str, Plan | MemoryBudgetError] = {}
    for strategy in strategies():
        try:
            plans[strategy] = plan_prompt(
                profile, prompt_len, strategy=strategy, start=start, memory_budget=memory_budget
            )
        except MemoryBudgetError as error:
            plans[strategy] = error
    return plans


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """A plan under the names that `coordgen plan --json` prints."""
    return {
        "makespan_us": plan.makespan_us,
        "prefill_us": plan.prefill_us,
        "exposed_load_us": plan.exposed_load_us,
        "peak_bytes": plan.peak_bytes,
        "lower_bound_us": plan.lower_bound_us,
        "schedule": {
            "runs": [_named(_RUN, run) for run in plan.runs],
            "actions": [_named(_ACTION, action) for action in plan.actions],
        },
    }


def _named(names: Sequence[str], item: Run | Action) -> dict[str, Any]:
    return {name: getattr(item, name) for name in names}
