"""A bundle on Qualcomm's HTP: the same contract as on CPU, in the device's own integers.

In: a bundle, and buffers. Out: integers, as the graphs take and give them, and logits as real
numbers. Each graph of a block is a session of its own, from its context binary if there is one;
otherwise the provider compiles the graph, which takes time.

New keys and values are outputs, which the host copies to the cache: fixed slots, integers. Slot `s`
holds the token at position `s`: positions and mask are inputs of the graphs, so that tokens may
stand at the left end, where none has to move. Graphs of different widths may read caches of
different lengths; each length then has arrays of its own, and tokens are committed to all of them.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.qnn import CacheEncodings, QnnTarget, Soc
from coordgen_rs.errors import BundleError, DeviceLostError, ProviderError
from coordgen_rs.runtime.caches.kv_cache import Cache, Pair
from coordgen_rs.runtime.device import Buffers, Device, GraphName
from coordgen_rs.runtime.onnx_runtime import cpu_session, ort_value
from coordgen_rs.runtime.qnn.options import QnnOptions
from coordgen_rs.runtime.qnn.provider import (
    QnnVersion,
    check_available,
    is_emulator,
    qnn_session,
    version,
)

Axes = tuple[int, int, int, int]

BY_ROWS: tuple[Axes, Axes] = (0, 1, 2, 3), (0, 1, 2, 3)
"""Keys and values are both `(1, kv_heads, slots, head_dim)`."""
KEYS_BY_DIM: tuple[Axes, Axes] = (1, 0, 3, 2), (1, 0, 2, 3)
"""Keys are `(kv_heads, 1, head_dim, slots)`, and values `(kv_heads, 1, slots, head_dim)`."""


class IntegerCache(Cache):
    """Cache of one request, all layers, as the integers that the graphs read.

    Args:
        encodings: The encodings of each layer.
        num_kv_heads: Heads of keys and values.
        head_dim: Width of a head.
        slots: Slots that the graph of each width reads.
        layout: How the graphs lay out keys and values: the axes of `BY_ROWS`, reordered. The same
            order must lead back.
    """

    def __init__(
        self,
        encodings: Sequence[CacheEncodings],
        num_kv_heads: int,
        head_dim: int,
        slots: Mapping[int, int],
        layout: tuple[Axes, Axes] = BY_ROWS,
    ) -> None:
        self._encodings, self._heads, self._head_dim = encodings, num_kv_heads, head_dim
        self._slots, self._layout = slots, layout
        self._arrays = {size: self._zeros(size, is_past=True) for size in set(slots.values())}
        self._new = {rows: self._zeros(rows, is_past=False) for rows in slots}
        self._views = {size: self._by_rows(arrays) for size, arrays in self._arrays.items()}
        self._new_views = {rows: self._by_rows(arrays) for rows, arrays in self._new.items()}
        longest = self._views[max(self._views)]
        super().__init__(longest)
        self._last = list(longest)
        self._stored_until = [0] * len(encodings)

    def _zeros(self, size: int, *, is_past: bool) -> list[Pair]:
        """Arrays of all layers that hold zeros, in the graphs' layout."""
        shape = (1, self._heads, size, self._head_dim)
        keys, values = (tuple(shape[axis] for axis in axes) for axes in self._layout)
        arrays = []
        for layer in self._encodings:
            key, value = (layer.key, layer.value) if is_past else (layer.key_new, layer.value_new)
            of_keys = np.full(keys, key.zero_point, key.dtype)
            arrays.append((of_keys, np.full(values, value.zero_point, value.dtype)))
        return arrays

    def _by_rows(self, arrays: Iterable[Pair]) -> list[Pair]:
        """The same memory as `BY_ROWS`."""
        of_keys, of_values = self._layout
        return [(keys.transpose(of_keys), values.transpose(of_values)) for keys, values in arrays]

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        every = [pair for arrays in self._arrays.values() for pair in arrays]
        return sum(array.nbytes for pair in every for array in pair)

    def past(self, rows: int) -> list[Pair]:
        """Per layer the arrays that the graph of a width reads; the same in every call."""
        return self._arrays[self._slots[rows]]

    def new_rows(self, rows: int) -> list[Pair]:
        """Per layer the arrays that the graph of a width writes; the same in every call."""
        return self._new[rows]

    def note(self, layers: Iterable[int], rows: int) -> None:
        """Take the output of a step of that width, for some layers, as what `commit` is about."""
        for layer in layers:
            self._last[layer] = self._new_views[rows][layer]
            self._stored_until[layer] = 0

    def store(self, layers: Iterable[int], rows: int, start: int) -> None:
        """Copy the output of a part of a chunk to the slots from `start` on, not committed.

        Later parts of the same chunk read it there.
        """
        for layer in layers:
            self._last[layer] = self._new_views[rows][layer]
            self._copy(layer, slice(rows), start)
            self._stored_until[layer] = start + rows

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Append the given rows of the last step, in path order.

        Rows `0 .. n-1` of a chunk that was stored in parts are already in their slots.
        """
        is_canonical = np.array_equal(rows, np.arange(len(rows)))
        for layer, stored_until in enumerate(self._stored_until):
            if not is_canonical or self.length + len(rows) > stored_until:
                self._copy(layer, rows, self.length)
        self.length += len(rows)

    def put(self, layers: Sequence[Pair], length: int) -> None:
        """Commit the first `length` tokens of copies, in place of all that is there."""
        self.length = 0
        for views in self._views.values():
            for arrays, saved in zip(views, layers, strict=True):
                for array, copy in zip(arrays, saved, strict=True):
                    array[:, :, :length] = copy[:, :, :length]
        self.length = length

    def _copy(self, layer: int, rows: slice | NDArray[np.uint32], start: int) -> None:
        """Copy rows of the last step to the slots from `start` on, as far as there are any."""
        layout = self._encodings[layer]
        encodings = ((layout.key, layout.key_new), (layout.value, layout.value_new))
        for index, (encoding, new_encoding) in enumerate(encodings):
            taken = self._last[layer][index][:, :, rows]
            if encoding != new_encoding:  # not tied: the past is read under another encoding
                taken = encoding.quantize(new_encoding.dequantize(taken))
            for views in self._views.values():
                target = views[layer][index][:, :, start : start + taken.shape[2]]
                target[:] = taken[:, :, : target.shape[2]]


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
    NDArray[np.int64], NDArray[np.int64], dict[str, NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]
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
