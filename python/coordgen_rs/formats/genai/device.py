"""A folder of ONNX Runtime GenAI on ONNX Runtime's CPU provider: the device of such sessions.

In: an opened folder. Out: a `CpuDevice` with one block, which embeds and rotates by itself. Its
graphs are made in memory (`graphs.py`) and read their weights from the folder's files.
"""

from collections.abc import Sequence

import onnxruntime

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import BundleError
from coordgen_rs.formats.genai.folder import GenaiFolder, damage_named
from coordgen_rs.formats.genai.graphs import block_model, head_model
from coordgen_rs.runtime.blocks import Blocks, CpuBlocks, GraphName
from coordgen_rs.runtime.buffers import Buffers
from coordgen_rs.runtime.device import CpuDevice
from coordgen_rs.runtime.head import CpuHead
from coordgen_rs.runtime.kv_cache import KV_FORMS, KvCache
from coordgen_rs.runtime.onnx_runtime import cpu_session


class GenaiDevice(CpuDevice):
    """A folder on ONNX Runtime's CPU provider.

    Args:
        folder: An opened folder.
        share_graphs: Same as in `CpuDevice`.
        kv_cache: Same as in `CpuDevice`.

    Raises:
        OptionError: Keys and values cannot be held so.
        BundleError: The graph does something that cannot be run; the message names it.
    """

    reads_tokens = True

    def __init__(
        self, folder: GenaiFolder, *, share_graphs: bool = True, kv_cache: str = KV_FORMS[0]
    ) -> None:
        super().__init__(folder, kv_cache=kv_cache)
        model = folder.manifest.model
        self._folder = folder
        folder.weights_directory()  # a refusal comes before anything is loaded
        with damage_named(folder.file(folder.config.decoder.filename)):
            self._head = head_model(folder.graph(), model)
            block = block_model(folder.graph(), model)
        self.blocks = _Blocks(folder, self.cache, block, share=share_graphs)

    def load_head(self, steps: Sequence[Buffers]) -> CpuHead:
        """Load a head for all decode widths; it reads the hidden states of steps.

        Raises:
            BundleError: ONNX Runtime cannot load it.
        """
        return _Head(self._folder, self.blocks, steps, self._head)


class _Blocks(CpuBlocks):
    """All layers of a folder as one block."""

    def __init__(self, folder: GenaiFolder, cache: KvCache, model: bytes, *, share: bool) -> None:
        super().__init__(folder, cache, share=share)
        self._folder, self._model = folder, model

    def run(self, block: int, graph: GraphName, buffers: Buffers) -> None:
        """Compute all layers: hidden states, keys and values of all rows of `buffers`.

        Raises:
            BundleError: The graph cannot be run: its shapes do not agree.
        """
        try:
            super().run(block, graph, buffers)
        except RuntimeError as error:
            raise BundleError(_message(self._folder, "run", error)) from error

    def _session(self, block: int, file: str) -> onnxruntime.InferenceSession:
        return _loaded(self._folder, self._model)


class _Head(CpuHead):
    """The last product of a folder's graph."""

    def __init__(
        self, folder: GenaiFolder, blocks: Blocks, steps: Sequence[Buffers], model: bytes
    ) -> None:
        self._folder, self._model = folder, model
        super().__init__(folder, blocks, steps)

    def _session(self, bundle: Bundle, file: str) -> onnxruntime.InferenceSession:
        return _loaded(self._folder, self._model)


def _loaded(folder: GenaiFolder, model: bytes) -> onnxruntime.InferenceSession:
    """The session of a model whose weights are in the folder.

    Raises:
        BundleError: ONNX Runtime cannot load it.
    """
    weights = folder.weights_directory()
    try:
        return cpu_session(model, weights=weights)
    except Exception as error:  # ONNX Runtime raises its own unrelated classes
        raise BundleError(_message(folder, "load", error)) from error


def _message(folder: GenaiFolder, what: str, error: Exception) -> str:
    return f"{folder.file(folder.config.decoder.filename)}: ONNX Runtime cannot {what} it: {error}"
