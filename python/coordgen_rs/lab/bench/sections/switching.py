"""Section `switching`: all strategies of loading graphs while a prompt is read, in turns."""

from typing import Any

from coordgen_rs.cli.terminal.formatting import show_bytes
from coordgen_rs.lab.bench.measuring.repeats import Summary
from coordgen_rs.lab.bench.measuring.settings import Settings
from coordgen_rs.lab.bench.measuring.switching import bench_switching
from coordgen_rs.lab.bench.measuring.workbench import Workbench
from coordgen_rs.lab.bench.reporting.section import Cell, Chart, Column, Section
from coordgen_rs.lab.own_process import in_own_process
from coordgen_rs.lab.profile.blocks import measure
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.loading.profile import Profile, fitting_costs
from coordgen_rs.runtime.onnx_runtime import set_threads

COLUMNS = (
    Column("strategy"),
    Column("chosen"),
    Column("first_token", "ms", 1),
    Column("planned", "ms", 1),
    Column("exposed", "ms", 1),
    Column("of_sync", digits=3),
    Column("loads", "ms", 1),
    Column("hidden", "%", 0),
    Column("in_turn", "ms", 1),
    Column("peak_memory", "MB", 1),
)

_MAX_NEW_TOKENS = 8


def measure_switching(bench: Workbench) -> Section:
    """Answer one prompt under every strategy, in a process of its own."""
    settings = bench.settings
    bench.on_progress("switching", 0, 1)
    profile = settings.profile and Profile.find(settings.profile)
    measured = profile or in_own_process(measure_profile, settings)
    report = in_own_process(time_strategies, settings, measured)
    rows = [_cells(name, figures) for name, figures in report["strategies"].items()]
    return Section(
        "switching",
        f"{report['prompt_tokens']} tokens of prompt, at most "
        f"{show_bytes(report['memory_budget'])} of graphs but for resident",
        bench.how,
        COLUMNS,
        rows,
        Chart("bars", "strategy", ("first_token", "exposed")),
        [
            f"median (least to most) of {report['rounds']} rounds in turns, each from all blocks "
            "on their prefill graphs; the same tokens from all",
            f"{report['load_delay_s']} s were added to each load, as by a slower disk",
            "planned: the makespan foreseen, as where loads take nothing from compute; in_turn: "
            "computing and loading added up",
            f"with one graph of each block {show_bytes(report['one_graph_bytes'])} were resident; "
            f"the largest graph has {show_bytes(report['largest_block_bytes'])}",
        ],
    )


def measure_profile(settings: Settings) -> Profile:
    """What the blocks cost; raises as `measure`."""
    return measure(
        settings.bundle,
        provider=settings.provider,
        threads=settings.threads,
        repeats=settings.repeats,
    )


def time_strategies(settings: Settings, profile: Profile) -> dict[str, Any]:
    """Run all strategies in this process; raises as `bench_switching`."""
    bundle, threads = open_bundle(settings.bundle), set_threads(settings.threads)
    longest = bundle.manifest.context - _MAX_NEW_TOKENS
    bench = bench_switching(
        settings.bundle,
        fitting_costs(profile, bundle, threads),
        prompt_len=min(settings.prompt_len, longest),
        max_new_tokens=_MAX_NEW_TOKENS,
        strategies=settings.strategies,
        rounds=settings.repeats,
        load_delay_s=settings.load_delay_s,
        memory_budget=settings.memory_budget,
        threads=threads,
        provider=settings.provider,
        kv_cache=settings.kv_cache,
    )
    return bench.to_json()


def _cells(name: str, figures: dict[str, Any]) -> tuple[Cell, ...]:
    planned, load_us = figures["planned"], figures["load_us"]
    return (
        name,
        figures["chosen"],
        _summary_ms(figures, "first_token"),
        None if planned is None else planned["makespan_us"] / 1e3,
        _summary_ms(figures, "exposed"),
        figures.get("exposed_of_sync"),
        load_us / 1e3,
        100 * figures["overlap_us"] / load_us if load_us else None,
        figures["parts_us"] / 1e3,
        figures["peak_bytes"] / 1e6 or None,
    )


def _summary_ms(figures: dict[str, Any], name: str) -> Summary:
    """A time of microseconds with its range, in milliseconds."""
    low, high = figures[f"{name}_range_us"]
    return Summary(figures[f"{name}_us"] / 1e3, low / 1e3, high / 1e3)
