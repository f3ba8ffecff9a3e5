"""A bundle on Qualcomm's HTP: the same contract as on CPU, in the device's own integers."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs
from coordgen_rs.blocks import Buffers, GraphName
from coordgen_rs.bundle import Bundle
from coordgen_rs.errors import BundleError, DeviceLostError, ProviderError
from coordgen_rs.kv_cache import QnnCache
from coordgen_rs.manifest import CompiledGraphs, QnnTarget
from coordgen_rs.onnx_runtime import set_threads
from coordgen_rs.qnn import QnnVersion, is_emulator, version
from coordgen_rs.qnn_blocks import QnnBlocks, QnnBuffers, QnnHead
from coordgen_rs.qnn_options import QnnOptions, Soc
from coordgen_rs.session import OrtSession


class QnnSession(OrtSession):
    """A bundle on the QNN provider.

    Args:
        bundle: An opened bundle that was exported for QNN.
        soc: Name of the chip; None takes the bundle's own.
        options: How to compile and run.
        recompile: Whether to compile graphs again whose binaries do not fit, rather than refuse.
        threads: Compute threads of the process; None takes one a core.

    Attributes:
        widths: The widths in use, narrowest first; all of the bundle's until `select` is called.
        allowed_commits: Ways to commit that may be asked for: compact only where it is exact.

    Raises:
        BundleError: The bundle is not for QNN, or for another chip.
        ProviderError: The provider is missing, cannot run here, or refuses a graph; or the context
            binaries were made by another version.
    """

    provider = "qnn"

    def __init__(
        self,
        bundle: Bundle,
        *,
        soc: str | None = None,
        options: QnnOptions | None = None,
        recompile: bool = False,
        threads: int | None = None,
    ) -> None:
        target = _usable(bundle, _target(bundle, soc), recompile)
        bundle = replace(bundle, manifest=replace(bundle.manifest, qnn=target))
        self.threads = set_threads(threads)
        self.bundle = bundle
        manifest, model = bundle.manifest, bundle.manifest.model
        self._target = target
        cache = QnnCache(target.caches, model.num_kv_heads, manifest.slots, model.head_dim)
        self.cache = self._qnn_cache = cache
        self._embedding = bundle.embedding()
        self._cos, self._sin = map(target.rotation.quantize, bundle.rope_tables())
        self._decode = {rows: self._drafted(rows) for rows in manifest.decode_widths}
        self._chunk = self._drafted(manifest.prefill_rows)
        self._integers = {
            buffers: QnnBuffers(buffers, bundle, target)
            for buffers in (*self._decode.values(), self._chunk)
        }
        self.allowed_commits = ("canonical", "compact") if target.is_exact else ("canonical",)
        self._closed: str | None = None
        self._open(Soc(target.soc, target.soc_model, target.htp_arch, ""), options or QnnOptions())
        self.select(manifest.decode_widths)

    def _drafted(self, rows: int) -> Buffers:
        return Buffers.empty(rows, self.bundle.manifest.model, self.bundle.manifest.slots + rows)

    def _open(self, soc: Soc, options: QnnOptions) -> None:
        self._qnn_blocks = QnnBlocks(self.bundle, soc, self._qnn_cache, options)
        for block in range(len(self._qnn_blocks)):
            self._qnn_blocks.load(block, "prefill")
            self._qnn_blocks.load(block, "decode")
        self._qnn_head = QnnHead(self.bundle, soc, options, self._target)

    def close(self, reason: str = "it was closed") -> None:
        """Release everything that the device holds; later runs raise DeviceLostError."""
        for block in range(len(self._qnn_blocks)):
            self._qnn_blocks.release(block, "prefill")
            self._qnn_blocks.release(block, "decode")
        self._qnn_head.release()
        self._closed = self._closed or reason

    def step(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Run the decode graph that `inputs` belongs to.

        Returns:
            Logits `(rows, vocab_size) f32`, valid until the next call. Nothing is committed.

        Raises:
            DeviceLostError: The device failed, now or before: the session is closed.
        """
        buffers = self._decode[inputs.rows]
        self._run(buffers)
        return next(self._chunk_logits(buffers, buffers.rows))

    def _chunk_buffers(self, remaining: int, graphs: str) -> Buffers:
        # A run costs about the same however few of its rows are used.
        widest = self._decode[self.widths[-1]]
        if graphs == "prefill" or (graphs == "both" and remaining > widest.rows):
            return self._chunk
        fitting = (rows for rows in self.widths if rows >= remaining)
        return self._decode[next(fitting, self.widths[-1])]

    def _run(self, buffers: Buffers) -> None:
        integers = self._integers[buffers]
        integers.fill_mask(self.length)
        integers.hidden[0][0] = self._embedding[buffers.input_ids]
        for name, table in (("cos", self._cos), ("sin", self._sin)):
            out = integers.arrays[name][0, 0]
            np.take(table, buffers.position_ids, axis=0, out=out, mode="clip")
        graph: GraphName = "prefill" if buffers is self._chunk else "decode"
        with self._device():
            for block in range(len(self._qnn_blocks)):
                self._qnn_blocks.run(block, graph, integers)
        self._qnn_cache.ran(buffers.rows)

    def _chunk_logits(self, buffers: Buffers, num_rows: int) -> Iterator[NDArray[np.float32]]:
        """The first rows of logits of the last run, in parts."""
        hidden = self._qnn_blocks.hidden_out(self._integers[buffers])
        with self._device():
            yield from self._qnn_head.run(hidden, num_rows)

    @contextmanager
    def _device(self) -> Iterator[None]:
        """Close the session when the device fails within the block."""
        if self._closed is not None:
            raise DeviceLostError(f"the session is closed: {self._closed}")
        try:
            yield
        except DeviceLostError as error:
            self.close(str(error))
            raise


def _target(bundle: Bundle, soc: str | None) -> QnnTarget:
    """The bundle's chip and encodings; refuses another chip, and warns of what is not exact."""
    target = bundle.manifest.qnn
    if target is None:
        raise BundleError(f"{bundle.path} is for CPU: export it with --provider qnn")
    if soc not in (None, target.soc):
        raise BundleError(f"{bundle.path} is for {target.soc}, not for {soc}: export it again")
    if not target.is_exact:
        warnings.warn(
            f"{bundle.path}: encodings of past and new keys and values differ, or have no middle "
            "zero point, so drafts are committed the canonical way only, and widths may differ",
            stacklevel=3,
        )
    return target


def _usable(bundle: Bundle, target: QnnTarget, recompile: bool) -> QnnTarget:
    """The target with those context binaries only that can be loaded here.

    Raises:
        ProviderError: They cannot, and may not be compiled again.
    """
    compiled = target.compiled if _fits(bundle, target, target.compiled, recompile) else None
    shared = target.shared if _fits(bundle, target, target.shared, recompile) else None
    if shared is not None and is_emulator():
        warnings.warn(
            f"{bundle.path}: the HTP emulator cannot load weight-shared binaries, those of single "
            "graphs are used",
            stacklevel=4,
        )
        shared = None
    return replace(target, compiled=compiled, shared=shared)


def _fits(
    bundle: Bundle, target: QnnTarget, compiled: CompiledGraphs | None, recompile: bool
) -> bool:
    if compiled is None:
        return False
    made, here = QnnVersion(compiled.provider_version, compiled.qnn_version), version()
    made_for, chip = ((item.soc_model, item.htp_arch) for item in (compiled, target))
    if made == here and made_for == chip:
        return True
    if recompile:
        return False
    raise ProviderError(
        f"{bundle.path}: its context binaries were made by onnxruntime-qnn {made.provider} (QNN "
        f"{made.qnn}) for chip {made_for[0]}, here are {here.provider} ({here.qnn}) and chip "
        f"{chip[0]}: run coordgen compile again, or allow recompiling"
    )
