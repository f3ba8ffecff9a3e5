"""A bundle on Qualcomm's HTP: the same contract as on CPU, in the device's own integers."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.manifest import CompiledGraphs, QnnTarget
from coordgen_rs.errors import BundleError, DeviceLostError, ProviderError
from coordgen_rs.target.blocks import Buffers
from coordgen_rs.target.kv_cache import QnnCache
from coordgen_rs.target.onnx_runtime import set_threads
from coordgen_rs.target.qnn.blocks import QnnBlocks, QnnBuffers
from coordgen_rs.target.qnn.head import QnnHead
from coordgen_rs.target.qnn.onnx_runtime import QnnVersion, check_available, is_emulator, version
from coordgen_rs.target.qnn.options import QnnOptions, Soc
from coordgen_rs.target.session import OnLogits, OrtSession
from coordgen_rs.target.switching import (
    BlockCosts,
    SwitchReport,
    WhileWaiting,
)


class QnnSession(OrtSession):
    """A bundle on the QNN provider.

    Args:
        bundle: An opened bundle that was exported for QNN.
        soc: Name of the chip; None takes the bundle's own.
        options: How to compile and run.
        recompile: Whether to compile graphs again whose binaries do not fit, rather than refuse.
        threads: Compute threads of the process; None takes one a core.
        preload: As of `OrtSession`.
        memory_budget: As of `OrtSession`.
        costs: As of `OrtSession`.

    Attributes:
        widths: The widths in use, narrowest first; all of the bundle's until `select` is called.
        allowed_commits: Ways to commit that may be asked for: compact only where it is exact.

    Raises:
        BundleError: The bundle is not for QNN, or for another chip.
        ProviderError: The provider is missing or cannot run here; or the context binaries were made
            by another version.
        BlockLoadError: The provider refuses a graph; the message names block and file.
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
        preload: bool = True,
        memory_budget: int | None = None,
        costs: Sequence[BlockCosts] | None = None,
    ) -> None:
        target = _target(bundle, soc)
        check_available()
        target = _usable(bundle, target, recompile)
        self.threads = set_threads(threads)
        self.bundle = replace(bundle, manifest=replace(bundle.manifest, qnn=target))
        self._target = target
        manifest, model = self.bundle.manifest, self.bundle.manifest.model
        cache = QnnCache(target.caches, model.num_kv_heads, manifest.slots, model.head_dim)
        self.cache = cache
        self._embedding = bundle.embedding()
        self._cos, self._sin = map(target.rotation.quantize, bundle.rope_tables())
        self._decode = {rows: self._buffers(rows) for rows in manifest.decode_widths}
        self._chunk = self._buffers(manifest.prefill_rows)
        self.allowed_commits = ("canonical", "compact") if target.is_exact else ("canonical",)
        self._closed: str | None = None
        self._chip = Soc(target.soc, target.soc_model, target.htp_arch, "")
        self._options = options or QnnOptions()
        self.blocks = QnnBlocks(self.bundle, self._chip, cache, self._options)
        self._start(costs, memory_budget, preload=preload)

    def _buffers(self, rows: int) -> QnnBuffers:
        return QnnBuffers.of_rows(rows, self.bundle, self._target)

    def load_head(self) -> QnnHead:
        """The head for all decode widths, loaded anew; it reads what steps leave.

        Raises:
            ProviderError: The provider cannot load it; the message names the file.
        """
        steps = list(self._decode.values())
        return QnnHead(
            self.bundle, self.blocks, steps, self._chip, self._options, self._target.logits
        )

    def close(self, reason: str = "it was closed") -> None:
        """Release everything that the device holds; later runs raise DeviceLostError."""
        for block in range(len(self.blocks)):
            self.blocks.release(block, "prefill")
            self.blocks.release(block, "decode")
        self.head.release()
        self._closed = self._closed or reason

    def prefill(
        self,
        token_ids: NDArray[np.uint32],
        graphs: Literal["both", "prefill", "decode"] = "both",
        *,
        on_logits: OnLogits = None,
        switch: str = "auto",
        memory_budget: int | None = None,
    ) -> SwitchReport | None:
        """Compute and commit tokens, a chunk after another; as of `OrtSession`.

        Raises:
            DeviceLostError: The device failed, now or before: the session is closed.
        """
        with self._device():
            return super().prefill(
                token_ids, graphs, on_logits=on_logits, switch=switch, memory_budget=memory_budget
            )

    def step(self, inputs: StepInputs, while_waiting: WhileWaiting = None) -> NDArray[np.float32]:
        """Run the decode graph that `inputs` belongs to; as of `OrtSession`.

        Raises:
            DeviceLostError: The device failed, now or before: the session is closed.
        """
        with self._device():
            return super().step(inputs, while_waiting)

    @contextmanager
    def _device(self) -> Iterator[None]:
        """Close the session when the device fails within the block.

        Raises:
            DeviceLostError: It failed, now or earlier.
        """
        if self._closed is not None:
            raise DeviceLostError(f"the session is closed: {self._closed}")
        try:
            yield
        except DeviceLostError as error:
            self.close(str(error))
            raise

    def _chunk_buffers(self, remaining: int, graphs: str) -> Buffers:
        # A run costs about the same however few of its rows are used.
        if graphs == "both" and remaining > self.widths[-1]:
            return self._chunk
        return super()._chunk_buffers(remaining, graphs)


def _target(bundle: Bundle, soc: str | None) -> QnnTarget:
    """The bundle's chip and encodings; warns of what is not exact.

    Raises:
        BundleError: It is for CPU, or for another chip.
    """
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
