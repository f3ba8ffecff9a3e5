"""The ONNX graphs of a bundle: a block of layers, or the head, for any number of rows.

In: where the weights are, and the model's sizes. Out: a model of a few KB without weights.

A block's inputs (all float32 unless said; M rows, the number of sequences, of slots and of nodes
symbolic; D hidden size):
    hidden (1, M, D); cos, sin (1, 1, M, head_dim / 2);
    window_cos, window_sin as cos, sin: for layers with a sliding window that are rotated otherwise;
    query_scale (1, 1, M, 1): what queries are multiplied by, where they grow with their position;
    parents, sequences (nodes,), lengths (sequences,), span (2,), all int32: which nodes of draft
    trees the rows are, and what each descends from (`src/ort/mod.rs`);
    embedded (1, 1, M, D) and per_layer (1, 1, M, numbers of all layers): where layers have
    embeddings, the token as the first layer reads it, and what the table holds of it;
    for each layer i with attention: key_i, value_i (sequences, num_kv_heads, slots, row_bytes)
    uint8; the bytes of a row are symbolic, and tell in which form it holds a head; of a layer that
    reads those of an earlier one, the earlier one's, where that is in another block;
    for each recurrent layer i, of each of its operators: {name}_state_i (sequences, 2, bytes)
    and {name}_updates_i (2, bytes) uint8; for all of them reads (sequences,), pending (any,),
    int32;
    for each layer i with experts: experts_i (bytes,) uint8, all of them (`bundle/layers.py`).
Its outputs: hidden_out (1, M, D); key_i_out, value_i_out, the caches with the rows' slots
overwritten, and so of states and updates. Bound to the same memory as the inputs they are updated
in place, and nothing is copied. The head: hidden (1, M, D) to logits (1, M, vocab_size).

Why these operators: every row's bits must be the same at every M (measured, see the tests).
- Attention is of this package's core, and so are products, with the norm or the gate before them
  and the residual stream behind: what a row computes depends on the tokens of its path alone, and a
  layer has five nodes. A small model's step takes longer the more it has.
- Norms and factors that some families have behind products are nodes of their own. A norm and the
  sum behind it are two: SkipSimplifiedLayerNormalization rounds otherwise than the norm that begins
  a block, so bits would depend on where a model is cut into blocks.
- Norms over all heads, and the growth of queries, are nodes before attention: its own norms are of
  one head. Growth comes before the rotation, which turns a longer vector by the same angle.
- Each layer's part of an embedded token is projected in one product for a block's layers, and
  normed as rows of a layer; that of the table is added.
- A layer that reads the keys of another one in its block reads what that has written, which is
  therefore computed before.
- The query, key and value layers are one, as are gate and up: fewer, larger products at M = 1.
- One graph with a symbolic M serves all widths: on CPU it is as fast and as exact as a graph per
  width.
What a layer reads of its embedding is half of the table's, and half of what the embedded token
itself is projected to: norms and the table's scale hold these shares (`layers.py`). The stream
gates it.
"""

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from coordgen_rs.bundle.layers import EMBEDDED, PER_LAYER, experts_input
from coordgen_rs.bundle.rope import QUERY_SCALE
from coordgen_rs.convert.cpu.layers import mixed, state_infos
from coordgen_rs.convert.families.model_config import Experts, ModelConfig
from coordgen_rs.convert.graph_builder import ROWS, SEQUENCES, LayerGraph, byte_info, float_info
from coordgen_rs.convert.weight_file import StoredLinear, Weights

OPSET = 24
_FAR_BELOW = -1e30
"""Of a logit: less than any other, and still a number once it was divided by a temperature."""
_SLOTS, _ROW_BYTES, _NODES = "slots", "row_bytes", "nodes"
"""The symbolic dimensions of the graphs' inputs and outputs."""
PATH: dict[str, int | str] = {
    "parents": _NODES,
    "sequences": _NODES,
    "lengths": SEQUENCES,
    "span": 2,
}
"""What attention reads of a step, and how much of it."""
_READS: dict[str, int | str] = {"reads": SEQUENCES, "pending": "pending_nodes"}
"""What recurrent layers read besides."""
_ANY = -1


def block_graph(model: ModelConfig, weights: Weights, layers: range) -> onnx.ModelProto:
    """The graph of consecutive layers of the model."""
    graph, parts = LayerGraph(weights, model.rms_norm_eps), None
    if model.per_layer_size:
        parts = _per_layer_parts(graph, model, layers)
    _, inputs, outputs = decoder(graph, model, layers, "hidden", parts)
    if model.per_layer_size:
        all_layers = model.num_layers * model.per_layer_size
        inputs.append(float_info(EMBEDDED, 1, 1, ROWS, model.hidden_size))
        inputs.append(float_info(PER_LAYER, 1, 1, ROWS, all_layers))
    graph.rename_last("hidden_out")
    return graph.model("block", inputs, outputs, OPSET)


def decoder(
    graph: LayerGraph,
    model: ModelConfig,
    layers: range,
    stream: str,
    per_layer: Sequence[str] | None = None,
) -> tuple[str, list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    """Adds consecutive layers to a graph.

    Args:
        graph: Grows by them.
        model: The sizes of all layers.
        layers: Their numbers.
        stream: The residual stream before them.
        per_layer: What each of them reads of a token's second embedding, if there is one.

    Returns:
        The stream behind them; the inputs of a block, and its outputs.
    """
    inputs = [float_info("hidden", 1, ROWS, model.hidden_size)]
    outputs = [float_info("hidden_out", 1, ROWS, model.hidden_size)]
    tables = {"": model.inv_freq, "window_": model.window_inv_freq}
    for prefix, inv_freq in tables.items():
        half = len(inv_freq or [])
        angles = (f"{prefix}cos", f"{prefix}sin") if half else ()
        inputs += [float_info(angle, 1, 1, ROWS, half) for angle in angles]
    if model.query_scaling is not None:
        inputs.append(float_info(QUERY_SCALE, 1, 1, ROWS, 1))
    path = PATH if model.recurrent_layers.isdisjoint(layers) else PATH | _READS
    inputs += [
        helper.make_tensor_value_info(name, TensorProto.INT32, [size])
        for name, size in path.items()
    ]
    for index, number in enumerate(layers):
        kept = _kept_infos(model, number)
        outputs += [_as_output(info) for info in kept]
        writer = model.cache_of(number).written_by
        if not kept and writer not in layers:  # it shares the caches of one in another block
            names = {info.name for info in inputs}
            inputs += [info for info in _cache_infos(model, writer) if info.name not in names]
        inputs += kept
        if number in graph.weights.experts:
            experts = graph.weights.experts[number]
            inputs.append(byte_info(experts_input(number), experts.num_bytes))
        stream = _mixer(graph, model, number, stream, layers)
        stream = _feed_forward(graph, model, number, stream)
        if per_layer is not None:
            stream = _with_per_layer(graph, model, f"layer_{number}", stream, per_layer[index])
        if graph.weights.scalars.get(number, 1) != 1:
            scalar = graph.number(graph.weights.scalars[number])
            stream = graph.node("Mul", [stream, scalar], f"layer_{number}.multiplied")
    return stream, inputs, outputs


def _kept_infos(model: ModelConfig, number: int) -> list[onnx.ValueInfoProto]:
    """What a layer reads of earlier tokens, and changes."""
    if model.recurrent is not None and number in model.recurrent_layers:
        return state_infos(model.recurrent, number)
    return [] if model.shares_keys(number) else _cache_infos(model, number)


def _cache_infos(model: ModelConfig, number: int) -> list[onnx.ValueInfoProto]:
    """The keys and values that a layer writes."""
    size, heads = model.cache_of(number).head_dim, model.cache_of(number).num_kv_heads
    # The bytes of a row differ where sizes of heads do.
    row_bytes = _ROW_BYTES if size == model.head_dim else f"{_ROW_BYTES}_of_{size}"
    cache = (SEQUENCES, heads, _SLOTS, row_bytes)
    return [byte_info(f"{kind}_{number}", *cache) for kind in ("key", "value")]


def _as_output(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    output = onnx.ValueInfoProto()
    output.CopyFrom(info)
    output.name = f"{info.name}_out"
    return output


def head_graph(model: ModelConfig, weights: Weights) -> onnx.ModelProto:
    """The graph from the last hidden rows to logits, which may be capped.

    Those of tokens that no answer may hold are far below all others.
    """
    graph, output = LayerGraph(weights, model.rms_norm_eps), weights.linears["output"]
    cap, suppressed = model.logits_cap, model.suppressed_token_ids
    capped = "capped" if suppressed else "logits"
    product = capped if cap is None else "products"
    graph.product(product, "hidden", norm="norm", layer=output)
    if cap is not None:
        graph.node("SoftCap", [product], capped, cap=cap)
    if suppressed:
        vocab_size = graph.integers(sum(output.sizes))
        nothing = graph.node("ConstantOfShape", [vocab_size], "nothing")
        far = [graph.number(_FAR_BELOW), graph.integers(len(suppressed))]
        given = [nothing, graph.integers(*suppressed), graph.node("Expand", far, "far_below")]
        graph.node("Add", [capped, graph.node("ScatterElements", given, "suppressed")], "logits")
    return logits_model("head", graph, model, output)


def logits_model(
    name: str, graph: LayerGraph, model: ModelConfig, output: StoredLinear
) -> onnx.ModelProto:
    """The finished graph from hidden rows to the logits of an output layer."""
    hidden = float_info("hidden", 1, ROWS, model.hidden_size)
    logits = float_info("logits", 1, ROWS, sum(output.sizes))
    return graph.model(name, [hidden], [logits], OPSET)


def _mixer(graph: LayerGraph, model: ModelConfig, number: int, stream: str, block: range) -> str:
    """The stream plus attention, or what a recurrent layer has in its place."""
    name, gate = f"layer_{number}", ""
    if model.recurrent is not None and number in model.recurrent_layers:
        x = graph.product(f"{name}.projected", stream, norm=f"{name}.attention_norm")
        given = mixed(graph, model.recurrent, number, x, model.rms_norm_eps)
    else:
        given = _attention(graph, model, number, stream, block)
        if model.gated_attention:
            both = [f"{name}.gate", given]
            given, gate = graph.node("Concat", both, f"{name}.gated", axis=-1), "sigmoid"
    return _joined(graph, model, f"{name}.attention_out", given, gate, stream)


def _attention(
    graph: LayerGraph, model: ModelConfig, number: int, stream: str, block: range
) -> str:
    """Attention over the caches, which get the new keys and values first if they are its own.

    Where it is gated, `{name}.gate` are the gates.
    """
    name = f"layer_{number}"
    qkv = graph.product(f"{name}.qkv", stream, norm=f"{name}.attention_norm")
    if model.gated_attention:
        heads = model.num_heads + 2 * model.num_kv_heads, model.num_heads
        sizes = graph.integers(*(count * model.head_dim for count in heads))
        parts = [f"{name}.qkv_alone", f"{name}.gate"]
        graph.split("Split", [qkv, sizes], parts, axis=-1)
        qkv = parts[0]
    qkv = _prepared(graph, model, name, qkv)
    is_windowed = number in model.window_layers
    own = "window_" if is_windowed and model.window_inv_freq is not None else ""
    is_rotated = number not in model.unrotated_layers
    angles = [f"{own}cos", f"{own}sin"] if is_rotated else ["", ""]
    norms = [
        "" if model.wide_qk_norm else graph.weight(f"{name}.{kind}_norm.weight")
        for kind in ("query", "key")
    ]
    cache, shares_keys = model.cache_of(number), model.shares_keys(number)
    caches = [f"{kind}_{cache.written_by}" for kind in ("key", "value")]
    written = [] if shares_keys else [f"{cache}_out" for cache in caches]
    if shares_keys and cache.written_by in block:
        caches = [f"{cache}_out" for cache in caches]
    sinks = graph.weight(f"{name}.sinks")
    value_norm = graph.ones(cache.head_dim) if model.value_norm and not shares_keys else ""
    attended = f"{name}.attended"
    graph.split(
        "Attention",
        [qkv, *angles, *caches, *PATH, *norms, sinks, value_norm],
        [attended, *written],
        heads=model.num_heads,
        kv_heads=cache.num_kv_heads,
        head_dim=cache.head_dim,
        scale=float(model.score_scale),
        softcap=0.0,
        window=(model.window or 0) if is_windowed else 0,
        interleaved=0,
        epsilon=model.rms_norm_eps,
        shares_keys=int(shares_keys),
    )
    return attended


def _prepared(graph: LayerGraph, model: ModelConfig, name: str, qkv: str) -> str:
    """Queries, keys and values as attention reads them, what it cannot do itself done."""
    if not model.wide_qk_norm and model.query_scaling is None:
        return qkv
    heads = (model.num_heads, model.num_kv_heads, model.num_kv_heads)
    sizes = graph.integers(*(count * model.head_dim for count in heads))
    query, key, value = parts = [f"{name}.{part}" for part in ("query", "key", "value")]
    graph.split("Split", [qkv, sizes], parts, axis=-1)
    if model.wide_qk_norm:
        query = graph.normed(query, f"{name}.query_norm")
        key = graph.normed(key, f"{name}.key_norm")
    if model.query_scaling is not None:
        scale = graph.node("Squeeze", [QUERY_SCALE, graph.integers(1)], f"{name}.query_scale")
        query = graph.node("Mul", [query, scale], f"{name}.query_scaled")
    return graph.node("Concat", [query, key, value], f"{name}.prepared", axis=-1)


def _feed_forward(graph: LayerGraph, model: ModelConfig, number: int, stream: str) -> str:
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
    return _joined(graph, model, f"{name}.down", gated, model.activation, stream)


def _joined(
    graph: LayerGraph, model: ModelConfig, name: str, x: str, gate: str, stream: str
) -> str:
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
    graph: LayerGraph, model: ModelConfig, experts: Experts, number: int, stream: str, beside: str
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


def _per_layer_parts(graph: LayerGraph, model: ModelConfig, layers: range) -> list[str]:
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


def _with_per_layer(
    graph: LayerGraph, model: ModelConfig, name: str, stream: str, part: str
) -> str:
    """The stream plus what a layer makes of its part of the embedding."""
    gate = graph.product(f"{name}.per_layer_gate", stream)
    both = graph.node("Concat", [gate, part], f"{name}.per_layer_gated", axis=-1)
    added = graph.product(f"{name}.per_layer_added", both, gate=model.activation)
    return graph.node(
        "Add", [stream, graph.normed(added, f"{name}.per_layer_norm")], f"{name}.with_per_layer"
    )
