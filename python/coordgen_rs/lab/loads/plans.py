"""`coordgen plan`: which graph of which block is loaded and released when, and simulations.

In: a profile and the length of a prompt. Out: the core's `Plan` by one strategy or by all, as a
table, as JSON, as a picture. The planning itself is in `src/load/plan`.

Simulations need no model. `plan_grid` holds each strategy against the lower bound, over synthetic
profiles: blocks are alike, and memory holds one graph a block, as in CoordGen; `resident` alone has
no limit. `simulate_decode` says what a token would cost with graphs of some widths, before they are
compiled, from the time of a step by its rows and from how well drafts are accepted.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

from coordgen_rs._core import BlockCost, Plan, starts, strategies
from coordgen_rs._core import plan as plan_blocks
from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import outputs, text
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.cli.terminal.text import show_bytes
from coordgen_rs.errors import MemoryBudgetError, OptionError
from coordgen_rs.lab.plots import check_matplotlib, plot_plans
from coordgen_rs.lab.tables import Cell, Column, show_table, tell
from coordgen_rs.loading.profile import Profile

_PLAN = ("makespan_us", "prefill_us", "exposed_load_us", "peak_bytes", "lower_bound_us")
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
    schedule = {
        "runs": [_named(_RUN, run) for run in plan.runs],
        "actions": [_named(_ACTION, action) for action in plan.actions],
    }
    return _named(_PLAN, plan) | {"schedule": schedule}


def _named(names: Sequence[str], item: object) -> dict[str, Any]:
    return {name: getattr(item, name) for name in names}


NUM_BLOCKS = (6, 12, 28)
NUM_CHUNKS = (1, 2, 4, 8, 16)
LOADS = (0.5, 1.5, 3.0, 6.0)
"""Time of a load, in chunks of its block."""
DECODE_FACTORS = (1.0, 1.3, 2.0)
"""Time of a chunk under the decode graph, in that under the prefill graph."""

_PREFILL_ROWS, _PIECES = 256, 8
_COMPUTE_US = 10_000


def plan_grid(on_progress: Callable[[str, int, int], None]) -> list[dict[str, Any]]:
    """One entry per point: its coordinates and `ratios {strategy: makespan / lower bound}`."""
    points = list(product(NUM_BLOCKS, NUM_CHUNKS, LOADS, DECODE_FACTORS))
    grid = []
    for done, (num_blocks, num_chunks, load, factor) in enumerate(points):
        on_progress("planning", done, len(points))
        decode_us = round(_COMPUTE_US * factor / _PIECES)
        load_us = round(_COMPUTE_US * load)
        block = BlockCost(
            prefill_load_us=load_us,
            prefill_compute_us=_COMPUTE_US,
            prefill_bytes=1,
            decode_load_us=load_us,
            decode_compute_us=decode_us,
            decode_bytes=1,
        )
        ratios = {}
        for strategy in strategies():
            planned = plan_blocks(
                [block] * num_blocks,
                _PREFILL_ROWS,
                _PREFILL_ROWS // _PIECES,
                num_chunks * _PREFILL_ROWS,
                strategy=strategy,
                memory_budget=None if strategy == "resident" else num_blocks,
            )
            ratios[strategy] = planned.makespan_us / planned.lower_bound_us
        grid.append(
            {
                "num_blocks": num_blocks,
                "num_chunks": num_chunks,
                "load": load,
                "decode_factor": factor,
                "ratios": ratios,
            }
        )
    return grid


def show_grid(grid: list[dict[str, Any]]) -> None:
    """Print a summary by number of chunks, and every point."""
    ratios = [Column(name, digits=3) for name in strategies()]
    kinds: dict[str, Callable[[list[float]], float]] = {"mean": fmean, "worst": max}
    for title, summed_up in kinds.items():
        rows: list[list[Cell]] = []
        for num_chunks in (*NUM_CHUNKS, None):
            part = [point for point in grid if num_chunks in (None, point["num_chunks"])]
            of_all = [[point["ratios"][name] for point in part] for name in strategies()]
            rows.append([str(num_chunks or "all"), *map(summed_up, of_all)])
        show_table(f"makespan / lower bound, {title}", ["chunks", *ratios], rows)
    show_table(
        "makespan / lower bound, every point",
        ["blocks", "chunks", "load, chunks", "decode / prefill", *ratios],
        [
            [f"{value:g}" for name, value in point.items() if name != "ratios"]
            + [point["ratios"][name] for name in strategies()]
            for point in grid
        ],
    )


@dataclass(frozen=True)
class WidthFigures:
    """One width: its step in milliseconds, and what it brings."""

    rows: int
    step_ms: float
    tokens_per_step: float

    @property
    def ms_per_token(self) -> float:
        """Expected milliseconds per token."""
        return self.step_ms / self.tokens_per_step

    def to_json(self) -> dict[str, float]:
        """The figures under the names that `coordgen plan --json` prints."""
        return _named(("step_ms", "tokens_per_step", "ms_per_token"), self)


def tokens_per_step(rows: int, acceptance_rate: float) -> float:
    """Expected tokens of a step over a chain of `rows - 1` draft tokens.

    Each draft token is right with the same chance, whatever came before it (Leviathan et al. 2023,
    Eq. 1): `(1 - rate ** rows) / (1 - rate)`.
    """
    return sum(acceptance_rate**depth for depth in range(rows))


def step_us(step_us_by_width: Mapping[int, float], rows: int) -> float:
    """Microseconds of a step of `rows` rows: as in the profile, or on the line between two of it.

    Raises:
        OptionError: The profile has no such width between its own.
    """
    below = max((width for width in step_us_by_width if width <= rows), default=None)
    above = min((width for width in step_us_by_width if width >= rows), default=None)
    if below is None or above is None:
        known = ", ".join(map(str, sorted(step_us_by_width))) or "none"
        raise OptionError(f"the profile has steps of {known} rows, which do not enclose {rows}")
    if below == above:
        return step_us_by_width[rows]
    part = (rows - below) / (above - below)
    return (1 - part) * step_us_by_width[below] + part * step_us_by_width[above]


def simulate_decode(
    step_us_by_width: Mapping[int, float],
    widths: Sequence[int],
    *,
    acceptance_rate: float | None = None,
    known_tokens_per_step: Mapping[int, float] | None = None,
    drafting_us: float = 0.0,
) -> list[WidthFigures]:
    """Figures of each width, in the order of `widths`.

    Args:
        step_us_by_width: Measured steps; widths between them are interpolated.
        widths: Rows of the graphs to judge; a width of 1 drafts nothing.
        acceptance_rate: Chance that a draft token is right.
        known_tokens_per_step: Measured values to use instead, by width; 1 needs no entry.
        drafting_us: Microseconds of drafting, a step that drafts.

    Raises:
        OptionError: Not exactly one kind of acceptance is given, measured values lack a width or
            are out of range, or a width is not within the profile's.
    """
    if (acceptance_rate is None) == (known_tokens_per_step is None):
        raise OptionError("give either an acceptance rate or tokens a step by width")
    figures = []
    for rows in widths:
        time = step_us(step_us_by_width, rows) + (drafting_us if rows > 1 else 0.0)
        if acceptance_rate is not None:
            tokens = tokens_per_step(rows, acceptance_rate)
        else:
            tokens = _known(known_tokens_per_step or {}, rows)
        figures.append(WidthFigures(rows, time / 1e3, tokens))
    return figures


def _known(known_tokens_per_step: Mapping[int, float], rows: int) -> float:
    tokens = known_tokens_per_step.get(rows, 1.0 if rows == 1 else None)
    if tokens is None:
        raise OptionError(f"tokens a step of {rows} rows are not given")
    if not 1 <= tokens <= rows:
        raise OptionError(f"tokens a step of {rows} rows are {tokens}, but must be 1 to {rows}")
    return tokens
