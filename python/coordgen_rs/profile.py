"""What the blocks of a bundle cost on this machine: time to load and to run, and bytes.

In: a bundle. Out: a `Profile`: of every block under both graphs the median of some loads and runs
and their spread, of the head too, and what a step of each width takes. It reads and writes no file
(`profile_file.py`), and plans nothing (`plan.py`).
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.blocks import Buffers, CpuBlocks, GraphName, load_graph, ort_value
from coordgen_rs.bundle import Bundle
from coordgen_rs.errors import BundleError, OptionError
from coordgen_rs.kv_cache import KvCache
from coordgen_rs.onnx_runtime import set_threads
from coordgen_rs.profile_file import (
    SCHEMA_VERSION,
    BlockFigures,
    DecodeFigures,
    GraphFigures,
    HeadFigures,
    Profile,
)
from coordgen_rs.profile_fit import bundle_facts, device_facts
from coordgen_rs.profile_memory import block_bytes
from coordgen_rs.self_test import run_self_test
from coordgen_rs.session import OrtSession

PROVIDERS = ("cpu",)
"""What can be measured."""

_MOST_RUNS, _ENOUGH_SECONDS = 20, 0.1

OnProgress = Callable[[str, int, int], None]


class _Timing(NamedTuple):
    """Median and interquartile range, microseconds."""

    median_us: float
    spread_us: float


def measure(
    path: Path | str,
    *,
    provider: str = "cpu",
    threads: int | None = None,
    repeats: int = 5,
    on_progress: OnProgress = lambda what, done, total: None,
) -> Profile:
    """Measure a bundle; the graphs of a block are loaded apart even where they share a file.

    Args:
        path: The bundle's directory.
        provider: One of `PROVIDERS`.
        threads: Compute threads of the process; None takes one a core.
        repeats: Least number of loads and of runs that a median is of; one more warms up.
        on_progress: Called with what is being done, how much of it is, and how much there is.

    Raises:
        BundleError, BundleDamagedError: The bundle cannot be used, or is for another provider.
        OptionError: An option is outside its range, or `threads` cannot be set.
    """
    if provider not in PROVIDERS:
        raise OptionError(f"provider is {provider!r}, but must be one of {', '.join(PROVIDERS)}")
    if repeats < 1:
        raise OptionError(f"repeats is {repeats}, but must be at least 1")
    bundle = Bundle.open(path)
    if bundle.manifest.provider != provider:
        raise BundleError(
            f"{bundle.path} was made for {bundle.manifest.provider}, not for {provider}"
        )
    used_threads = set_threads(threads)
    memory, memory_source = block_bytes(bundle.path, used_threads)
    bench = _Bench(bundle, repeats)
    num_blocks = len(bundle.manifest.blocks)
    blocks = []
    for block in range(num_blocks):
        on_progress(f"block {block}", block, num_blocks)
        prefill_bytes, decode_bytes = memory["prefill"][block], memory["decode"][block]
        blocks.append(
            BlockFigures(bench.prefill(block, prefill_bytes), bench.decode(block, decode_bytes))
        )
    head = bench.head()
    step_us = run_self_test(OrtSession(bundle, threads=threads), {}, on_progress).step_us
    return Profile(
        schema_version=SCHEMA_VERSION,
        source="measured",
        note=f"medians of at least {repeats}, spreads are interquartile ranges; memory: "
        f"{memory_source}",
        bundle=bundle_facts(bundle),
        device=device_facts(used_threads, provider),
        prefill_rows=bundle.manifest.prefill_rows,
        decode_rows=bundle.manifest.decode_rows,
        blocks=blocks,
        head=head,
        step_us_by_width=step_us,
    )


class _Bench:
    """Blocks and buffers to time."""

    def __init__(self, bundle: Bundle, repeats: int) -> None:
        manifest, model = bundle.manifest, bundle.manifest.model
        cache = KvCache(model.num_layers, model.num_kv_heads, manifest.slots, model.head_dim)
        self._bundle, self._repeats = bundle, repeats
        self._blocks = CpuBlocks(bundle, cache, share=False)
        rows = {manifest.prefill_rows, *manifest.decode_widths}
        self._buffers = {width: Buffers.empty(width, model, manifest.slots) for width in rows}
        for width, buffers in self._buffers.items():
            buffers.inputs.fill_chain(np.zeros(width, np.uint32), 0)
            hidden = np.random.default_rng(0).standard_normal(buffers.hidden[0].shape, np.float32)
            buffers.hidden[0][:] = buffers.hidden[1][:] = hidden

    def prefill(self, block: int, num_bytes: int) -> GraphFigures:
        """Times of one block under G1; it is not loaded afterwards."""
        rows = self._bundle.manifest.prefill_rows
        load, runs = self._block(block, "prefill", [rows])
        return GraphFigures(*load, *runs[rows], num_bytes)

    def decode(self, block: int, num_bytes: int) -> DecodeFigures:
        """Times of one block under G2; it is not loaded afterwards."""
        manifest = self._bundle.manifest
        load, runs = self._block(block, "decode", manifest.decode_widths)
        by_width = {width: run.median_us for width, run in runs.items()}
        return DecodeFigures(*load, *runs[manifest.decode_rows], num_bytes, by_width)

    def _block(
        self, block: int, graph: GraphName, widths: list[int]
    ) -> tuple[_Timing, dict[int, _Timing]]:
        load = self._timed(
            partial(self._blocks.load, block, graph),
            after=partial(self._blocks.release, block, graph),
        )
        self._blocks.load(block, graph)
        runs = {
            width: self._timed(partial(self._blocks.run, block, graph, self._buffers[width]))
            for width in widths
        }
        self._blocks.release(block, graph)
        return load, runs

    def head(self) -> HeadFigures:
        """Times of the head, and the bytes of its weights."""
        manifest = self._bundle.manifest
        load = self._timed(
            partial(load_graph, self._bundle, manifest.head.graphs[manifest.decode_rows])
        )
        by_width = {}
        for width in manifest.decode_widths:
            session = load_graph(self._bundle, manifest.head.graphs[width])
            logits = np.zeros((1, width, manifest.model.vocab_size), np.float32)
            binding = _bound(session, self._buffers[width].hidden[0], logits)
            run = self._timed(partial(session.run_with_iobinding, binding))
            by_width[width] = run.median_us
        num_bytes = sum(manifest.files[name].num_bytes for name in manifest.head.weights)
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


def _bound(
    session: onnxruntime.InferenceSession,
    hidden: NDArray[np.float32],
    logits: NDArray[np.float32],
) -> onnxruntime.IOBinding:
    binding = session.io_binding()
    binding.bind_ortvalue_input("hidden", ort_value(hidden))
    binding.bind_ortvalue_output("logits", ort_value(logits))
    return binding
