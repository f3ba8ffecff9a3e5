"""`coordgen profile`: what a bundle's blocks cost here, their time to load and to run, and bytes.

In: a bundle. Out: a `Profile`, printed and written: of every block under both graphs the median of
some loads and runs and their spread, of the head too, and what a step of each width takes. Bytes
are the growth of a fresh process's resident memory, since memory that was in use before is taken
again without growing; or, where the system does not tell, an NPU has memory of its own, or experts
that are in no graph would grow, too, sizes of files.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import outputs
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.cli.terminal.text import show_bytes
from coordgen_rs.errors import BundleError
from coordgen_rs.lab.fleet.tasks import in_own_process
from coordgen_rs.lab.tables import Column, show_table, tell
from coordgen_rs.loading.directory import ProviderChoice, device_class, open_bundle
from coordgen_rs.loading.profile import (
    SCHEMA_VERSION,
    BlockFigures,
    DecodeFigures,
    GraphFigures,
    HeadFigures,
    Profile,
    bundle_facts,
    device_facts,
)
from coordgen_rs.loading.self_test import run_self_test
from coordgen_rs.runtime.device import GRAPHS, Buffers, GraphName
from coordgen_rs.runtime.machine import resident_bytes
from coordgen_rs.runtime.ort_session import OrtSession

_MOST_RUNS, _ENOUGH_SECONDS = 20, 0.1

OnProgress = Callable[[str, int, int], None]


class _Timing(NamedTuple):
    """Median and interquartile range, microseconds."""

    median_us: float
    spread_us: float


def measure(
    path: Path | str,
    *,
    provider: ProviderChoice | None = None,
    threads: int | None = None,
    repeats: int = 5,
    on_progress: OnProgress = lambda what, done, total: None,
) -> Profile:
    """Measure a bundle; the graphs of a block are loaded apart even where they share a file.

    Args:
        path: The bundle's directory.
        provider: What runs it; None leaves that to the bundle.
        threads: Compute threads of the process; None takes one a core.
        repeats: Least number of loads and of runs that a median is of; one more warms up.
        on_progress: Called with what is being done, how much of it is, and how much there is.

    Raises:
        BundleError, BundleDamagedError: The bundle cannot be used, or is for another provider or
            chip.
        ProviderError: QNN is not installed, cannot run here, or refuses a graph.
        OptionError: `threads` cannot be set.
    """
    bundle, choice = open_bundle(path), provider or ProviderChoice()
    device = choice.device(bundle, share_graphs=False)
    session = OrtSession(device, threads=threads, preload=False)
    memory, memory_source = block_bytes(bundle, session.threads, choice)
    bench = _Bench(session, repeats)
    num_blocks = len(bundle.manifest.blocks)
    blocks = []
    for block in range(num_blocks):
        on_progress(f"block {block}", block, num_blocks)
        prefill_bytes, decode_bytes = memory["prefill"][block], memory["decode"][block]
        blocks.append(
            BlockFigures(bench.prefill(block, prefill_bytes), bench.decode(block, decode_bytes))
        )
    head = bench.head()
    shared = OrtSession(choice.device(bundle), threads=threads)
    step_us = run_self_test(shared, {}, on_progress).step_us
    return Profile(
        schema_version=SCHEMA_VERSION,
        source="measured",
        note=f"medians of at least {repeats}, spreads are interquartile ranges; memory: "
        f"{memory_source}",
        bundle=bundle_facts(bundle),
        device=device_facts(bundle, session.threads),
        prefill_rows=bundle.manifest.prefill_rows,
        decode_rows=bundle.manifest.decode_rows,
        blocks=blocks,
        head=head,
        step_us_by_width=step_us,
    )


class _Bench:
    """A session, and buffers of each width for its blocks, to time."""

    def __init__(self, session: OrtSession, repeats: int) -> None:
        self._session, self._manifest = session, session.bundle.manifest
        self._repeats = repeats
        widths = {self._manifest.prefill_rows, *self._manifest.decode_widths}
        self._buffers = {width: self._filled(width) for width in widths}

    def _filled(self, rows: int) -> Buffers:
        tokens = np.random.default_rng(0).integers(self._session.vocab_size, size=rows)
        buffers = self._session.forward.chain_buffers(tokens.astype(np.uint32))
        buffers.hidden[1][:] = buffers.hidden[0]  # every second block reads the other
        return buffers

    def prefill(self, block: int, num_bytes: int) -> GraphFigures:
        """Times of one block under G1."""
        rows = self._manifest.prefill_rows
        load, runs = self._block(block, "prefill", [rows])
        return GraphFigures(*load, *runs[rows], num_bytes)

    def decode(self, block: int, num_bytes: int) -> DecodeFigures:
        """Times of one block under G2."""
        load, runs = self._block(block, "decode", self._manifest.decode_widths)
        by_width = {width: run.median_us for width, run in runs.items()}
        return DecodeFigures(*load, *runs[self._manifest.decode_rows], num_bytes, by_width)

    def _block(
        self, block: int, graph: GraphName, widths: list[int]
    ) -> tuple[_Timing, dict[int, _Timing]]:
        """Times of a load, and of runs by width; it is not loaded afterwards."""
        device, run_block = self._session.device, self._session.forward.run_block
        release = partial(device.release, block, graph)
        load = self._timed(partial(device.load, block, graph), after=release)
        device.load(block, graph)
        runs = {
            width: self._timed(partial(run_block, block, graph, self._buffers[width]))
            for width in widths
        }
        release()
        return load, runs

    def head(self) -> HeadFigures:
        """Times of the head, and the bytes of its weights."""
        device, steps = self._session.device, self._session.forward.steps
        load = self._timed(device.load_head)
        by_width = {
            width: self._timed(partial(device.logits, buffers, 0, width)).median_us
            for width, buffers in steps.items()
        }
        files = self._manifest.files
        num_bytes = sum(files[name].num_bytes for name in self._manifest.head.weights)
        return HeadFigures(*load, num_bytes, by_width)

    def _timed(
        self, call: Callable[[], object], after: Callable[[], object] = lambda: None
    ) -> _Timing:
        """Time a call again and again, after a first time that does not count."""
        call()
        after()
        times: list[float] = []
        while len(times) < self._repeats or (
            len(times) < _MOST_RUNS and sum(times) < _ENOUGH_SECONDS
        ):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
            after()
        quarter, median, three_quarters = 1e6 * np.percentile(times, [25, 50, 75])
        return _Timing(round(float(median), 1), round(float(three_quarters - quarter), 1))


def block_bytes(
    bundle: Bundle, threads: int, provider: ProviderChoice
) -> tuple[dict[GraphName, list[int]], str]:
    """Bytes by graph and block, and a description of how they were found.

    Args:
        bundle: An opened bundle.
        threads: Compute threads, each of which has memory of its own.
        provider: What runs it.

    Raises:
        BundleError: A graph cannot be loaded or run.
    """
    device = device_class(bundle)
    is_apart = not device.is_host and not device.is_emulator()  # not this process's memory
    if is_apart or bundle.manifest.experts is not None or not resident_bytes():
        return {graph: _file_sizes(bundle, graph) for graph in GRAPHS}, "sizes of files"
    grown: dict[GraphName, list[int]] = {}
    for graph in GRAPHS:
        try:
            grown[graph] = in_own_process(grown_bytes, bundle.path, graph, threads, provider)
        except Exception as error:
            message = f"{bundle.shown}: its {graph} graphs cannot be run: {error}"
            raise BundleError(message) from error
    return grown, "growth of resident memory"


def grown_bytes(path: Path, graph: GraphName, threads: int, provider: ProviderChoice) -> list[int]:
    """Growth of this process as each block is loaded and run once, one after another."""
    bundle = open_bundle(path)
    manifest = bundle.manifest
    rows = manifest.prefill_rows if graph == "prefill" else manifest.decode_rows

    def opened() -> tuple[OrtSession, Buffers]:
        device = provider.device(bundle, share_graphs=False)
        session = OrtSession(device, threads=threads, preload=False)
        return session, session.forward.chain_buffers(np.zeros(rows, np.uint32))

    def load(session: OrtSession, buffers: Buffers, block: int) -> int:
        before = resident_bytes()
        session.device.load(block, graph)
        session.forward.run_block(block, graph, buffers)
        return max(0, resident_bytes() - before)

    # What only the first block of a process costs (threads, intermediate results) is no block's.
    first = opened()
    load(*first, 0)
    others = opened()
    return [load(*others, block) for block in range(len(manifest.blocks))]


def _file_sizes(bundle: Bundle, graph: GraphName) -> list[int]:
    """Bytes of what each block is loaded from: its context binaries, else its weights."""
    manifest, target = bundle.manifest, bundle.manifest.qnn
    compiled = None if target is None else target.shared or target.compiled
    widths = manifest.decode_widths if graph == "decode" else [manifest.prefill_rows]
    if target is None or compiled is None:
        return [
            len({block.graphs[rows] for rows in widths}) * manifest.files[block.weights].num_bytes
            for block in manifest.blocks
        ]
    if compiled is target.shared:  # loaded as a whole
        widths = manifest.widths
    sizes = []
    for block in manifest.blocks:
        stems = tuple(Path(compiled.graphs[block.graphs[rows]]).stem for rows in widths)
        binaries = (n for n in manifest.files if n.startswith(stems) and n.endswith(".bin"))
        sizes.append(sum(manifest.files[name].num_bytes for name in binaries))
    return sizes


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
