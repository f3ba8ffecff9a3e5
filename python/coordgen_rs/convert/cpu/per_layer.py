"""Embeddings of layers in a graph: what each adds to the stream of a token's second embedding.

In: the names of the stream and of what the host has looked up, and where weights are. Out: nodes.
What a layer reads is half of the table's, and half of what the embedded token itself is projected
to: norms and the table's scale hold these shares (`stored.py`). It is gated by the stream.
"""

from collections.abc import Sequence

import onnx

from coordgen_rs.bundle.per_layer import EMBEDDED, PER_LAYER
from coordgen_rs.convert.cpu.linear import ROWS, LayerGraph, Norm, Rows
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.graph_builder import float_info
from coordgen_rs.convert.stored import StoredPerLayer, StoredPerLayerInputs

_ANY = -1


def per_layer_infos(model: ModelConfig) -> list[onnx.ValueInfoProto]:
    """What a block reads; nothing where layers have no embeddings."""
    if not model.per_layer_size:
        return []
    all_layers = model.num_layers * model.per_layer_size
    return [
        float_info(EMBEDDED, 1, 1, ROWS, model.hidden_size),
        float_info(PER_LAYER, 1, 1, ROWS, all_layers),
    ]


def per_layer_parts(
    graph: LayerGraph, model: ModelConfig, stored: StoredPerLayerInputs, layers: range
) -> Sequence[str]:
    """What each of some consecutive layers reads, `(1, M, per_layer_size)`."""
    size = model.per_layer_size
    apart = graph.integers(1, _ANY, len(layers), size)
    projected = graph.product("per_layer.projected", Rows(EMBEDDED), stored.projection)
    projected = graph.node("Reshape", [projected, apart], "per_layer.projected_apart")
    # The reference divides by the root of the hidden size before; so does a larger epsilon.
    epsilon = model.rms_norm_eps * model.hidden_size
    normed = graph.normed(projected, Norm("per_layer.norm", stored.norm, epsilon))
    first, last = (graph.integers(layer * size) for layer in (layers.start, layers.stop))
    looked_up = graph.node(
        "Slice", [PER_LAYER, first, last, graph.integers(3)], "per_layer.looked_up"
    )
    looked_up = graph.node("Reshape", [looked_up, apart], "per_layer.looked_up_apart")
    both = graph.node("Add", [normed, looked_up], "per_layer.both")
    together = graph.integers(1, _ANY, len(layers) * size)
    both = graph.node("Reshape", [both, together], "per_layer.together")
    parts = [f"layer_{layer}.per_layer" for layer in layers]
    if len(layers) == 1:
        return [both]
    graph.split("Split", [both], parts, axis=-1, num_outputs=len(layers))
    return parts


def with_part(
    graph: LayerGraph,
    model: ModelConfig,
    stored: StoredPerLayer,
    name: str,
    stream: str,
    part: str,
) -> str:
    """The stream plus what a layer makes of its part of the embedding."""
    gate = graph.product(f"{name}.per_layer_gate", Rows(stream), stored.gate)
    both = graph.node("Concat", [gate, part], f"{name}.per_layer_gated", axis=-1)
    rows = Rows(both, gate=model.activation)
    added = graph.product(f"{name}.per_layer_added", rows, stored.projection)
    norm = Norm(f"{name}.per_layer_norm", stored.norm, model.rms_norm_eps)
    return graph.node("Add", [stream, graph.normed(added, norm)], f"{name}.with_per_layer")
