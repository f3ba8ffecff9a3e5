"""The blocks of a bundle on Qualcomm's HTP, loaded and released one by one.

In: a bundle, the cache, and buffers. Out: integers, as the graphs take and give them. Each graph of
a block is a session of its own, from its context binary if there is one; otherwise the provider
compiles the graph, which takes time. New keys and values are outputs, which the host copies to
the cache. This module does not decide when graphs are loaded.
"""

import onnxruntime

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import DeviceLostError
from coordgen_rs.runtime.blocks import Bound, GraphName, OrtBlocks
from coordgen_rs.runtime.buffers import Buffers, ort_value
from coordgen_rs.runtime.onnx_runtime import cpu_session
from coordgen_rs.runtime.qnn.kv_cache import IntegerCache
from coordgen_rs.runtime.qnn.onnx_runtime import qnn_session
from coordgen_rs.runtime.qnn.options import QnnOptions, Soc
from coordgen_rs.threads.native import run_native

_SHARED = {"ep.share_ep_contexts": "1"}


class QnnBlocks(OrtBlocks):
    """All blocks of a bundle; none is loaded at first.

    Args:
        bundle: An opened bundle.
        soc: The chip.
        cache: Keys and values that the graphs read.
        options: How to compile and run.
        ready: Sessions that are loaded already, by the file of their graph.

    Attributes:
        is_shared: Whether a block's graphs share a context binary, which is loaded as a whole.
    """

    def __init__(
        self,
        bundle: Bundle,
        soc: Soc,
        cache: IntegerCache,
        options: QnnOptions,
        ready: dict[str, onnxruntime.InferenceSession] | None = None,
    ) -> None:
        target = bundle.manifest.qnn
        super().__init__(bundle, is_shared=target is not None and target.shared is not None)
        self._soc, self._cache, self._options = soc, cache, options
        self._ready = ready or {}

    def run(self, block: int, graph: GraphName, buffers: Buffers) -> None:
        """Compute one block: hidden states, keys and values of all rows of `buffers`.

        Raises:
            DeviceLostError: The device failed.
        """
        bound = self._bound(block, graph, buffers)
        buffers.before_run()
        run_bound(bound, self._name(block))
        layers = self._bundle.manifest.blocks[block].layers
        if buffers.is_part:
            self._cache.store(layers, buffers.rows, int(buffers.write_index[0]))
        else:
            self._cache.note(layers, buffers.rows)

    def _name(self, block: int) -> str:
        """What messages call a block."""
        return f"block {block}"

    def _sessions(self, block: int, graph: GraphName) -> dict[int, onnxruntime.InferenceSession]:
        files = self._bundle.manifest.blocks[block].graphs
        return {
            rows: self._ready.pop(files[rows], None)
            or load_qnn_graph(self._bundle, files[rows], self._soc, self._options)
            for rows in self._widths[graph]
        }

    def _bind_layer(self, binding: onnxruntime.IOBinding, layer: int, buffers: Buffers) -> None:
        rows = buffers.rows
        past, new = self._cache.past(rows)[layer], self._cache.new_rows(rows)[layer]
        pairs = zip(("key", "value"), past, new, strict=True)
        for kind, read, written in pairs:
            binding.bind_ortvalue_input(f"{kind}_{layer}", ort_value(read))
            binding.bind_ortvalue_output(f"{kind}_{layer}_new", ort_value(written))


def load_qnn_graph(
    bundle: Bundle, file: str, soc: Soc, options: QnnOptions
) -> onnxruntime.InferenceSession:
    """A graph of the bundle, from its context binary if there is one.

    Raises:
        ProviderError: The provider cannot load it; the message names the file.
    """
    if options.on_cpu:
        return cpu_session(bundle.file(file), as_written=True)
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
        DeviceLostError: It failed; the graph itself was checked when it was loaded.
    """
    session, binding = bound
    try:
        run_native(session.run_with_iobinding, binding)
    except Exception as error:  # ONNX Runtime raises its own unrelated classes
        raise DeviceLostError(f"{what}: the device failed during a run: {error}") from error
