"""A bundle on ONNX Runtime's CPU provider: the device of most sessions.

In: a bundle. Out: a device whose graphs write keys and values to absolute slots, in place.
"""

from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.manifest import Manifest
from coordgen_rs.errors import BundleError, ProviderError
from coordgen_rs.runtime.caches.kv_cache import KV_FORMS, KvCache
from coordgen_rs.runtime.caches.states import StateArrays
from coordgen_rs.runtime.cpu.graph_shapes import check_block, check_head, row_sizes
from coordgen_rs.runtime.device import Buffers, Device, GraphName
from coordgen_rs.runtime.experts import ExpertFiles
from coordgen_rs.runtime.onnx_runtime import cpu_session, give_small_memory_back, kernel_build


class CpuDevice(Device):
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
    is_host = True
    allowed_commits = ("canonical", "compact")
    cache: KvCache
    experts: ExpertFiles

    def __init__(
        self, bundle: Bundle, *, share_graphs: bool = True, kv_cache: str = KV_FORMS[0]
    ) -> None:
        cache = cache_of(bundle.manifest, kv_cache)
        super().__init__(bundle, cache, is_shared=share_graphs)
        self.experts = ExpertFiles(bundle)
        self._cached_layers = bundle.manifest.cached_layers

    @classmethod
    def facts(cls, bundle: Bundle) -> dict[str, object]:
        """The build of the kernels, where the graphs of the bundle have them."""
        return {} if bundle.manifest.weights == "fp32" else {"kernels": kernel_build()}

    def buffers(self, rows: int) -> Buffers:
        """New buffers for `rows` tokens."""
        return path_buffers(rows, self.bundle.manifest)

    def rope_tables(self) -> dict[str, NDArray[np.float32]]:
        """Same as in `Bundle`."""
        return self.bundle.rope_tables()

    def open_graph(self, block: int | None, rows: int) -> onnxruntime.InferenceSession:
        """Load the graph of a block for so many rows, or that of the head.

        Raises:
            BundleError: ONNX Runtime cannot load it, or it is not the one of the manifest.
        """
        manifest, path = self.bundle.manifest, self.bundle.file(self.graph_file(block, rows))
        session = load_graph(path)
        if block is None:
            check_head(session, path, manifest.model)
        else:
            check_block(session, path, manifest.blocks[block], manifest)
        return session

    def bind_layer(self, binding: onnxruntime.IOBinding, layer: int, buffers: Buffers) -> None:
        """Bind the keys and values of a layer, or its states, and its experts.

        Args:
            binding: Of its block's graph.
            layer: Its number.
            buffers: What the block reads and writes.
        """
        cache = buffers.cache or self.cache
        states, writes = cache.state_arrays, layer
        if states is None or layer not in states.values:
            writes = self.bundle.manifest.cache_of(layer).written_by
            pair = cache.values[self._cached_layers.index(writes)]
            kept = {f"key_{writes}": pair[0], f"value_{writes}": pair[1]}
        else:
            kept = states.values[layer]
            for name, value in states.run_values.items():
                binding.bind_ortvalue_input(name, value)
        for name, value in self.experts.inputs(layer).items():
            binding.bind_ortvalue_input(name, value)
        for name, value in kept.items():
            binding.bind_ortvalue_input(name, value)
            if writes == layer:
                binding.bind_ortvalue_output(f"{name}_out", value)

    def name_failure(self, error: Exception, block: int | None) -> None:
        """Raise what a run of a block has failed with, if that was a file of experts.

        Args:
            error: What ONNX Runtime has raised.
            block: Its number; None for the head.

        Raises:
            BundleDamagedError: It cannot be read any more; the message names it.
        """
        self.experts.name_failure(error)

    def release(self, block: int, graph: GraphName) -> None:
        """Drop a graph of a block; does nothing if it is not loaded."""
        if self.is_loaded(block, graph):
            super().release(block, graph)
            give_small_memory_back()

    def close(self) -> None:
        """Drop all graphs and experts; none can run any more."""
        super().close()
        self.experts.close()


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
    return KvCache(*sizes, StateArrays(manifest.recurrent, manifest.decode_rows, num_sequences))


def path_buffers(rows: int, manifest: Manifest, cache: KvCache | None = None) -> Buffers:
    """New buffers for `rows` tokens with paths, of as many sequences as there are in `cache`."""
    hidden = (1, rows, manifest.model.hidden_size)
    num_nodes = max(rows, manifest.slots)
    path = {"parents": num_nodes, "sequences": num_nodes, "span": 2}
    path["lengths"] = 1 if cache is None else cache.num_sequences
    return Buffers(
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int64),
        {
            name: np.zeros((1, 1, rows, size), np.float32)
            for name, size in row_sizes(manifest).items()
        },
        (np.zeros(hidden, np.float32), np.zeros(hidden, np.float32)),
        {name: np.zeros(size, np.int32) for name, size in path.items()},
        cache,
    )


def load_graph(
    path: Path, content: bytes | None = None, weights: Path | None = None
) -> onnxruntime.InferenceSession:
    """A loaded graph of a bundle.

    Args:
        path: Its file.
        content: What is loaded in place of the file.
        weights: The directory of the files that hold its weights; None for a file's own.

    Raises:
        BundleError: ONNX Runtime cannot load it.
        ProviderError: It cannot load the kernels that all graphs need.
    """
    try:
        return cpu_session(content or path, weights)
    except ProviderError:
        raise
    except Exception as error:  # ONNX Runtime raises its own unrelated classes
        raise BundleError(f"{path}: ONNX Runtime cannot load it: {error}") from error
