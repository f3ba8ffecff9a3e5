"""Whether a graph of a bundle for CPU is the one that its manifest describes.

In: a loaded graph, and the manifest. Out: nothing, or a `BundleError` before ONNX Runtime is given
arrays of other shapes. Names and shapes are those of `convert/cpu/graph.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnxruntime

from coordgen_rs.bundle.layers import EMBEDDED, PER_LAYER, experts_input
from coordgen_rs.bundle.manifest import BlockFiles, Manifest, ModelShape
from coordgen_rs.bundle.rope import QUERY_SCALE
from coordgen_rs.errors import BundleError

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
