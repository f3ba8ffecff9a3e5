"""A bundle on ONNX Runtime's CPU provider: the device of most sessions.

In: a bundle. Out: a device whose graphs write keys and values to absolute slots, in place. A graph
that is not the one which the manifest describes is a `BundleError` before ONNX Runtime is given
arrays of other shapes: names and shapes are those of `convert/cpu/graph.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.layers import EMBEDDED, PER_LAYER, experts_input
from coordgen_rs.bundle.manifest import BlockFiles, Manifest, ModelShape
from coordgen_rs.bundle.rope import QUERY_SCALE
from coordgen_rs.errors import BundleError, ProviderError
from coordgen_rs.runtime.caches.kv_cache import KV_FORMS, KvCache
from coordgen_rs.runtime.caches.states import StateArrays
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


Shape = tuple[int | str | None, ...]
"""None for a size that differs from run to run, a text for one of that name."""
Shapes = Mapping[str, Shape]


def row_sizes(manifest: Manifest) -> dict[str, int]:
    """Number of columns of the inputs with a row per token, by name."""
    sizes: dict[str, int] = {}
    rotations = {"": manifest.inv_freq, "window_": manifest.window_inv_freq}
    for prefix, inv_freq in rotations.items():
        if inv_freq is not None:
            sizes |= dict.fromkeys((f"{prefix}cos", f"{prefix}sin"), len(inv_freq))
    if manifest.query_scaling is not None:
        sizes[QUERY_SCALE] = 1
    if manifest.per_layer is not None:
        sizes[EMBEDDED] = manifest.model.hidden_size
        sizes[PER_LAYER] = manifest.model.num_layers * manifest.per_layer.size
    return sizes


def check_block(
    session: onnxruntime.InferenceSession, path: Path, block: BlockFiles, manifest: Manifest
) -> None:
    """Compare a block's graph with the manifest.

    Raises:
        BundleError: It reads or writes something else; the message names the file.
    """
    _check(session, path, *_block_shapes(block, manifest))


def _block_shapes(block: BlockFiles, manifest: Manifest) -> tuple[Shapes, Shapes]:
    """What a block reads, and what it writes: its hidden states, and what it updates in place."""
    hidden, read = (1, None, manifest.model.hidden_size), dict[str, Shape]()
    updated = updated_shapes(block, manifest)
    paths = {"parents": None, "sequences": None, "lengths": None, "span": 2}
    if manifest.recurrent is not None and not {*manifest.recurrent.layers}.isdisjoint(block.layers):
        paths |= {"reads": None, "pending": None}
    for region in [] if manifest.experts is None else manifest.experts.layers:
        if region.layer in block.layers:
            read[experts_input(region.layer)] = (region.num_bytes,)
    for layer in block.layers if manifest.caches is not None else []:  # maybe of earlier blocks
        read |= _cache_shapes(manifest.cache_of(layer).written_by, manifest)
    inputs: Shapes = {
        "hidden": hidden,
        **{name: (1, 1, None, size) for name, size in row_sizes(manifest).items()},
        **{name: (size,) for name, size in paths.items()},
        **updated,
        **read,
    }
    return inputs, {"hidden_out": hidden} | {f"{name}_out": it for name, it in updated.items()}


def updated_shapes(block: BlockFiles, manifest: Manifest) -> dict[str, Shape]:
    """What the layers of a block read and write in place: caches, or states and updates."""
    recurrent, shapes = manifest.recurrent, dict[str, Shape]()
    for layer in block.layers:
        if recurrent is None or layer not in recurrent.layers:
            if manifest.cache_of(layer).written_by == layer:
                shapes |= _cache_shapes(layer, manifest)
            continue
        for sizes in recurrent.states:
            state, updates = sizes.inputs(layer)
            shapes |= {state: (None, 2, sizes.num_bytes), updates: (2, sizes.updates_name)}
    return shapes


def _cache_shapes(layer: int, manifest: Manifest) -> dict[str, Shape]:
    """The keys and values of a layer; bytes are of the form that they are opened with."""
    cache = None, manifest.cache_of(layer).num_kv_heads, None, None
    return {f"key_{layer}": cache, f"value_{layer}": cache}


def check_head(session: onnxruntime.InferenceSession, path: Path, model: ModelShape) -> None:
    """Compare the head's graph with the manifest.

    Raises:
        BundleError: It reads or writes something else; the message names the file.
    """
    inputs = {"hidden": (1, None, model.hidden_size)}
    _check(session, path, inputs, {"logits": (1, None, model.vocab_size)})


def check_mtp(
    layer: onnxruntime.InferenceSession,
    head: onnxruntime.InferenceSession,
    paths: tuple[Path, Path],
    manifest: Manifest,
    num_scored: int,
) -> None:
    """Compare the graphs of a head for further tokens with the manifest.

    Raises:
        BundleError: One reads or writes something else; the message names the file.
    """
    of_block = manifest.blocks[0]
    experts = manifest.experts
    if experts is not None:
        own = None if manifest.mtp is None else manifest.mtp.experts
        experts = replace(experts, layers=[] if own is None else [replace(own, layer=0)])
    alone = replace(manifest, recurrent=None, experts=experts)
    inputs, outputs = _block_shapes(replace(of_block, first_layer=0, num_layers=1), alone)
    hidden = (1, None, manifest.model.hidden_size)
    inputs = {**inputs, "previous": hidden, "is_own": (1, None, 1)}
    _check(layer, paths[0], inputs, outputs)
    _check(head, paths[1], {"hidden": hidden}, {"logits": (1, None, num_scored)})


def check_assistant(session: onnxruntime.InferenceSession, path: Path, manifest: Manifest) -> None:
    """Compare the graph of a drafter beside a model with the manifest.

    Raises:
        BundleError: It reads or writes something else; the message names the file.
    """
    files, model = manifest.assistant, manifest.model
    if files is None:
        raise BundleError(f"{path} is no part of its bundle: the manifest has no drafter")
    state = 1, None, model.hidden_size
    rotations = row_sizes(replace(manifest, per_layer=None))
    inputs: dict[str, Shape] = {
        **dict.fromkeys(("embedded", "previous"), state),
        "is_own": (1, None, 1),
        **{name: (1, 1, None, size) for name, size in rotations.items()},
        **{"parents": (None,), "sequences": (None,), "lengths": (None,), "span": (2,)},
    }
    for layer in files.reads:
        inputs |= _cache_shapes(layer, manifest)
    outputs: dict[str, Shape] = {"state": state}
    if files.clusters is None:
        outputs["logits"] = 1, None, model.vocab_size
    else:
        outputs["hidden"] = 1, None, files.hidden_size
        outputs["cluster_scores"] = 1, None, files.clusters.num
    _check(session, path, inputs, outputs)


def _check(
    session: onnxruntime.InferenceSession, path: Path, inputs: Shapes, outputs: Shapes
) -> None:
    for arguments, expected in ((session.get_inputs, inputs), (session.get_outputs, outputs)):
        try:
            shapes = {argument.name: argument.shape for argument in arguments()}
        except UnicodeDecodeError as error:
            raise BundleError(f"{path} does not fit its manifest: {error}") from error
        for name in sorted(shapes.keys() ^ expected.keys()):
            raise BundleError(f"{path} does not fit its manifest: one of them lacks {name}")
        for name, shape in expected.items():
            if not _fits(shapes[name], shape):
                raise BundleError(
                    f"{path} does not fit its manifest: {name} is {shapes[name]}, expected {shape}"
                )


def _fits(found: Sequence[int | str | None], expected: Shape) -> bool:
    pairs = zip(found, expected, strict=False)
    return len(found) == len(expected) and all(size is None or one == size for one, size in pairs)
