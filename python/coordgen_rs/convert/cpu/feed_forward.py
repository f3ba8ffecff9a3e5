"""What a decoder layer has behind its attention, in a graph for CPU.

In: the names of the stream and of what the host has looked up. Out: nodes: a gated feed-forward; a
mixture of experts, which a router chooses for each row; what a layer adds of a token's second
embedding.

What a layer reads of such an embedding is half of the table's, and half of what the embedded token
itself is projected to: norms and the table's scale hold these shares (`layers.py`). It is gated by
the stream.
"""

from coordgen_rs.bundle.layers import EMBEDDED, PER_LAYER, experts_input
from coordgen_rs.convert.families.config.experts import Experts
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.graph_builder import LayerGraph

_ANY = -1


def feed_forward(graph: LayerGraph, model: ModelConfig, number: int, stream: str) -> str:
    """The stream plus the gated feed-forward, or plus a mixture of experts."""
    name = f"layer_{number}"
    norm, gated, linears = f"{name}.ffn_norm", "", graph.weights.linears
    if f"{name}.gate_up" in linears:
        gated = graph.product(f"{name}.gate_up", stream, norm=norm)
    if model.experts is not None and number in graph.weights.experts:
        beside = ""
        if gated:
            beside = graph.product(f"{name}.down", gated, gate=model.activation)
        return _mixture(graph, model, model.experts, number, stream, beside)
    if not gated:
        return stream
    return joined(graph, model, f"{name}.down", gated, model.activation, stream)


def joined(graph: LayerGraph, model: ModelConfig, name: str, x: str, gate: str, stream: str) -> str:
    """The stream plus what layer `name` gives for rows, normed and scaled."""
    norm = f"{name}.norm"
    has_norm = f"{norm}.weight" in graph.weights.tensors
    if not has_norm and model.residual_scale == 1:
        return graph.product(name, x, gate=gate, stream=stream)
    added = graph.product(name, x, gate=gate)
    if has_norm:
        added = graph.normed(added, norm)
    if model.residual_scale != 1:
        # Not folded into weights: those of a checkpoint may be integers, which stay as they are.
        added = graph.node("Mul", [added, graph.number(model.residual_scale)], f"{name}.scaled")
    return graph.node("Add", [stream, added], f"{name}.added")


def _mixture(
    graph: LayerGraph,
    model: ModelConfig,
    experts: Experts,
    number: int,
    stream: str,
    beside: str,
) -> str:
    """The stream plus what its experts give for each row; the operator is of this package's core.

    `beside` is what every row gets besides, named; empty where there is nothing.
    """
    name, gate = f"layer_{number}", ""
    norm, weights = f"{name}.ffn_norm", graph.weights
    scores = graph.product(f"{name}.router", stream, norm=norm)
    if f"{name}.beside_gate" in weights.linears:
        gate = graph.product(f"{name}.beside_gate", stream, norm=norm)
    biases = [graph.weight(f"{name}.{it}") for it in ("choice_bias", "up_bias", "down_bias")]
    norm = graph.weight(f"{norm}.weight")
    return graph.node(
        "Experts",
        [stream, norm, scores, *biases, stream, beside, gate, experts_input(number), "span"],
        f"{name}.experts",
        columns=weights.linears[f"{name}.router"].in_features,
        size=experts.size,
        experts=experts.num,
        chosen=experts.chosen,
        types=",".join(weights.experts[number].types),
        gate=experts.gate,
        epsilon=model.rms_norm_eps if norm else 0.0,
        scoring=experts.scoring,
        normed=int(experts.is_normed),
        share_epsilon=experts.share_epsilon,
        share_scale=experts.share_scale,
        residual_scale=float(model.residual_scale),
    )


def per_layer_parts(graph: LayerGraph, model: ModelConfig, layers: range) -> list[str]:
    """What each of some consecutive layers reads of an embedding, `(1, M, per_layer_size)`."""
    size = model.per_layer_size
    apart = graph.integers(1, _ANY, len(layers), size)
    projected = graph.product("per_layer.projected", EMBEDDED)
    projected = graph.node("Reshape", [projected, apart], "per_layer.projected_apart")
    # The reference divides by the root of the hidden size before; so does a larger epsilon.
    normed = graph.normed(projected, "per_layer.norm", model.rms_norm_eps * model.hidden_size)
    first, last = (graph.integers(layer * size) for layer in (layers.start, layers.stop))
    looked_up = graph.node(
        "Slice", [PER_LAYER, first, last, graph.integers(3)], "per_layer.looked_up"
    )
    looked_up = graph.node("Reshape", [looked_up, apart], "per_layer.looked_up_apart")
    both = graph.node("Add", [normed, looked_up], "per_layer.both")
    together = graph.integers(1, _ANY, len(layers) * size)
    both = graph.node("Reshape", [both, together], "per_layer.together")
    if len(layers) == 1:
        return [both]
    parts = [f"layer_{layer}.per_layer" for layer in layers]
    graph.split("Split", [both], parts, axis=-1, num_outputs=len(layers))
    return parts


def with_per_layer(graph: LayerGraph, model: ModelConfig, name: str, stream: str, part: str) -> str:
    """The stream plus what a layer makes of its part of the embedding."""
    gate = graph.product(f"{name}.per_layer_gate", stream)
    both = graph.node("Concat", [gate, part], f"{name}.per_layer_gated", axis=-1)
    added = graph.product(f"{name}.per_layer_added", both, gate=model.activation)
    return graph.node(
        "Add", [stream, graph.normed(added, f"{name}.per_layer_norm")], f"{name}.with_per_layer"
    )
