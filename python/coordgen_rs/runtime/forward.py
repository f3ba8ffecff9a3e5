"""Forward passes: all blocks of a target run over buffers, each under a graph that is in memory.

In: filled step inputs. Out: hidden states for the head, and keys and values in their
slots; nothing is committed. The switcher decides which graphs are in memory, and loads them
(`_core.Switcher`); prompts, passes and runs are begun here, and cancelled where an exception ends
them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs, Switcher
from coordgen_rs.bundle.layers import EMBEDDED, PER_LAYER
from coordgen_rs.runtime.device import Buffers, Device, GraphName
from coordgen_rs.runtime.session import GapWork


class Forward:
    """Buffers for all widths, and the passes over them.

    Args:
        device: Runs the blocks.

    Attributes:
        steps: Buffers for decode steps, by number of rows.
        chunk: Buffers for a chunk of a prompt.
    """

    def __init__(self, device: Device) -> None:
        manifest = device.bundle.manifest
        self._device, self._cache = device, device.cache
        self._embedding = None if device.reads_tokens else device.bundle.embedding()
        self._per_layer = device.bundle.per_layer_embedding()
        self._states = device.cache.states
        self._has_symbolic_rows = manifest.has_symbolic_rows
        self._rotations = device.rope_tables()
        self._last: Buffers | None = None  # of the last run
        self._kept: NDArray[np.float32] | None = None
        self.steps = {rows: device.buffers(rows) for rows in manifest.decode_widths}
        self.chunk = device.buffers(manifest.prefill_rows)
        self.cut_chunk(manifest.decode_rows)

    def cut_chunk(self, rows: int) -> None:
        """Run chunks under G2 in pieces of this many rows."""
        # A piece starts where the last one ends, but for the last, where all have as many rows: it
        # may run some rows again.
        last = self.chunk.rows - (1 if self._has_symbolic_rows else rows)
        firsts = (min(first, last) for first in range(0, self.chunk.rows, rows))
        self._pieces = [
            (first, self.chunk.part(first, min(rows, self.chunk.rows - first))) for first in firsts
        ]
        self._piece_rows = rows

    def chain_buffers(self, token_ids: NDArray[np.uint32]) -> Buffers:
        """New buffers, filled with a chain `(tokens,) u32` after the committed tokens."""
        buffers = self._device.buffers(len(token_ids))
        self._fill(buffers, token_ids)
        return buffers

    def keep_states(self) -> NDArray[np.float32]:
        """From now on, keep what the last block gives for each committed token.

        Returns:
            `(slots, hidden_size) f32`, by position; zeros where it is unknown.
        """
        if self._kept is None:
            manifest = self._device.bundle.manifest
            self._kept = np.zeros((manifest.slots, manifest.model.hidden_size), np.float32)
        return self._kept

    def commit_states(self, rows: NDArray[np.intp], start: int) -> None:
        """Keep what the last block has given for rows of the last run, which are committed."""
        if self._kept is not None and self._last is not None:
            given = self._device.hidden_out(self._last)[0]
            self._kept[start : start + len(rows)] = given[rows]

    def forget_states(self, length: int) -> None:
        """Of the first tokens it is not known what the last block has given."""
        if self._kept is not None:
            self._kept[:length] = 0

    def run_chain(self, buffers: Buffers, token_ids: NDArray[np.uint32]) -> None:
        """Run some tokens of a prompt at the width of `buffers`, under the graph made for it.

        Those of a decode step, a chunk, or a part of a chunk, which is run as the chunk is.
        """
        self._fill(buffers, token_ids)
        is_step = self.steps.get(buffers.rows) is buffers
        graph: GraphName = "decode" if is_step else "prefill"
        with self._run(buffers, reads=True):
            for block in range(self._device.num_blocks):
                self._device.run(block, graph, buffers)

    def run_block(self, block: int, graph: GraphName, buffers: Buffers) -> None:
        """Run one block alone, over buffers that are filled with a chain; to be measured."""
        with self._run(buffers, reads=buffers.rows > max(self.steps)):
            self._device.run(block, graph, buffers)

    def run_chunk(self, token_ids: NDArray[np.uint32], switcher: Switcher) -> None:
        """Run a chunk of a prompt, each block under its loaded graph: G2 in several pieces."""
        self._fill(self.chunk, token_ids)
        pieces = self._pieces[: -(-len(token_ids) // self._piece_rows)]
        for first, piece in pieces:
            piece.write_index[0] = self._cache.length + first
            piece.show_part(first, len(token_ids))
        with self._run(self.chunk, reads=True), one_pass(switcher):
            for block in range(self._device.num_blocks):
                with running(switcher, block) as graph:
                    if graph == "prefill":
                        self._device.run(block, graph, self.chunk)
                    else:
                        for _, piece in pieces:
                            self._device.run(block, graph, piece)

    def run_step(self, inputs: StepInputs, switcher: Switcher, gap_work: GapWork) -> Buffers:
        """Run a decode step whose inputs are filled; its buffers, which the head reads."""
        buffers = self.steps[inputs.rows]
        self._embed(buffers)
        with self._run(buffers, reads=False):
            if switcher.is_streaming:
                with one_pass(switcher):
                    for block in range(self._device.num_blocks):
                        with running(switcher, block, gap_work) as graph:
                            self._device.run(block, graph, buffers)
            else:
                for block in range(self._device.num_blocks):
                    if switcher.step_graph(block) == "decode":
                        self._device.run(block, "decode", buffers)
                    else:
                        self._run_wide(block, buffers)
        return buffers

    @contextmanager
    def _run(self, buffers: Buffers, *, reads: bool) -> Iterator[None]:
        """All layers run once within this block, over rows that are to be committed, or a tree."""
        self._last = None  # until all have run
        if self._states is not None:
            self._states.before_run(self._cache.length, reads=reads)
        yield
        self._last = buffers
        if self._states is not None:
            self._states.after_run(self._cache.length)

    def _run_wide(self, block: int, buffers: Buffers) -> None:
        """Run a block over a decode step under G1, as its G2 could not be loaded."""
        wide = self._wide_step
        buffers.copy_inputs_to(wide, block)
        self._device.run(block, "prefill", wide)
        buffers.copy_outputs_from(wide, block)

    @cached_property
    def _wide_step(self) -> Buffers:
        """A decode step as wide as a chunk; the contents of its other rows do not matter."""
        return self._device.buffers(self.chunk.rows)

    def _fill(self, buffers: Buffers, token_ids: NDArray[np.uint32]) -> None:
        buffers.inputs.fill_chain(token_ids, self._cache.length)
        self._embed(buffers)

    def _embed(self, buffers: Buffers) -> None:
        buffers.write_index[0] = self._cache.length
        self.embed(buffers)

    def embed(self, buffers: Buffers) -> None:
        """Write the first block's input; the step inputs are already filled."""
        if self._embedding is None:
            return
        embedded = buffers.hidden[0][0]
        embedded[:] = self._embedding[buffers.input_ids]
        if self._per_layer is not None:
            buffers.by_row[EMBEDDED][0, 0] = embedded
            buffers.by_row[PER_LAYER][0, 0] = self._per_layer[buffers.input_ids]
        positions = buffers.position_ids
        for name, table in self._rotations.items():
            table.take(positions, axis=0, out=buffers.by_row[name][0, 0], mode="clip")


@contextmanager
def reading(switcher: Switcher, num_tokens: int) -> Iterator[None]:
    """Read a prompt within this block; after an exception, what is in memory stays usable.

    Raises:
        MemoryBudgetError: The budget is too small; the message says how much is needed.
    """
    with cancelled_by_errors(switcher):
        switcher.begin(num_tokens)
        yield


@contextmanager
def one_pass(switcher: Switcher) -> Iterator[None]:
    """Run all blocks once within this block, in order, each within `running`.

    Raises:
        BlockLoadError: A block that streaming starts with cannot be loaded.
    """
    with cancelled_by_errors(switcher):
        switcher.begin_pass()
        yield


@contextmanager
def running(switcher: Switcher, block: int, gap_work: GapWork = None) -> Iterator[GraphName]:
    """Wait until a block may run, and keep its graph in memory within this block.

    Args:
        switcher: Loads it.
        block: Its number.
        gap_work: Called repeatedly until the block may run, or it returns False.

    Raises:
        BlockLoadError: The block has no graph, and none will come.
    """
    graph = switcher.try_enter(block)
    while graph is None and gap_work is not None and gap_work(switcher.wait_us(block)):
        graph = switcher.try_enter(block)
    if graph is None:
        graph = switcher.enter(block)
    try:
        yield graph
    finally:
        switcher.leave()


@contextmanager
def cancelled_by_errors(switcher: Switcher) -> Iterator[None]:
    """Cancel if an exception ends the block, which also holds what begins the work.

    A signal's handler may raise just as that returns.
    """
    try:
        yield
    except BaseException:
        switcher.cancel()
        raise
