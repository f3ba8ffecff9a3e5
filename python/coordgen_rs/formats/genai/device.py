"""A folder of ONNX Runtime GenAI on ONNX Runtime's CPU provider: the device of such sessions.

In: an opened folder. Out: a `CpuDevice` with one block, which embeds and rotates by itself. Its
graphs are made in memory (`graphs.py`) and read their weights from the folder's files.
"""

import onnxruntime

from coordgen_rs.errors import BundleError
from coordgen_rs.formats.genai.folder import GenaiFolder, damage_named
from coordgen_rs.formats.genai.graphs import block_model, head_model
from coordgen_rs.runtime.caches.kv_cache import KV_FORMS
from coordgen_rs.runtime.cpu.device import CpuDevice, load_graph


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
        super().__init__(folder, share_graphs=share_graphs, kv_cache=kv_cache)
        self._weights = folder.weights_directory()  # a refusal comes before anything is loaded
        self._path, model = folder.file(folder.config.decoder.filename), folder.manifest.model
        with damage_named(self._path):
            self._head_model = head_model(folder.graph(), model)
            self._block_model = block_model(folder.graph(), model)

    def open_graph(self, block: int | None, rows: int) -> onnxruntime.InferenceSession:
        """Load all layers of the folder's graph, or its last product.

        Raises:
            BundleError: ONNX Runtime cannot load it.
        """
        model = self._head_model if block is None else self._block_model
        return load_graph(self._path, model, self._weights)

    def name_failure(self, error: Exception, block: int | None) -> None:
        """Say that a graph cannot be run: its shapes do not agree.

        Raises:
            BundleError: It is so.
        """
        if isinstance(error, RuntimeError):
            raise BundleError(f"{self._path}: ONNX Runtime cannot run it: {error}") from error
