"""What an `OrtSession` runs on: the cache, blocks, head and buffers of a bundle on one provider.

A device decides neither what is computed (`ort_session.py`, `forward.py`) nor when graphs are
loaded (`_core.Switcher`). The device for Qualcomm's HTP is in `qnn/device.py`.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import BlockCost
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.manifest import Manifest
from coordgen_rs.runtime.blocks import Blocks, CpuBlocks
from coordgen_rs.runtime.buffers import Buffers
from coordgen_rs.runtime.experts import ExpertFiles
from coordgen_rs.runtime.head import CpuHead, Head
from coordgen_rs.runtime.hybrid_cache import HybridCache
from coordgen_rs.runtime.kv_cache import KV_FORMS, Cache, KvCache
from coordgen_rs.runtime.states import StateArrays


class Device(Protocol):
    """A bundle on one provider."""

    @property
    def provider(self) -> str:
        """Its name in options: "cpu" or "qnn"."""

    @property
    def bundle(self) -> Bundle:
        """The bundle, as this device runs it."""

    @property
    def cache(self) -> Cache:
        """Keys and values; the blocks read and write them."""

    @property
    def blocks(self) -> Blocks:
        """The blocks; none is loaded at first."""

    @property
    def allowed_commits(self) -> Sequence[str]:
        """Ways to commit that are allowed."""

    @property
    def is_host(self) -> bool:
        """Whether this process computes: then every row takes time, on its own clock.

        Otherwise a run costs about the same however few of its rows are used.
        """

    @property
    def reads_tokens(self) -> bool:
        """Whether the first block reads token ids and positions, not embedded and rotated ones."""

    def rope_tables(self) -> dict[str, NDArray[Any]]:
        """Tables by position, as in `Bundle.rope_tables`, as the graphs read them."""

    def buffers(self, rows: int) -> Buffers:
        """New buffers for `rows` tokens."""

    def load_head(self, steps: Sequence[Buffers]) -> Head:
        """Load a head for all decode widths; it reads the hidden states of steps."""


def cache_of(manifest: Manifest, form: str, num_sequences: int = 1) -> KvCache:
    """A new cache for a bundle on CPU.

    Args:
        manifest: The bundle's.
        form: How it holds keys and values, one of `KV_FORMS`.
        num_sequences: Requests that have a cache of their own.

    Raises:
        OptionError: Keys and values cannot be held so.
    """
    sizes = manifest.cache_heads, manifest.slots, form, num_sequences
    if manifest.recurrent is None:
        return KvCache(*sizes)
    arrays = StateArrays(manifest.recurrent, manifest.decode_rows, num_sequences)
    return HybridCache(arrays, *sizes)


class CpuDevice:
    """A bundle on ONNX Runtime's CPU provider.

    Keys and values are written in the graph to absolute slots, in place. A row attends along its
    path, so its bits depend on the tokens of that alone: neither on the width, nor on the other
    rows, nor on slots (measured by `coordgen check`), and slots that are not in use cost nothing.

    Args:
        bundle: An opened bundle.
        share_graphs: Load two graphs of a block once if they are one file. Otherwise they are
            loaded separately, as on an NPU.
        kv_cache: How keys and values are held, one of `KV_FORMS`.

    Raises:
        OptionError: Keys and values cannot be held so.
    """

    provider = "cpu"
    allowed_commits = ("canonical", "compact")
    is_host = True
    reads_tokens = False

    def __init__(
        self, bundle: Bundle, *, share_graphs: bool = True, kv_cache: str = KV_FORMS[0]
    ) -> None:
        self.bundle, manifest = bundle, bundle.manifest
        self.cache = cache_of(manifest, kv_cache)
        self.experts = ExpertFiles(bundle)
        self.blocks = CpuBlocks(bundle, self.cache, self.experts, share=share_graphs)

    def graphs_within(self, memory_budget: int, costs: Sequence[BlockCost]) -> int:
        """Divide a memory budget between the blocks' graphs and experts, if there are any.

        Args:
            memory_budget: Bytes for both.
            costs: What the blocks cost, as plans and streams of their graphs reckon with it.

        Returns:
            Bytes of it for graphs. To be called before a block is loaded.

        Raises:
            MemoryBudgetError: It is too small for experts; the message says how much is needed.
            OptionError: It is negative; or there are experts, on Windows.
        """
        graph_bytes = [max(cost.prefill_bytes, cost.decode_bytes) for cost in costs]
        return self.experts.keep_within(memory_budget, graph_bytes)

    def rope_tables(self) -> dict[str, NDArray[np.float32]]:
        """Same as in `Bundle`."""
        return self.bundle.rope_tables()

    def buffers(self, rows: int) -> Buffers:
        """New buffers for `rows` tokens."""
        return Buffers.empty(rows, self.bundle.manifest)

    def load_head(self, steps: Sequence[Buffers]) -> CpuHead:
        """Load a head for all decode widths; it reads the hidden states of steps.

        Raises:
            BundleError: ONNX Runtime cannot load it.
        """
        return CpuHead(self.bundle, self.blocks, steps)
