"""What generation needs of a target: the `Session` protocol, and its ONNX Runtime form on CPU."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import OptionError, ShapeError
from coordgen_rs.target.blocks import Blocks, Buffers, CpuBlocks, GraphName
from coordgen_rs.target.head import CpuHead, Head
from coordgen_rs.target.kv_cache import KvCache, QnnCache
from coordgen_rs.target.onnx_runtime import set_threads
from coordgen_rs.target.switching import (
    BlockCosts,
    Switching,
    SwitchReport,
    WhileWaiting,
    guessed_costs,
)


class StepCost(NamedTuple):
    """What a step takes, in microseconds: it grows with what its rows attend to.

    Attributes:
        base: Cost behind no committed token.
        per_token: Cost of every committed token more.
    """

    base: float
    per_token: float


OnLogits = Callable[[NDArray[np.float32]], None] | None


class Session(Protocol):
    """A target with a cache. After any exception the cache holds exactly the committed tokens."""

    @property
    def length(self) -> int:
        """Number of committed tokens."""

    @property
    def capacity(self) -> int:
        """Number of tokens that the cache can hold."""

    @property
    def vocab_size(self) -> int:
        """Number of columns of the logits."""

    @property
    def end_token_ids(self) -> Sequence[int]:
        """Tokens that end an answer."""

    @property
    def step_inputs(self) -> Sequence[StepInputs]:
        """The input buffers of the decode graphs, one a width, narrowest first."""

    @property
    def step_costs(self) -> Sequence[StepCost] | None:
        """Microseconds of a step of each width; None where all cost the same."""

    def prefill(
        self,
        token_ids: NDArray[np.uint32],
        *,
        on_logits: OnLogits = None,
        switch: str = "auto",
        memory_budget: int | None = None,
    ) -> SwitchReport | None:
        """Compute and commit the given tokens behind those that are there.

        Args:
            token_ids: `(tokens,) u32`.
            on_logits: Called with the logits `(rows, vocab_size) f32` of the next tokens, several
                times, until all have had theirs; they are valid during the call only. None: nobody
                reads them, and nothing need be computed for them.
            switch: When the blocks' prefill graphs give way to their decode graphs: a strategy of
                `_core.plan`.
            memory_budget: Most bytes that the blocks' graphs may hold; None for no limit. With
                "auto", blocks that do not fit are loaded anew for every pass.

        Returns:
            How the loads went; None where nothing had to be loaded.
        """

    def step(self, inputs: StepInputs, while_waiting: WhileWaiting = None) -> NDArray[np.float32]:
        """Run the decode graph that `inputs` belongs to.

        Args:
            inputs: Filled inputs of one of the decode graphs.
            while_waiting: Work in small parts for the time in which a block is still being loaded.
                It must not touch this session.

        Returns:
            Logits `(rows, vocab_size) f32`, valid until the next call. Nothing is committed.
        """

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Make `rows`, `(tokens,) u32`, ascending, of the last step part of the cache."""

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` committed tokens."""


class OrtSession:
    """A bundle on ONNX Runtime's CPU provider.

    Keys and values are written in the graph to absolute slots, in place, so a row's bits depend
    neither on its width, nor on the other rows, nor on how many slots there are (measured by
    `coordgen check`). A run attends to few more slots than hold something.

    Args:
        bundle: An opened bundle.
        threads: Compute threads of the process; None takes one a core.
        share_graphs: Load the two graphs of a block once where they are one file. Without it they
            are loaded as an NPU would have them, where each is compiled apart.
        preload: Load all blocks now; without it they are loaded when first needed, while others
            compute.
        memory_budget: What `prefill` takes where it is given none. With one, nothing is preloaded.
        costs: What the blocks cost, for plans; None guesses by their sizes.

    Attributes:
        blocks: Its blocks.
        head: Its head.
        widths: The widths in use, narrowest first; all of the bundle's until `select` is called.
        allowed_commits: Ways to commit that may be asked for.

    Raises:
        OptionError: Threads that cannot be set.
        BundleError: A graph cannot be loaded.
    """

    provider = "cpu"
    allowed_commits: tuple[str, ...] = ("canonical", "compact")

    def __init__(
        self,
        bundle: Bundle,
        *,
        threads: int | None = None,
        share_graphs: bool = True,
        preload: bool = True,
        memory_budget: int | None = None,
        costs: Sequence[BlockCosts] | None = None,
    ) -> None:
        self.threads = set_threads(threads)
        self.bundle = bundle
        manifest, model = bundle.manifest, bundle.manifest.model
        cache = KvCache(model.num_layers, model.num_kv_heads, manifest.slots, model.head_dim)
        self.cache: KvCache | QnnCache = cache
        self._embedding = bundle.embedding()
        self._cos: NDArray[Any]
        self._sin: NDArray[Any]
        self._cos, self._sin = bundle.rope_tables()
        self._decode = {rows: self._buffers(rows) for rows in manifest.decode_widths}
        self._chunk = self._buffers(manifest.prefill_rows)
        self.blocks: Blocks = CpuBlocks(bundle, cache, share=share_graphs)
        self._start(costs, memory_budget, preload=preload)

    def _start(
        self, costs: Sequence[BlockCosts] | None, memory_budget: int | None, *, preload: bool
    ) -> None:
        """Load what is to be there from the first; cache, buffers and blocks are made."""
        manifest = self.bundle.manifest
        rows = (manifest.prefill_rows, manifest.decode_rows)
        self.switching = Switching(self.blocks, rows, costs or guessed_costs(manifest))
        self._memory_budget = memory_budget
        if preload and memory_budget is None:
            self.switching.ensure("prefill", "decode")
        self.head: Head = self.load_head()
        self.select(manifest.decode_widths)

    def _buffers(self, rows: int) -> Buffers:
        """Buffers of their own for `rows` tokens."""
        return Buffers.empty(rows, self.bundle.manifest.model, self.bundle.manifest.slots)

    def load_head(self) -> Head:
        """The head for all decode widths, loaded anew; it reads what steps leave."""
        return CpuHead(self.bundle, self.blocks, list(self._decode.values()))

    def chain_buffers(self, token_ids: NDArray[np.uint32]) -> Buffers:
        """Buffers of their own for running `token_ids`, `(tokens,) u32`, behind the committed."""
        buffers = self._buffers(len(token_ids))
        buffers.inputs.fill_chain(token_ids, self.length)
        self._embed(buffers)
        return buffers

    def select(self, widths: Sequence[int], costs: Sequence[StepCost] | None = None) -> None:
        """Draft and decode with these widths only, at the given costs of a step.

        Raises:
            OptionError: No width, one that the bundle lacks, or another number of costs.
        """
        unknown = sorted(set(widths) - set(self._decode))
        if unknown or not widths:
            raise OptionError(f"widths {list(widths)} are not among {sorted(self._decode)}")
        if costs is not None and len(costs) != len(widths):
            raise OptionError(f"{len(costs)} step costs for {len(widths)} widths")
        self.widths = tuple(widths)
        self.step_costs = costs
        self.step_inputs = tuple(self._decode[rows].inputs for rows in widths)
        # A piece starts where the last one ends, but for the last: it may run some rows again.
        rows, last = widths[-1], self._chunk.rows - widths[-1]
        firsts = (min(first, last) for first in range(0, self._chunk.rows, rows))
        self._pieces = [(first, self._chunk.part(first, rows)) for first in firsts]

    @property
    def length(self) -> int:
        """Number of committed tokens."""
        return self.cache.length

    @property
    def capacity(self) -> int:
        """Number of tokens that the cache can hold."""
        return self.bundle.manifest.context

    @property
    def vocab_size(self) -> int:
        """Number of columns of the logits."""
        return self.bundle.manifest.model.vocab_size

    @property
    def end_token_ids(self) -> Sequence[int]:
        """Tokens that end an answer."""
        return self.bundle.manifest.end_token_ids

    def prefill(
        self,
        token_ids: NDArray[np.uint32],
        graphs: Literal["both", "prefill", "decode"] = "both",
        *,
        on_logits: OnLogits = None,
        switch: str = "auto",
        memory_budget: int | None = None,
    ) -> SwitchReport | None:
        """Compute and commit tokens, a chunk after another.

        Args:
            token_ids: `(tokens,) u32`.
            graphs: "both" runs full chunks at the prefill width and the rest at decode widths,
                because on CPU every row costs time; the others run all at the one or the other,
                unless there is a memory budget.
            on_logits: As of `Session`. An exception from it leaves its chunk uncommitted.
            switch: As of `Session`.
            memory_budget: As of `Session`.

        Raises:
            ShapeError: The tokens do not fit into the cache.
            OptionError: No such strategy.
            MemoryBudgetError: The budget is too small; the least that would do is named.
            BlockLoadError: A block has no graph that can be loaded. What was committed stays.
        """
        if self.length + len(token_ids) > self.capacity:
            raise ShapeError(
                f"{self.length} committed and {len(token_ids)} new tokens exceed the capacity of "
                f"{self.capacity}"
            )
        budget = self._memory_budget if memory_budget is None else memory_budget
        stays = switch == "auto" and self.blocks.is_shared
        if budget is not None or (graphs == "both" and not stays):
            if len(token_ids) == 0:
                self.switching.stand_by(switch, budget)
                return None
            with self.switching.prompt(len(token_ids), switch, budget):
                for start in range(0, len(token_ids), self._chunk.rows):
                    chunk = token_ids[start : start + self._chunk.rows]
                    self._run_chunk(chunk)
                    self._commit_chunk(self._chunk, len(chunk), on_logits)
                return self.switching.finish()
        self.switching.ensure("prefill", "decode")
        done = 0
        while done < len(token_ids):
            buffers = self._chunk_buffers(len(token_ids) - done, graphs)
            chunk = token_ids[done : done + buffers.rows]
            self._run(buffers, chunk)
            self._commit_chunk(buffers, len(chunk), on_logits)
            done += len(chunk)
        return None

    def _commit_chunk(self, buffers: Buffers, num_rows: int, on_logits: OnLogits) -> None:
        if on_logits is not None:
            for logits in self._chunk_logits(buffers, num_rows):
                on_logits(logits)
        self.cache.commit(np.arange(num_rows, dtype=np.uint32))

    def _chunk_buffers(self, remaining: int, graphs: str) -> Buffers:
        if graphs == "prefill" or (graphs == "both" and remaining >= self._chunk.rows):
            return self._chunk
        fitting = (rows for rows in self.widths if rows >= remaining)
        return self._decode[next(fitting, self.widths[-1])]

    def _chunk_logits(self, buffers: Buffers, num_rows: int) -> Iterator[NDArray[np.float32]]:
        """The first rows of logits of the last run, in parts."""
        if buffers is self._chunk:
            return self.head.chunk(buffers, num_rows)
        return iter([self.head.step(buffers.rows)[:num_rows]])

    def step(self, inputs: StepInputs, while_waiting: WhileWaiting = None) -> NDArray[np.float32]:
        """Run the decode graph that `inputs` belongs to.

        Args:
            inputs: Filled inputs of one of the decode graphs.
            while_waiting: Work in small parts for the time in which a block is still being loaded.
                It must not touch this session.

        Returns:
            Logits `(rows, vocab_size) f32`, valid until the next call. Nothing is committed.
        """
        buffers = self._decode[inputs.rows]
        self._embed(buffers)
        if self.switching.is_streaming:
            with self.switching.one_pass():
                for block in range(len(self.blocks)):
                    with self.switching.running(block, while_waiting) as graph:
                        self.blocks.run(block, graph, buffers)
        else:
            for block in range(len(self.blocks)):
                self._run_step(block, self.switching.ensure_some(block), buffers)
        return self.head.step(inputs.rows)

    def _run_step(self, block: int, graph: GraphName, buffers: Buffers) -> None:
        """Run a block over a decode step, under G1 where its G2 could not be loaded."""
        if graph == "decode":
            self.blocks.run(block, graph, buffers)
            return
        wide = self._wide_step
        rows = slice(buffers.rows)
        wide.write_index[:] = buffers.write_index
        wide.hidden[block % 2][:, rows] = buffers.hidden[block % 2]
        for name in ("mask", "cos", "sin"):
            getattr(wide, name)[:, :, rows] = getattr(buffers, name)
        self.blocks.run(block, graph, wide)
        result = (block + 1) % 2
        buffers.hidden[result][:] = wide.hidden[result][:, rows]

    @cached_property
    def _wide_step(self) -> Buffers:
        """A decode step as wide as a chunk; what its other rows hold is of no matter."""
        return self._buffers(self.bundle.manifest.prefill_rows)

    def _run(self, buffers: Buffers, chunk: NDArray[np.uint32]) -> None:
        """Run all blocks over some tokens of a prompt, all of them at one width."""
        buffers.inputs.fill_chain(chunk, self.length)
        self._embed(buffers)
        graph: GraphName = "prefill" if buffers is self._chunk else "decode"
        for block in range(len(self.blocks)):
            self.blocks.run(block, graph, buffers)

    def _run_chunk(self, chunk: NDArray[np.uint32]) -> None:
        """Run all blocks over a chunk, each under the graph that it has: G2 in several pieces."""
        self._chunk.inputs.fill_chain(chunk, self.length)
        self._embed(self._chunk)
        pieces = self._pieces[: -(-len(chunk) // self.widths[-1])]
        for first, piece in pieces:
            piece.write_index[0] = self.length + first
        with self.switching.one_pass():
            for block in range(len(self.blocks)):
                with self.switching.running(block) as graph:
                    if graph == "prefill":
                        self.blocks.run(block, graph, self._chunk)
                    else:
                        for _, piece in pieces:
                            self.blocks.run(block, graph, piece)

    def _embed(self, buffers: Buffers) -> None:
        """Write what the first block reads; ids, positions and mask are there."""
        buffers.hidden[0][0] = self._embedding[buffers.input_ids]
        positions = buffers.position_ids
        self._cos.take(positions, axis=0, out=buffers.cos[0, 0], mode="clip")
        self._sin.take(positions, axis=0, out=buffers.sin[0, 0], mode="clip")
        buffers.write_index[0] = self.length

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Make `rows`, `(tokens,) u32`, ascending, of the last step part of the cache."""
        self.cache.commit(rows)

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` committed tokens.

        Raises:
            ShapeError: `length` is negative or beyond what is committed.
        """
        if not 0 <= length <= self.length:
            raise ShapeError(f"cannot rewind from {self.length} to {length} tokens")
        self.cache.rewind(length)
