"""`coordgen bench --switch`: its options, and what it prints."""

import argparse
import json
import subprocess
import sys
from typing import Any

from coordgen_rs import provider_cli
from coordgen_rs.bench.switch import STRATEGIES, SwitchBench, bench_switching
from coordgen_rs.bundle import Bundle
from coordgen_rs.byte_size import parse_bytes, show_bytes
from coordgen_rs.errors import BundleError
from coordgen_rs.onnx_runtime import set_threads
from coordgen_rs.profile_file import Profile
from coordgen_rs.profile_fit import fitting_costs
from coordgen_rs.progress import progress
from coordgen_rs.tables import show_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `--switch` alone."""
    group = parser.add_argument_group("of --switch")
    group.add_argument(
        "--profile", metavar="FILE", help="of `coordgen profile`; measured now where not given"
    )
    group.add_argument(
        "--prompt-len", type=int, default=1024, metavar="L", help="tokens, default %(default)s"
    )
    group.add_argument(
        "--strategies", type=lambda names: names.split(","), default=STRATEGIES, metavar="NAME,.."
    )
    group.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="answers of each, default %(default)s"
    )
    group.add_argument(
        "--load-delay", type=float, default=0, metavar="SECONDS", help="added to each load"
    )
    group.add_argument(
        "--memory-budget",
        metavar="SIZE",
        help="of graphs, such as 800M, but for resident; default: one of each block, and the "
        "largest. With --methods: what the target is to keep to, streaming what does not fit",
    )


def run(options: argparse.Namespace) -> int:
    """Run the bench and print the table."""
    budget = None if options.memory_budget is None else parse_bytes(options.memory_budget)
    bundle, threads = Bundle.open(options.bundle), set_threads(options.threads)
    costs = fitting_costs(_profile(options), bundle, threads)
    with progress() as on_progress:
        bench = bench_switching(
            options.bundle,
            costs,
            prompt_len=options.prompt_len,
            max_new_tokens=options.max_new_tokens or 8,
            strategies=options.strategies,
            rounds=options.rounds,
            load_delay_s=options.load_delay,
            memory_budget=budget,
            threads=options.threads,
            provider=provider_cli.chosen(options),
            on_progress=on_progress,
        )
    if options.json:
        print(json.dumps(bench.to_json()))
    else:
        _show(bench)
    return 0


def _profile(options: argparse.Namespace) -> Profile:
    """The profile as given, or measured in a process of its own, whose memory goes with it.

    Raises:
        BundleError: It cannot be measured.
    """
    if options.profile is not None:
        return Profile.find(options.profile)
    main = "import sys; from coordgen_rs.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", main, "profile", str(options.bundle), "--json"]
    if options.threads is not None:
        command += ["--threads", str(options.threads)]
    command += provider_cli.given(options)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BundleError(done.stderr.strip().removeprefix("coordgen: error: "))
    return Profile.from_json(done.stdout)


def _show(bench: SwitchBench) -> None:
    columns = ["", "first token", "planned", "exposed", "of sync", "loads", "hidden", "in turn"]
    rows = [_cells(name, bench.figures(name)) for name in bench.answers]
    title = (
        f"{bench.prompt_tokens} tokens of prompt, {bench.load_delay_s} s added to each load, at "
        f"most {show_bytes(bench.memory_budget)} of graphs; the same tokens from all; times in ms"
    )
    show_table(title, [*columns, "peak memory"], rows)
    print("planned: the makespan that was foreseen, as where loads take nothing from compute")
    print("in turn: what computing and loading took, added up")
    print(
        f"with one graph of each block {show_bytes(bench.one_graph_bytes)} were resident; the "
        f"largest graph has {show_bytes(bench.largest_block_bytes)}"
    )


def _cells(name: str, figures: dict[str, Any]) -> list[str]:
    planned, load_us = figures["planned"], figures["load_us"]
    return [
        name if name == figures["chosen"] else f"{name} ({figures['chosen']})",
        _ms(figures["first_token_us"]),
        "-" if planned is None else _ms(planned["makespan_us"]),
        _ms(figures["exposed_us"]),
        f"{figures['exposed_of_sync']:.3f}" if "exposed_of_sync" in figures else "-",
        _ms(load_us),
        f"{figures['overlap_us'] / load_us:.0%}" if load_us else "-",
        _ms(figures["parts_us"]),
        show_bytes(figures["peak_bytes"]),
    ]


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:,.0f}"
