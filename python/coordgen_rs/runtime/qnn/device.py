"""A bundle on Qualcomm's HTP: the same contract as on CPU, in the device's own integers.

In: a bundle, and buffers. Out: integers, as the graphs take and give them, and logits as real
numbers. Each graph of a block is a session of its own, from its context binary if there is one;
otherwise the provider compiles the graph, which takes time. New keys and values are outputs, which
the host copies to the cache.
"""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.qnn import QnnTarget, Soc
from coordgen_rs.errors import BundleError, DeviceLostError, ProviderError
from coordgen_rs.runtime.device import Buffers, Device, GraphName
from coordgen_rs.runtime.onnx_runtime import cpu_session, ort_value
from coordgen_rs.runtime.qnn.kv_cache import IntegerCache
from coordgen_rs.runtime.qnn.options import QnnOptions
from coordgen_rs.runtime.qnn.provider import (
    QnnVersion,
    check_available,
    is_emulator,
    qnn_session,
    version,
)

_SHARED = {"ep.share_ep_contexts": "1"}


class BoundMask:
    """The mask that graphs of one width read, kept as the core's, but in integers.

    Args:
        array: `(..., rows, columns)`, the graphs' input.
        target: How they read it: the integers of a slot that a row sees, and of another.
        is_native: Whether new rows stand in their slots, and not behind all slots.
    """

    def __init__(self, array: NDArray[Any], target: QnnTarget, *, is_native: bool = False) -> None:
        self._array, self._is_native, self._past_len = array, is_native, 0
        values = np.array([0, target.mask_value], np.float32)
        self._seen, self._unseen = map(int, target.mask.quantize(values))
        array.fill(self._unseen)

    def fill(self, drafted: NDArray[np.float32], start: int) -> None:
        """Show every row all slots before the run's, and of the new rows those on its path.

        Args:
            drafted: The core's mask `(1, 1, rows, slots) f32`, 0 for a slot that a row sees.
            start: The slot of row 0.
        """
        mask, seen, unseen = self._array, self._seen, self._unseen
        rows, columns = mask.shape[-2:]
        mask[..., self._past_len : start] = seen
        mask[..., start : self._past_len] = unseen
        first = start if self._is_native else columns - rows
        new = drafted[..., start : start + rows] == 0
        mask[..., first : first + rows] = np.where(new, seen, unseen)
        mask[..., first + rows :] = unseen
        self._past_len = start


class QnnBuffers(Buffers):
    """What the graphs read and write in one run; all but ids and the drafted mask are uint16.

    Args:
        arrays: Those of `Buffers`, in its order; the drafted mask has absolute slots as columns.
        slots: Slots of the cache; the graphs' mask is `(1, 1, rows, slots + rows) u16`.
        target: How the graphs read the mask.
    """

    def __init__(self, *arrays: Any, slots: int, target: QnnTarget) -> None:
        super().__init__(*arrays)
        self._slots, self._target = slots, target
        mask = np.zeros((1, 1, self.rows, slots + self.rows), np.uint16)
        self._bound_mask = BoundMask(mask, target)
        self.values["mask"] = ort_value(mask)

    def before_run(self) -> None:
        """Turn the drafted mask into the graphs' own."""
        self._bound_mask.fill(self.by_row["mask"], int(self.write_index[0]))

    def _of(self, *arrays: Any) -> "QnnBuffers":
        return QnnBuffers(*arrays, slots=self._slots, target=self._target)


def masked_arrays(
    rows: int, columns: int, hidden_size: int, dtype: str
) -> tuple[
    NDArray[np.int64],
    NDArray[np.int64],
    dict[str, NDArray[Any]],
    tuple[NDArray[Any], NDArray[Any]],
]:
    """Ids, positions, the drafted mask and hidden states: the first arguments of `Buffers`.

    Args:
        rows: Of the run.
        columns: Of the mask, as many at every width, so that a narrow step can be run under a wide
            graph.
        hidden_size: Of the hidden states.
        dtype: Of the hidden states.
    """
    ids, positions = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    mask, size = np.zeros((1, 1, rows, columns), np.float32), (1, rows, hidden_size)
    return ids, positions, {"mask": mask}, (np.zeros(size, dtype), np.zeros(size, dtype))


class HtpDevice(Device):
    """Graphs on Qualcomm's HTP, whoever made them.

    Args:
        bundle: What is run.
        target: Its chip and encodings.
        cache: Keys and values that the graphs read.
        options: How to compile and run.
        is_shared: Whether a block's graphs share a context binary, which is loaded as a whole.

    Attributes:
        allowed_commits: Ways to commit that are allowed: compact only if it is exact.
        Others are those of `Device`.
    """

    provider = "qnn"
    is_host = False
    cache: IntegerCache
    _logits_type = np.uint16
    _block_name, _first_block = "block", 0

    def __init__(
        self,
        bundle: Bundle,
        target: QnnTarget,
        cache: IntegerCache,
        options: QnnOptions,
        *,
        is_shared: bool,
    ) -> None:
        super().__init__(bundle, cache, is_shared=is_shared)
        self._target, self._options = target, options
        self._chip = _chip(target)
        if target.is_exact and not options.on_cpu:
            self.allowed_commits = ("canonical", "compact")
        self._real = np.zeros((0, bundle.manifest.model.vocab_size), np.float32)

    @classmethod
    def installed(cls) -> str:
        """The provider and Qualcomm's libraries; same as in `Device`."""
        check_available()
        found = version()
        return f"onnxruntime-qnn {found.provider}, QNN {found.qnn}"

    @classmethod
    def is_emulator(cls) -> bool:
        """Whether this is Qualcomm's emulator."""
        return is_emulator()

    @classmethod
    def conditions(cls, options: QnnOptions | None) -> list[str]:
        """Same as in `Device`; where ONNX Runtime's own kernels compute, no version matters."""
        options = options or QnnOptions()
        return [*([] if options.on_cpu else [str(version())]), str(options)]

    @classmethod
    def facts(cls, bundle: Bundle) -> dict[str, object]:
        """Versions and the chip; same as in `Device`."""
        found, target = version(), bundle.manifest.qnn
        return {
            "onnxruntime_qnn": found.provider,
            "qnn": found.qnn,
            "soc": None if target is None else target.soc,
            "is_emulator": is_emulator(),
        }

    def run(self, block: int, graph: GraphName, buffers: Buffers) -> None:
        """Compute one block: hidden states, keys and values of all rows of `buffers`.

        Raises:
            DeviceLostError: The device failed.
        """
        buffers.before_run()
        super().run(block, graph, buffers)
        layers = self.bundle.manifest.blocks[block].layers
        if buffers.is_part:
            self.cache.store(layers, buffers.rows, int(buffers.write_index[0]))
        else:
            self.cache.note(layers, buffers.rows)

    def logits(self, buffers: Buffers, first: int, end: int) -> NDArray[np.float32]:
        """Same as in `Device`; the graphs give integers."""
        given = self.integer_logits(buffers, first, end)
        if len(given) > len(self._real):
            self._real = np.zeros(given.shape, np.float32)
        return self._target.logits.dequantize(given, self._real[: len(given)])

    def integer_logits(self, buffers: Buffers, first: int, end: int) -> NDArray[Any]:
        """The integers of some rows' logits, valid until the next call."""
        return super().logits(buffers, first, end)

    def name_failure(self, error: Exception, block: int | None) -> None:
        """Raise what a run has failed with; the graph itself was checked when it was loaded.

        Raises:
            DeviceLostError: Always.
        """
        what = "the head" if block is None else f"{self._block_name} {block + self._first_block}"
        raise DeviceLostError(f"{what}: the device failed during a run: {error}") from error


class QnnDevice(HtpDevice):
    """A bundle on the QNN provider.

    Args:
        bundle: An opened bundle that was exported for QNN.
        soc: Name of the chip; None takes the bundle's own.
        options: How to compile and run.
        recompile: Whether to compile graphs again if their binaries do not fit, instead of failing.

    Raises:
        BundleError: The bundle is not for QNN, or for another chip.
        ProviderError: The provider is missing or cannot run here; or the context binaries were made
            by another version.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        soc: str | None = None,
        options: QnnOptions | None = None,
        recompile: bool = False,
    ) -> None:
        target, options = _target(bundle, soc), options or QnnOptions()
        self._ready: dict[str, onnxruntime.InferenceSession] = {}
        if options.on_cpu:
            target = replace(target, compiled=None, shared=None)
        else:
            check_available()
            target = _usable(bundle, target, recompile)
            target, self._ready = _loadable(bundle, target, options)
        bundle = replace(bundle, manifest=replace(bundle.manifest, qnn=target))
        manifest, model = bundle.manifest, bundle.manifest.model
        slots = dict.fromkeys(manifest.widths, manifest.slots)
        cache = IntegerCache(target.caches, model.num_kv_heads, model.head_dim, slots)
        super().__init__(bundle, target, cache, options, is_shared=target.shared is not None)

    def buffers(self, rows: int) -> QnnBuffers:
        """New buffers for `rows` tokens."""
        manifest, half = self.bundle.manifest, (1, 1, rows, len(self.bundle.manifest.inv_freq))
        ids, positions, by_row, states = masked_arrays(
            rows, manifest.slots + manifest.widths[-1], manifest.model.hidden_size, "uint16"
        )
        by_row |= {name: np.zeros(half, np.uint16) for name in ("cos", "sin")}
        arrays = ids, positions, by_row, states
        return QnnBuffers(*arrays, slots=manifest.slots, target=self._target)

    def rope_tables(self) -> dict[str, NDArray[Any]]:
        """Same as in `Bundle`, but u16 in the graphs' encoding."""
        tables = self.bundle.rope_tables()
        return {name: self._target.rotation.quantize(table) for name, table in tables.items()}

    def open_graph(self, block: int | None, rows: int) -> onnxruntime.InferenceSession:
        """Load the graph of a block for so many rows, or that of the head.

        Raises:
            ProviderError: The provider cannot load it; the message names the file.
        """
        file = self.graph_file(block, rows)
        ready = self._ready.pop(file, None)
        return ready or _load(self.bundle, file, self._target, self._options)

    def bind_layer(self, binding: onnxruntime.IOBinding, layer: int, buffers: Buffers) -> None:
        """Bind the keys and values of a layer: those that are there, and the new rows."""
        rows = buffers.rows
        past, new = self.cache.past(rows)[layer], self.cache.new_rows(rows)[layer]
        for kind, read, written in zip(("key", "value"), past, new, strict=True):
            binding.bind_ortvalue_input(f"{kind}_{layer}", ort_value(read))
            binding.bind_ortvalue_output(f"{kind}_{layer}_new", ort_value(written))


def _load(
    bundle: Bundle, file: str, target: QnnTarget, options: QnnOptions
) -> onnxruntime.InferenceSession:
    """A graph of the bundle, from its context binary if there is one.

    Raises:
        ProviderError: The provider cannot load it; the message names the file.
    """
    if options.on_cpu:
        return cpu_session(bundle.file(file), as_written=True)
    chip = _chip(target)
    if target.shared is not None and file in target.shared.graphs:
        return qnn_session(bundle.file(target.shared.graphs[file]), chip, options, _SHARED)
    files = {} if target.compiled is None else target.compiled.graphs
    return qnn_session(bundle.file(files.get(file, file)), chip, options)


def _chip(target: QnnTarget) -> Soc:
    return Soc(target.soc, target.soc_model, target.htp_arch, "")


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
    here, chip, unfit = version(), (target.soc_model, target.htp_arch), dict[str, Any]()
    for name, binaries in (("compiled", target.compiled), ("shared", target.shared)):
        if binaries is None:
            continue
        made = QnnVersion(binaries.provider_version, binaries.qnn_version)
        if made == here and (binaries.soc_model, binaries.htp_arch) == chip:
            continue
        if not recompile:
            raise ProviderError(
                f"{bundle.shown}: its context binaries were made by onnxruntime-qnn "
                f"{made.provider} (QNN {made.qnn}) for chip {binaries.soc_model}, here are "
                f"{here.provider} ({here.qnn}) and chip {chip[0]}: run coordgen compile again, or "
                "allow recompiling"
            )
        unfit[name] = None
    return replace(target, **unfit)


def _loadable(
    bundle: Bundle, target: QnnTarget, options: QnnOptions
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
        try:
            return target, {file: _load(bundle, file, target, options)}
        except ProviderError as error:
            reason = str(error)
    warnings.warn(
        f"{bundle.shown}: weight-shared binaries cannot be loaded here, those of single graphs are "
        f"used: {reason}",
        stacklevel=4,
    )
    return replace(target, shared=None), {}
