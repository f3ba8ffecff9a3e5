"""The blocks and the head of a bundle on Qualcomm's HTP, loaded and released one by one.

In: a bundle, the cache, and buffers. Out: integers, as the graphs take and give them. Each graph of
a block is a session of its own, from its context binary where there is one; without it the provider
compiles the graph, which takes its time. New keys and values are outputs, which the host commits
(`QnnCache`). What is loaded when is not decided here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.blocks import Buffers, GraphName, ort_value
from coordgen_rs.bundle import Bundle
from coordgen_rs.errors import DeviceLostError
from coordgen_rs.kv_cache import QnnCache
from coordgen_rs.manifest import QnnTarget
from coordgen_rs.qnn import qnn_session
from coordgen_rs.qnn_options import QnnOptions, Soc

_SHARED = {"ep.share_ep_contexts": "1"}

Bound = tuple[onnxruntime.InferenceSession, onnxruntime.IOBinding]


class QnnBuffers:
    """What the graphs read and write in one run, beside the ids and the mask that are drafted.

    Args:
        drafted: Ids, positions and the float mask, whose columns are absolute slots.
        bundle: The bundle.
        target: Its encodings.

    Attributes:
        drafted: As given.
        arrays: By name: mask `(1, 1, rows, slots + rows)`, its new rows behind all slots; cos and
            sin `(1, 1, rows, head_dim / 2)`; all uint16.
        hidden: Two of `(1, rows, hidden_size) u16`, taken in turn from block to block.
    """

    def __init__(self, drafted: Buffers, bundle: Bundle, target: QnnTarget) -> None:
        model, slots, rows = bundle.manifest.model, bundle.manifest.slots, drafted.rows
        self.drafted, self._slots = drafted, slots
        zero = np.zeros(1, np.float32)
        self._seen = target.mask.quantize(zero)[0]
        self._unseen = target.mask.quantize(zero + np.float32(target.mask_value))[0]
        self._past_len = 0
        half = (1, 1, rows, model.head_dim // 2)
        self.arrays: dict[str, NDArray[Any]] = {
            "mask": np.full((1, 1, rows, slots + rows), self._unseen, np.uint16),
            "cos": np.zeros(half, np.uint16),
            "sin": np.zeros(half, np.uint16),
        }
        self.hidden = [np.zeros((1, rows, model.hidden_size), np.uint16) for _ in range(2)]

    def fill_mask(self, past_len: int) -> None:
        """Turn the float mask into the graphs' own: past slots, then the new rows."""
        mask, rows = self.arrays["mask"], self.drafted.rows
        mask[..., self._past_len : past_len] = self._seen
        mask[..., past_len : self._past_len] = self._unseen
        drafted = self.drafted.mask[..., past_len : past_len + rows]
        mask[..., self._slots :] = np.where(drafted == 0, self._seen, self._unseen)
        self._past_len = past_len


@dataclass
class _LoadedGraph:
    """A block under one graph: sessions by rows, and the runs that were bound to them."""

    sessions: dict[int, onnxruntime.InferenceSession]
    bound: dict[QnnBuffers, Bound] = field(default_factory=dict)


class QnnBlocks:
    """All blocks of a bundle; none is loaded at first.

    Args:
        bundle: An opened bundle.
        soc: The chip.
        cache: Keys and values that the graphs read.
        options: How to compile and run.
    """

    def __init__(self, bundle: Bundle, soc: Soc, cache: QnnCache, options: QnnOptions) -> None:
        self._bundle, self._soc, self._cache, self._options = bundle, soc, cache, options
        self._widths: dict[GraphName, list[int]] = {
            "prefill": [bundle.manifest.prefill_rows],
            "decode": bundle.manifest.decode_widths,
        }
        self._loaded: dict[tuple[int, GraphName], _LoadedGraph] = {}

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self._bundle.manifest.blocks)

    def is_loaded(self, block: int, graph: GraphName) -> bool:
        """Whether this graph of the block can run."""
        return (block, graph) in self._loaded

    def load(self, block: int, graph: GraphName) -> None:
        """Bring a graph into memory.

        Raises:
            ProviderError: The provider cannot load it; the message names the file.
        """
        files = self._bundle.manifest.blocks[block].graphs
        self._loaded[block, graph] = _LoadedGraph(
            {
                rows: load_qnn_graph(self._bundle, files[rows], self._soc, self._options)
                for rows in self._widths[graph]
            }
        )

    def release(self, block: int, graph: GraphName) -> None:
        """Drop a graph; nothing where it is not loaded."""
        self._loaded.pop((block, graph), None)

    def run(self, block: int, graph: GraphName, buffers: QnnBuffers) -> None:
        """Compute one block: hidden states, and new keys and values of all rows.

        Raises:
            DeviceLostError: The device failed.
        """
        loaded = self._loaded[block, graph]
        if buffers not in loaded.bound:
            session = loaded.sessions[buffers.drafted.rows]
            loaded.bound[buffers] = session, self._bind(block, session, buffers)
        run_bound(loaded.bound[buffers], f"block {block}")

    def hidden_out(self, buffers: QnnBuffers) -> NDArray[Any]:
        """Where the last block leaves its hidden states, `(1, rows, hidden_size) u16`."""
        return buffers.hidden[len(self) % 2]

    def _bind(
        self, block: int, session: onnxruntime.InferenceSession, buffers: QnnBuffers
    ) -> onnxruntime.IOBinding:
        binding = session.io_binding()
        for name, array in buffers.arrays.items():
            binding.bind_ortvalue_input(name, ort_value(array))
        binding.bind_ortvalue_input("hidden", ort_value(buffers.hidden[block % 2]))
        binding.bind_ortvalue_output("hidden_out", ort_value(buffers.hidden[(block + 1) % 2]))
        new = self._cache.new_rows(buffers.drafted.rows)
        for layer in self._bundle.manifest.blocks[block].layers:
            for kind, past, rows in zip(
                ("key", "value"), self._cache.arrays[layer], new[layer], strict=True
            ):
                binding.bind_ortvalue_input(f"{kind}_{layer}", ort_value(past))
                binding.bind_ortvalue_output(f"{kind}_{layer}_new", ort_value(rows))
        return binding


class QnnHead:
    """Final norm and output layer at the widths of decode steps.

    Args:
        bundle: An opened bundle.
        soc: The chip.
        options: How to compile and run.
        target: The bundle's encodings.
    """

    def __init__(self, bundle: Bundle, soc: Soc, options: QnnOptions, target: QnnTarget) -> None:
        model, files = bundle.manifest.model, bundle.manifest.head.graphs
        self._encoding = target.logits
        self._hidden: dict[int, NDArray[Any]] = {}
        self._logits: dict[int, NDArray[Any]] = {}
        self._bound: dict[int, Bound] = {}
        for rows in bundle.manifest.decode_widths:
            session = load_qnn_graph(bundle, files[rows], soc, options)
            self._hidden[rows] = np.zeros((1, rows, model.hidden_size), np.uint16)
            self._logits[rows] = np.zeros((1, rows, model.vocab_size), np.uint16)
            binding = session.io_binding()
            binding.bind_ortvalue_input("hidden", ort_value(self._hidden[rows]))
            binding.bind_ortvalue_output("logits", ort_value(self._logits[rows]))
            self._bound[rows] = session, binding

    def release(self) -> None:
        """Drop all its graphs."""
        self._bound.clear()

    def run(self, hidden: NDArray[Any], num_rows: int) -> Iterator[NDArray[np.float32]]:
        """Logits of the first rows of `hidden (1, rows, hidden_size) u16`, in parts.

        Raises:
            DeviceLostError: The device failed.
        """
        rows = max(width for width in self._bound if width <= hidden.shape[1])
        for start in range(0, num_rows, rows):
            first = min(start, hidden.shape[1] - rows)
            self._hidden[rows][:] = hidden[:, first : first + rows]
            run_bound(self._bound[rows], "the head")
            logits = self._encoding.dequantize(self._logits[rows][0])
            yield logits[start - first : num_rows - first]


def load_qnn_graph(
    bundle: Bundle, file: str, soc: Soc, options: QnnOptions
) -> onnxruntime.InferenceSession:
    """A graph of the bundle, from its context binary if there is one.

    Raises:
        ProviderError: The provider cannot load it; the message names the file.
    """
    target = bundle.manifest.qnn
    shared = None if target is None else target.shared
    if shared is not None and file in shared.graphs:
        return qnn_session(bundle.file(shared.graphs[file]), soc, options, _SHARED)
    compiled = None if target is None else target.compiled
    files = {} if compiled is None else compiled.graphs
    return qnn_session(bundle.file(files.get(file, file)), soc, options)


def run_bound(bound: Bound, what: str) -> None:
    """Run a session whose inputs and outputs are bound.

    Raises:
        DeviceLostError: It failed; what it had to do was checked when it was loaded.
    """
    session, binding = bound
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # ONNX Runtime raises its own unrelated classes
        raise DeviceLostError(f"{what}: the device failed during a run: {error}") from error
