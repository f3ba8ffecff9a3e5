"""A device whose time is a profile's, and whose tokens are those of the model that it runs.

In: a bundle, what the blocks of another model cost on another device, such as a paper's phone.
Out: answers that are computed here and timed there: session, switcher and loader are the real ones,
on a `SimulatedClock` that runs and loads advance by the profile's figures. Drafting takes what it
is told to take, not what it takes here.

A profile's blocks need not be the bundle's: each stands for the layers that its share of the
blocks has, and may stand for none. So a paper's six blocks are switched as six, whatever is run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs._core import PLAIN, SimulatedClock, StepInputs, draft_method
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import OptionError, ProfileError
from coordgen_rs.generation.drafting.drafter import make_drafter
from coordgen_rs.generation.drafting.proposer import WrappedDrafter
from coordgen_rs.lab.bench.workbench import TimedAnswer, answer
from coordgen_rs.lab.loads.plans import step_us
from coordgen_rs.loading.profile import (
    SCHEMA_VERSION,
    BlockFigures,
    DecodeFigures,
    GraphFigures,
    Profile,
)
from coordgen_rs.runtime.cpu import CpuDevice
from coordgen_rs.runtime.device import GRAPHS, Buffers, Device, GraphName
from coordgen_rs.runtime.onnx_runtime import set_threads
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.session import StepCost


def figure_8(prefill_rows: int, decode_rows: int) -> Profile:
    """CoordGen's Figure 8: six blocks, whose loads take as long as two of them compute.

    Args:
        prefill_rows: Rows of a chunk.
        decode_rows: Rows of the decode graph, in whose pieces a chunk takes as long.
    """
    us, piece_us = 10_000.0, 10_000.0 * decode_rows / prefill_rows
    prefill = GraphFigures(2 * us, 0.0, us, 0.0, 100)
    decode = DecodeFigures(2 * us, 0.0, piece_us, 0.0, 100, {1: piece_us, decode_rows: piece_us})
    return Profile(
        schema_version=SCHEMA_VERSION,
        source="paper",
        note="CoordGen, Figure 8",
        bundle={},
        device={},
        prefill_rows=prefill_rows,
        decode_rows=decode_rows,
        blocks=[BlockFigures(prefill, decode)] * 6,
        head=None,
        step_us_by_width={1: 6 * piece_us, decode_rows: 6 * piece_us},
    )


def with_decode_rows(bundle: Bundle, decode_rows: int) -> Bundle:
    """A bundle for CPU with a decode graph of other rows: its files take any number of them.

    Raises:
        OptionError: They are more than those of its prefill graph, or the file is for some only.
    """
    manifest = bundle.manifest
    if not 1 <= decode_rows <= manifest.prefill_rows:
        raise OptionError(
            f"decode_rows is {decode_rows}, but must be from 1 to {manifest.prefill_rows}"
        )
    kept = {width for width in manifest.widths if width <= decode_rows}
    widths = sorted({*kept, decode_rows, manifest.prefill_rows})

    def widened(entry: Any) -> Any:
        files = set(entry.graphs.values())
        if len(files) != 1:
            raise OptionError(f"{bundle.shown} has graphs for some numbers of rows only")
        return replace(entry, graphs=dict.fromkeys(widths, files.pop()))

    changed = replace(
        manifest,
        decode_rows=decode_rows,
        widths=widths,
        blocks=[widened(block) for block in manifest.blocks],
        head=widened(manifest.head),
    )
    return replace(bundle, manifest=changed)


class SimulatedDevice(Device):
    """A device that computes on another one, and takes a profile's times.

    Args:
        device: Computes; all its graphs are loaded, and it is closed with this one.
        profile: What the blocks and the head cost.
        clock: Is advanced by each run; two sessions may share one.

    Raises:
        ProfileError: The profile is for other numbers of rows than the bundle has.
    """

    is_host = False
    clock: SimulatedClock

    def __init__(self, device: Device, profile: Profile, clock: SimulatedClock) -> None:
        manifest = device.bundle.manifest
        rows = manifest.prefill_rows, manifest.decode_rows
        if rows != (profile.prefill_rows, profile.decode_rows):
            raise ProfileError(
                f"the profile is for chunks of {profile.prefill_rows} and steps of "
                f"{profile.decode_rows} rows, {device.bundle.shown} has {rows[0]} and {rows[1]}"
            )
        super().__init__(device.bundle, device.cache, is_shared=False)
        self.device, self.profile, self.clock = device, profile, clock
        self.provider, self.reads_tokens = device.provider, device.reads_tokens
        self.allowed_commits = device.allowed_commits
        self.num_blocks, num_real = len(profile.blocks), device.num_blocks
        ends = [num_real * (block + 1) // self.num_blocks for block in range(self.num_blocks)]
        self._real = [range(*pair) for pair in zip([0, *ends], ends, strict=False)]
        for block in range(num_real):
            for graph in GRAPHS:
                device.load(block, graph)
        self._held: set[tuple[int, GraphName]] = set()

    def buffers(self, rows: int) -> Buffers:
        """Same as in `Device`."""
        return self.device.buffers(rows)

    def rope_tables(self) -> dict[str, NDArray[Any]]:
        """Same as in `Device`."""
        return self.device.rope_tables()

    def open_graph(self, block: int | None, rows: int) -> onnxruntime.InferenceSession:
        """Same as in `Device`, of a block of the bundle; raises as that does."""
        return self.device.open_graph(block, rows)

    def bind_layer(self, binding: onnxruntime.IOBinding, layer: int, buffers: Buffers) -> None:
        """Same as in `Device`."""
        self.device.bind_layer(binding, layer, buffers)

    def name_failure(self, error: Exception, block: int | None) -> None:
        """Same as in `Device`."""
        self.device.name_failure(error, block)

    def is_loaded(self, block: int, graph: GraphName) -> bool:
        """Whether this graph of a block of the profile would be in memory."""
        return (block, graph) in self._held

    def load(self, block: int, graph: GraphName) -> None:
        """Count a graph as loaded; the switcher lets the time pass."""
        self._held.add((block, graph))

    def release(self, block: int, graph: GraphName) -> None:
        """Count a graph as released."""
        self._held.discard((block, graph))

    def load_head(self) -> None:
        """Same as in `Device`."""
        self.device.load_head()

    def close(self) -> None:
        """Same as in `Device`."""
        self.device.close()

    def run(self, block: int, graph: GraphName, buffers: Buffers) -> None:
        """Compute a block of the profile; raises as the other device does."""
        for real in self._real[block]:
            self.device.run(real, graph, buffers)
        figures = self.profile.blocks[block]
        if graph == "prefill":
            self.clock.advance(round(figures.prefill.compute_us))
        else:
            us = step_us(figures.decode.compute_us_by_width, buffers.rows)
            self.clock.advance(round(us))

    def logits(self, buffers: Buffers, first: int, end: int) -> NDArray[np.float32]:
        """Same as in `Device`."""
        head = self.profile.head
        if head is not None:
            self.clock.advance(round(step_us(head.compute_us_by_width, end - first)))
        return self.device.logits(buffers, first, end)

    def hidden_out(self, buffers: Buffers) -> NDArray[Any]:
        """Same as in `Device`."""
        return self.device.hidden_out(buffers)


class TimedDrafter(WrappedDrafter):
    """A drafter whose work takes as long as it is told to.

    Args:
        drafter: Does it.
        clock: Is advanced.
        drafting_us: Microseconds of a step.
        calibration_us: Microseconds a token of the prompt whose logits are read.
    """

    def __init__(self, drafter: Any, clock: SimulatedClock, drafting_us: int, calibration_us: int):
        super().__init__(drafter)
        self._clock, self._drafting_us, self._calibration_us = clock, drafting_us, calibration_us

    def prefilled(self, logits: NDArray[np.float32]) -> None:
        """Same as in `Drafter`."""
        self._clock.advance(self._calibration_us * len(logits))
        self.drafter.prefilled(logits)

    def propose(self, past_len: int) -> StepInputs:
        """Same as in `Drafter`."""
        self._clock.advance(self._drafting_us)
        return self.drafter.propose(past_len)


@dataclass(frozen=True)
class SimulatedAnswer:
    """One answer: this model's tokens, in the profile's time.

    Attributes:
        answered: Tokens, counts, and times in simulated seconds.
        prefill_ms: Until the last run of the prompt is over.
        makespan_ms: Until the last load is over, too, and decoding may begin.
        ms_per_token: Decoding, drafting included.
        answer_ms_per_token: The whole answer, prefill included, a token of it.
        joules: Of the whole answer; None where the profile has no power.
        peak_bytes: Most memory of graphs.
    """

    answered: TimedAnswer
    prefill_ms: float
    makespan_ms: float
    ms_per_token: float
    answer_ms_per_token: float
    joules: float | None
    peak_bytes: int


def open_simulated(
    bundle: Bundle, profile: Profile, clock: SimulatedClock, *, widths: Sequence[int] | None = None
) -> OrtSession:
    """A session of a bundle in a profile's time.

    Args:
        bundle: For this machine's CPU.
        profile: What its blocks cost.
        clock: See `SimulatedDevice`.
        widths: Rows of steps; None for those of the bundle that the profile tells of.

    Raises:
        OptionError: The bundle lacks a width, or the profile tells of none.
        ProfileError: See `SimulatedDevice`.
    """
    set_threads(None)  # before anything is loaded
    device = SimulatedDevice(CpuDevice(bundle), profile, clock)
    session = OrtSession(device, preload=False, costs=profile.block_costs())
    known = profile.step_us_by_width
    if widths is None:
        low, high = min(known, default=0), max(known, default=0)
        widths = [rows for rows in session.widths if low <= rows <= high]
    session.select(widths, [StepCost(step_us(known, rows), 0.0) for rows in widths])
    return session


def simulate(
    bundle: Bundle,
    profile: Profile,
    prompts: Iterable[NDArray[np.uint32]],
    *,
    strategy: str = "greedy",
    memory_budget: int | None = None,
    start: GraphName = "prefill",
    method: str = PLAIN,
    widths: Sequence[int] | None = None,
    max_new_tokens: int = 64,
    drafting_us: int = 0,
    calibration_us: int = 0,
) -> list[SimulatedAnswer]:
    """Answer prompts, one after another, as the profile's device would.

    Args:
        bundle: Answers; its prefill and decode graphs have the profile's rows.
        profile: What its blocks cost.
        prompts: Token ids.
        strategy: When graphs are loaded, one of `_core.strategies()`.
        memory_budget: Most bytes of graphs; None for no limit.
        start: The graphs that are in memory as each prompt comes.
        method: "plain" or what drafts; it keeps what it learns from prompt to prompt.
        widths: Same as in `open_simulated`.
        max_new_tokens: Longest answer.
        drafting_us: What a step's drafting takes.
        calibration_us: What calibration takes for a token of the prompt.

    Raises:
        MemoryBudgetError: The strategy has no plan within the budget.
        OptionError: The method needs a draft model; or same as in `open_simulated`.
        ProfileError: Same as in `open_simulated`.
    """
    clock = SimulatedClock()
    answers = []
    with open_simulated(bundle, profile, clock, widths=widths) as session:
        drafter = None
        if method != PLAIN:
            if draft_method(method).needs_draft_model:
                raise OptionError(f"method {method!r} needs a draft model")
            made = make_drafter(session, method)
            drafter = TimedDrafter(made, clock, drafting_us, calibration_us)
        for prompt in prompts:
            session.switcher.settle(strategy)  # `only` may take what a prompt may not
            session.switcher.only(start)
            session.switcher.settle(strategy, memory_budget)
            given = answer(
                session,
                prompt,
                drafter,
                max_new_tokens=max_new_tokens,
                ignore_eos=True,
                clock=clock.seconds,
            )
            answers.append(_figures(given, profile.watts))
    return answers


def _figures(given: TimedAnswer, watts: float | None) -> SimulatedAnswer:
    stats = given.stats
    report = stats.switching
    planned = None if report is None else report.planned
    makespan_ms = 1e3 * stats.prefill_s
    return SimulatedAnswer(
        answered=given,
        prefill_ms=makespan_ms if planned is None else planned.prefill_us / 1e3,
        makespan_ms=makespan_ms,
        ms_per_token=1e3 * stats.decode_s / stats.new_tokens,
        answer_ms_per_token=1e3 * given.total_s / stats.new_tokens,
        joules=None if watts is None else watts * given.total_s,
        peak_bytes=0 if report is None else report.peak_bytes,
    )
