"""A bundle on Qualcomm's HTP: the same contract as on CPU, in the device's own integers."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.manifest import CompiledGraphs, QnnTarget
from coordgen_rs.errors import BundleError, ProviderError
from coordgen_rs.runtime.buffers import Buffers
from coordgen_rs.runtime.qnn.blocks import QnnBlocks, load_qnn_graph
from coordgen_rs.runtime.qnn.buffers import QnnBuffers
from coordgen_rs.runtime.qnn.head import QnnHead
from coordgen_rs.runtime.qnn.kv_cache import IntegerCache
from coordgen_rs.runtime.qnn.onnx_runtime import QnnVersion, check_available, is_emulator, version
from coordgen_rs.runtime.qnn.options import QnnOptions, Soc


class QnnDevice:
    """A bundle on the QNN provider.

    Args:
        bundle: An opened bundle that was exported for QNN.
        soc: Name of the chip; None takes the bundle's own.
        options: How to compile and run.
        recompile: Whether to compile graphs again if their binaries do not fit, instead of failing.

    Attributes:
        allowed_commits: Ways to commit that are allowed: compact only if it is exact.

    Raises:
        BundleError: The bundle is not for QNN, or for another chip.
        ProviderError: The provider is missing or cannot run here; or the context binaries were made
            by another version.
    """

    provider = "qnn"
    is_host = False
    reads_tokens = False

    def __init__(
        self,
        bundle: Bundle,
        *,
        soc: str | None = None,
        options: QnnOptions | None = None,
        recompile: bool = False,
    ) -> None:
        target = _target(bundle, soc)
        self._options = options or QnnOptions()
        self._chip = Soc(target.soc, target.soc_model, target.htp_arch, "")
        ready: dict[str, onnxruntime.InferenceSession] = {}
        if self._options.on_cpu:
            target = replace(target, compiled=None, shared=None)
        else:
            check_available()
            target = _usable(bundle, target, recompile)
            target, ready = _loadable(bundle, target, self._chip, self._options)
        self.bundle = replace(bundle, manifest=replace(bundle.manifest, qnn=target))
        manifest, model = self.bundle.manifest, self.bundle.manifest.model
        self._target = target
        is_exact = target.is_exact and not self._options.on_cpu
        self.allowed_commits = ("canonical", "compact") if is_exact else ("canonical",)
        slots = dict.fromkeys(manifest.widths, manifest.slots)
        self.cache = IntegerCache(target.caches, model.num_kv_heads, model.head_dim, slots)
        self.blocks = QnnBlocks(self.bundle, self._chip, self.cache, self._options, ready)

    def rope_tables(self) -> dict[str, NDArray[Any]]:
        """Same as in `Bundle`, but u16 in the graphs' encoding."""
        rotation = self._target.rotation
        tables = self.bundle.rope_tables()
        return {name: rotation.quantize(table) for name, table in tables.items()}

    def buffers(self, rows: int) -> QnnBuffers:
        """New buffers for `rows` tokens."""
        return QnnBuffers.of_rows(rows, self.bundle, self._target)

    def load_head(self, steps: Sequence[Buffers]) -> QnnHead:
        """Load a head for all decode widths; it reads the hidden states of steps.

        Raises:
            ProviderError: The provider cannot load it; the message names the file.
        """
        return QnnHead(
            self.bundle, self.blocks, steps, self._chip, self._options, self._target.logits
        )


def _target(bundle: Bundle, soc: str | None) -> QnnTarget:
    """The bundle's chip and encodings; warns of what is not exact.

    Raises:
        BundleError: It is for CPU, or for another chip.
    """
    target = bundle.manifest.qnn
    if target is None:
        raise BundleError(f"{bundle.shown} is for CPU: export it with --provider qnn")
    if soc not in (None, target.soc):
        raise BundleError(f"{bundle.shown} is for {target.soc}, not for {soc}: export it again")
    warn_if_inexact(bundle, target)
    return target


def warn_if_inexact(bundle: Bundle, target: QnnTarget) -> None:
    """Warn the caller of a device if its widths may differ."""
    if not target.is_exact:
        warnings.warn(
            f"{bundle.shown}: encodings of past and new keys and values differ, or have no middle "
            "zero point, so drafts are committed the canonical way only, and widths may differ",
            stacklevel=4,
        )


def _usable(bundle: Bundle, target: QnnTarget, recompile: bool) -> QnnTarget:
    """The target with only those context binaries that can be loaded here.

    Raises:
        ProviderError: They cannot, and may not be compiled again.
    """
    compiled = target.compiled if _fits(bundle, target, target.compiled, recompile) else None
    shared = target.shared if _fits(bundle, target, target.shared, recompile) else None
    return replace(target, compiled=compiled, shared=shared)


def _loadable(
    bundle: Bundle, target: QnnTarget, chip: Soc, options: QnnOptions
) -> tuple[QnnTarget, dict[str, onnxruntime.InferenceSession]]:
    """The target without weight-shared binaries if they cannot be loaded here.

    Whether a device can, only trying tells. The session that was tried is given back by the file
    of its graph, so that it need not be loaded again. The emulator cannot, and may end the process
    (measured with onnxruntime-qnn 2.7), so it is not asked.
    """
    if target.shared is None:
        return target, {}
    reason = "the HTP emulator cannot"
    if not is_emulator():
        file = next(iter(target.shared.graphs))
        trial = replace(bundle, manifest=replace(bundle.manifest, qnn=target))
        try:
            return target, {file: load_qnn_graph(trial, file, chip, options)}
        except ProviderError as error:
            reason = str(error)
    warnings.warn(
        f"{bundle.shown}: weight-shared binaries cannot be loaded here, those of single graphs are "
        f"used: {reason}",
        stacklevel=4,
    )
    return replace(target, shared=None), {}


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
        f"{bundle.shown}: its context binaries were made by onnxruntime-qnn {made.provider} (QNN "
        f"{made.qnn}) for chip {made_for[0]}, here are {here.provider} ({here.qnn}) and chip "
        f"{chip[0]}: run coordgen compile again, or allow recompiling"
    )
