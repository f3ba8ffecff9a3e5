"""The `Session` of a bundle in ONNX Runtime: prompts in chunks, steps, commits, on one device."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, Self
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import BlockCost, StepInputs, Switcher, SwitchReport, prompt_rows
from coordgen_rs.bundle.manifest import Manifest
from coordgen_rs.errors import DeviceLostError, OptionError, SessionClosedError
from coordgen_rs.runtime.caches.cached_session import CachedSession, turn_of
from coordgen_rs.runtime.device import Buffers, Device
from coordgen_rs.runtime.forward import Forward, cancelled_by_errors, reading
from coordgen_rs.runtime.onnx_runtime import set_threads
from coordgen_rs.runtime.session import ExpertReport, OnLogits, OnRead, Session, StepCost


class OrtSession(CachedSession):
    """A bundle in ONNX Runtime.

    Args:
        device: The bundle on a provider.
        threads: Compute threads of the process; None for one per core.
        preload: Load all blocks now; otherwise each is loaded when first needed, while others
            compute.
        switch: When to switch from prefill graphs to decode graphs: one of
            `_core.strategies()`.
        memory_budget: Most bytes that the blocks' graphs and experts may take; None for no limit.
            With one, nothing is preloaded. Experts are kept in what graphs leave; with "auto",
            blocks that do not fit are loaded again for every pass.
        costs: What the blocks cost, for plans; None estimates them from their sizes.

    Attributes:
        device: The `device` argument: its blocks and its head.
        forward: The passes over the blocks.
        switcher: Decides which graphs of the blocks are in memory.
        dependents: Sessions that read what this one has computed; closed with it.
        widths: The widths in use, narrowest first; all of the bundle's until `select` is called.
        step_inputs: The input buffers of these widths.
        step_costs: Microseconds of a step of each; None until `select` is given them.
        Others are those of `CachedSession`.

    Raises:
        OptionError: The number of threads cannot be set, or the strategy is unknown.
        BundleError: A graph cannot be loaded.
        BlockLoadError: A block's graph cannot be loaded; the message names block and file.
        MemoryBudgetError: The budget is too small for a bundle with experts; the message says how
            much is needed.
    """

    def __init__(
        self,
        device: Device,
        *,
        threads: int | None = None,
        preload: bool = True,
        switch: str = "auto",
        memory_budget: int | None = None,
        costs: Sequence[BlockCost] | None = None,
    ) -> None:
        self.threads = set_threads(threads)
        super().__init__(device.bundle, device.cache, device.allowed_commits)
        self.device = device
        self.forward = Forward(device)
        manifest = self.bundle.manifest
        costs = costs or guessed_costs(manifest)
        graphs_budget = memory_budget
        self.dependents = WeakSet[Session]()
        if memory_budget is not None and device.experts is not None:
            graphs_budget = device.experts.keep_within(memory_budget, costs)
        self.switcher = Switcher(
            device,
            costs,
            manifest.prefill_rows,
            manifest.decode_rows,
            is_shared=device.is_shared,
            strategy=switch,
            memory_budget=graphs_budget,
            clock=device.clock,
        )
        self._closed: SessionClosedError | DeviceLostError | None = None
        if preload and memory_budget is None:
            self.switcher.ensure("prefill", "decode")
        device.load_head()
        self.select(manifest.decode_widths)

    @property
    def clock(self) -> Callable[[], float]:
        """Tells its time in seconds: that of its device, where that is simulated."""
        simulated = self.device.clock
        return time.perf_counter if simulated is None else simulated.seconds

    def expert_report(self) -> ExpertReport | None:
        """What was asked of experts so far; None without any, or without a memory budget."""
        return None if self.device.experts is None else self.device.experts.report()

    def select(self, widths: Sequence[int], costs: Sequence[StepCost] | None = None) -> None:
        """Draft and decode with these widths only, at the given costs of a step.

        Raises:
            OptionError: There is no width, the bundle lacks one, or there are not as many costs.
        """
        steps = self.forward.steps
        unknown = sorted(set(widths) - set(steps))
        if unknown or not widths:
            raise OptionError(f"widths {list(widths)} are not among {sorted(steps)}")
        if costs is not None and len(costs) != len(widths):
            raise OptionError(f"{len(costs)} step costs for {len(widths)} widths")
        self.widths = tuple(widths)
        self.step_costs = costs
        self.step_inputs = tuple(steps[rows].inputs for rows in widths)
        self.forward.cut_chunk(widths[-1])

    def _keep_hidden(self, rows: NDArray[np.intp], start: int) -> None:
        self.forward.commit_states(rows, start)

    def _forget_hidden(self, length: int) -> None:
        self.forward.forget_states(length)

    def prefill(
        self,
        token_ids: NDArray[np.uint32],
        graphs: Literal["both", "prefill", "decode"] = "both",
        *,
        on_logits: OnLogits = None,
        on_read: OnRead = None,
    ) -> SwitchReport | None:
        """Compute and commit tokens, chunk by chunk.

        Args:
            token_ids: `(tokens,) u32`.
            graphs: "both" runs full chunks at the prefill width, and the rest in as many rows as it
                has tokens, or at decode widths where that would not be exact, because on CPU every
                row costs time; the other values run everything at one of them, unless there is a
                memory budget.
            on_logits: Same as in `Session`. An exception from it leaves its chunk uncommitted.
            on_read: Same as in `Session`.

        Raises:
            OptionError: The tokens are not integers.
            TokenOutOfRangeError: A token is not in the vocabulary.
            ShapeError: The tokens do not fit into the cache, or have more than one dimension.
            MemoryBudgetError: The budget is too small; the message says how much is needed.
            BlockLoadError: A block has no graph that can be loaded. What was committed stays.
            DeviceLostError: The device failed, now or earlier: the session is closed.
            SessionClosedError: The session was closed.
        """
        token_ids = self._readable(token_ids)
        has_budget = self.switcher.memory_budget is not None
        states, report = self.cache.states, None
        cut = turn_of(self, len(token_ids)) - self.length
        parts = [part for part in np.split(token_ids, [max(cut, 0)]) if len(part)] or [token_ids]
        with self.open_device():
            for number, part in enumerate(parts):
                self._written = self.length  # no row of an earlier step can be committed any more
                if number and states is not None:
                    states.keep_turn(self.length)
                done = len(parts[0]) if number else 0
                told = None if on_read is None else lambda read, done=done: on_read(done + read)
                if has_budget or (graphs == "both" and not self.switcher.keeps_both):
                    report = self._prefill_switching(part, on_logits, told) or report
                else:
                    self._prefill_resident(part, graphs, on_logits, told)
        return report

    def _prefill_switching(
        self, token_ids: NDArray[np.uint32], on_logits: OnLogits, on_read: OnRead
    ) -> SwitchReport | None:
        """Compute a prompt while blocks are loaded and released by a plan."""
        if len(token_ids) == 0:
            with cancelled_by_errors(self.switcher):
                self.switcher.stand_by()
            return None
        chunk = self.forward.chunk
        with reading(self.switcher, len(token_ids)):
            for start in range(0, len(token_ids), chunk.rows):
                part = token_ids[start : start + chunk.rows]
                self.forward.run_chunk(part, self.switcher)
                self._commit_chunk(chunk, part, on_logits)
                if on_read is not None:
                    on_read(start + len(part))
            return self.switcher.finish()

    def _prefill_resident(
        self, token_ids: NDArray[np.uint32], graphs: str, on_logits: OnLogits, on_read: OnRead
    ) -> None:
        """Compute a prompt with all blocks in memory."""
        self.switcher.ensure("prefill", "decode")
        done = 0
        while done < len(token_ids):
            buffers = self._chunk_buffers(len(token_ids) - done, graphs)
            part = token_ids[done : done + buffers.rows]
            self.forward.run_chain(buffers, part)
            self._commit_chunk(buffers, part, on_logits)
            done += len(part)
            if on_read is not None:
                on_read(done)

    def _commit_chunk(
        self, buffers: Buffers, token_ids: NDArray[np.uint32], on_logits: OnLogits
    ) -> None:
        if on_logits is not None:
            for logits in self._chunk_logits(buffers, len(token_ids)):
                on_logits(logits)
        self._token_ids[self.length : self.length + len(token_ids)] = token_ids
        self._run_at = self.length
        self._commit(np.arange(len(token_ids), dtype=np.uint32))
        self._written = self.length

    def _chunk_buffers(self, remaining: int, graphs: str) -> Buffers:
        """The buffers for the next of so many tokens."""
        chunk = self.forward.chunk
        if graphs == "prefill":
            return chunk
        if graphs == "both" and self.is_exact_at_any_rows and remaining < chunk.rows:
            return chunk.part(0, remaining)
        prefill_rows = None if graphs == "decode" else chunk.rows
        rows = prompt_rows(
            remaining, self.widths, prefill_rows, every_row_costs=self.device.is_host
        )
        return chunk if rows is None else self.forward.steps[rows]

    def _chunk_logits(self, buffers: Buffers, num_rows: int) -> Iterator[NDArray[np.float32]]:
        """The first rows of the last run's logits, in parts."""
        if self.forward.steps.get(buffers.rows) is buffers:
            return iter([self.device.logits(buffers, 0, buffers.rows)[:num_rows]])
        return self.device.chunk_logits(self.forward.chunk, num_rows)

    def step(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Run the decode graph that `inputs` belongs to.

        Args:
            inputs: Filled inputs of one of the decode graphs.

        Returns:
            Logits `(rows, vocab_size) f32`, valid until the next call. Nothing is committed.

        Raises:
            BlockLoadError: A block has no graph that can be loaded.
            DeviceLostError: The device failed, now or earlier: the session is closed.
            SessionClosedError: The session was closed.
        """
        with self.open_device():
            self._written = self._run_at = self.length  # until all of it is
            experts = self.device.experts
            before = None if experts is None else experts.num_read
            buffers = self.forward.run_step(inputs, self.switcher, self.gap_work)
            if before is not None and experts is not None and (now := experts.num_read) is not None:
                inputs.experts_read = float(now[0] - before[0]), float(now[1] - before[1])
            self._written = self.length + inputs.num_nodes
            self._token_ids[self.length : self._written] = inputs.input_ids[: inputs.num_nodes]
            return self.device.logits(buffers, 0, buffers.rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release all graphs; later runs raise SessionClosedError."""
        self._close(SessionClosedError("the session is closed"))

    def _close(self, reason: SessionClosedError | DeviceLostError) -> None:
        self._closed = self._closed or reason  # first: an interrupt may leave the rest undone
        self.switcher.close()
        for dependent in list(self.dependents):
            dependent.close()
        self.device.close()

    @contextmanager
    def open_device(self) -> Iterator[None]:
        """Close the session when the device fails within the block, which may meet a close.

        Raises:
            DeviceLostError: It failed, now or earlier.
            SessionClosedError: The session was closed, before or meanwhile.
            LookupError: The block's own.
            ValueError: The block's own.
        """
        if self._closed is not None:
            raise type(self._closed)(*self._closed.args)  # a traceback of its own
        try:
            yield
        except DeviceLostError as error:
            self._close(DeviceLostError(f"the session is closed: {error}"))
            raise
        except (LookupError, ValueError) as error:
            if self._closed is None:
                raise
            raise type(self._closed)(*self._closed.args) from error  # graphs went meanwhile


def guessed_costs(manifest: Manifest) -> list[BlockCost]:
    """Estimated costs of the blocks, by their weights and the experts that a row reads.

    Decode graphs that are files of their own, each with its weights, are loaded together.
    """
    rows, experts = (manifest.prefill_rows, manifest.decode_rows), manifest.experts
    costs = []
    for block in manifest.blocks:
        cost = BlockCost.guessed(
            manifest.files[block.weights].num_bytes,
            *rows,
            expert_bytes=0 if experts is None else experts.row_bytes(block.layers),
        )
        if manifest.qnn is not None and manifest.qnn.shared is None:
            num_graphs = len({block.graphs[width] for width in manifest.decode_widths})
            cost = BlockCost(
                prefill_load_us=cost.prefill_load_us,
                prefill_compute_us=cost.prefill_compute_us,
                prefill_bytes=cost.prefill_bytes,
                decode_load_us=num_graphs * cost.decode_load_us,
                decode_compute_us=cost.decode_compute_us,
                decode_bytes=num_graphs * cost.decode_bytes,
            )
        costs.append(cost)
    return costs
