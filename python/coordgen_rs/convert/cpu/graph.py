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
    for each layer i with experts: experts_i (bytes,) uint8, all of them (`bundle/experts.py`).
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
"""

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from coordgen_rs.bundle.rotation import QUERY_SCALE
from coordgen_rs.convert.cpu.experts import experts_info, mixture
from coordgen_rs.convert.cpu.linear import ROWS, SEQUENCES, LayerGraph, Norm, Rows
from coordgen_rs.convert.cpu.per_layer import per_layer_infos, per_layer_parts, with_part
from coordgen_rs.convert.cpu.recurrent import mixed, state_infos
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.graph_builder import byte_info, float_info
from coordgen_rs.convert.stored import StoredHead, StoredLayer, StoredPerLayerInputs
from coordgen_rs.convert.weight_file import StoredLinear, StoredTensor

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


def block_graph(
    model: ModelConfig,
    layers: Sequence[StoredLayer],
    first_layer: int,
    per_layer: StoredPerLayerInputs | None = None,
) -> onnx.ModelProto:
    """The graph of consecutive layers, `first_layer` being the number of the first in the model."""
    graph = LayerGraph()
    parts = None
    if per_layer is not None:
        numbers = range(first_layer, first_layer + len(layers))
        parts = per_layer_parts(graph, model, per_layer, numbers)
    _, inputs, outputs = decoder(graph, model, layers, first_layer, "hidden", parts)
    inputs += per_layer_infos(model)
    graph.rename_last("hidden_out")
    return graph.model("block", inputs, outputs, OPSET)


def decoder(
    graph: LayerGraph,
    model: ModelConfig,
    layers: Sequence[StoredLayer],
    first_layer: int,
    stream: str,
    per_layer: Sequence[str] | None = None,
) -> tuple[str, list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    """Adds consecutive layers to a graph.

    Args:
        graph: Grows by them.
        model: The sizes of all layers.
        layers: Their weights.
        first_layer: The number of the first.
        stream: The residual stream before them.
        per_layer: What each of them reads of a token's second embedding, if there is one.

    Returns:
        The stream behind them; the inputs of a block, and its outputs.
    """
    numbers = range(first_layer, first_layer + len(layers))
    inputs = [float_info("hidden", 1, ROWS, model.hidden_size)]
    outputs = [float_info("hidden_out", 1, ROWS, model.hidden_size)]
    tables = {"": model.inv_freq, "window_": model.window_inv_freq}
    for prefix, inv_freq in tables.items():
        half = len(inv_freq or [])
        angles = (f"{prefix}cos", f"{prefix}sin") if half else ()
        inputs += [float_info(angle, 1, 1, ROWS, half) for angle in angles]
    if model.query_scaling is not None:
        inputs.append(float_info(QUERY_SCALE, 1, 1, ROWS, 1))
    path = PATH if model.recurrent_layers.isdisjoint(numbers) else PATH | _READS
    inputs += [
        helper.make_tensor_value_info(name, TensorProto.INT32, [size])
        for name, size in path.items()
    ]
    for number, layer in zip(numbers, layers, strict=True):
        kept = _kept_infos(model, number)
        outputs += [_as_output(info) for info in kept]
        inputs += kept or _read_infos(model, number, numbers, inputs)
        if layer.mixture is not None:
            inputs.append(experts_info(layer.mixture, number))
        stream = _mixer(graph, model, layer, number, stream, numbers)
        stream = _feed_forward(graph, model, layer, number, stream)
        if layer.per_layer is not None and per_layer is not None:
            part = per_layer[number - first_layer]
            stream = with_part(graph, model, layer.per_layer, f"layer_{number}", stream, part)
        if layer.scalar != 1:
            scalar = graph.number(layer.scalar)
            stream = graph.node("Mul", [stream, scalar], f"layer_{number}.multiplied")
    return stream, inputs, outputs


def _kept_infos(model: ModelConfig, number: int) -> list[onnx.ValueInfoProto]:
    """What a layer reads of earlier tokens, and changes."""
    if model.recurrent is not None and number in model.recurrent_layers:
        return state_infos(model.recurrent, number)
    return [] if model.shares_keys(number) else _cache_infos(model, number)


def _read_infos(
    model: ModelConfig, number: int, block: range, known: Sequence[onnx.ValueInfoProto]
) -> list[onnx.ValueInfoProto]:
    """The caches that a layer shares with one of another block, unless they are known."""
    writer = model.cache_of(number).written_by
    names = {info.name for info in known}
    infos = [] if writer in block else _cache_infos(model, writer)
    return [info for info in infos if info.name not in names]


def _cache_infos(model: ModelConfig, number: int) -> list[onnx.ValueInfoProto]:
    """The keys and values that a layer writes."""
    heads = model.cache_of(number).num_kv_heads
    cache = (SEQUENCES, heads, _SLOTS, _row_bytes(model, number))
    return [byte_info(f"{kind}_{number}", *cache) for kind in ("key", "value")]


def _row_bytes(model: ModelConfig, number: int) -> str:
    """What the bytes of a row are called, which differ where sizes of heads do."""
    size = model.cache_of(number).head_dim
    return _ROW_BYTES if size == model.head_dim else f"{_ROW_BYTES}_of_{size}"


def _as_output(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    output = onnx.ValueInfoProto()
    output.CopyFrom(info)
    output.name = f"{info.name}_out"
    return output


def head_graph(model: ModelConfig, head: StoredHead) -> onnx.ModelProto:
    """The graph from the last hidden rows to logits."""
    norm = Norm("norm", head.norm, model.rms_norm_eps)
    cap, suppressed_token_ids = model.logits_cap, model.suppressed_token_ids
    return head_product("head", model.hidden_size, head.output, norm, cap, suppressed_token_ids)


def head_product(
    name: str,
    hidden_size: int,
    output: StoredLinear,
    norm: Norm | None = None,
    cap: float | None = None,
    suppressed_token_ids: Sequence[int] = (),
) -> onnx.ModelProto:
    """The graph from hidden rows, which may be normed first, to logits, which may be capped.

    Those of `suppressed_token_ids` are far below all others.
    """
    graph, vocab_size = LayerGraph(), sum(output.sizes)
    capped = "capped" if suppressed_token_ids else "logits"
    product = capped if cap is None else "products"
    graph.product(product, Rows("hidden", norm), output)
    if cap is not None:
        graph.node("SoftCap", [product], capped, cap=cap)
    if suppressed_token_ids:
        nothing = graph.node("ConstantOfShape", [graph.integers(vocab_size)], "nothing")
        far = [graph.number(_FAR_BELOW), graph.integers(len(suppressed_token_ids))]
        given = [
            nothing,
            graph.integers(*suppressed_token_ids),
            graph.node("Expand", far, "far_below"),
        ]
        graph.node("Add", [capped, graph.node("ScatterElements", given, "suppressed")], "logits")
    hidden = float_info("hidden", 1, ROWS, hidden_size)
    logits = float_info("logits", 1, ROWS, vocab_size)
    return graph.model(name, [hidden], [logits], OPSET)


def _mixer(
    graph: LayerGraph,
    model: ModelConfig,
    layer: StoredLayer,
    number: int,
    stream: str,
    block: range,
) -> str:
    """The stream plus attention, or what a recurrent layer has in its place."""
    name = f"layer_{number}"
    rows = _read(model, f"{name}.attention_norm", layer.attention_norm, stream)
    if model.recurrent is not None and layer.recurrent is not None:
        x = graph.product(f"{name}.projected", rows, layer.mixer_in)
        how = model.recurrent, layer.recurrent, number
        given = Rows(mixed(graph, *how, x, model.rms_norm_eps))
    else:
        given = _attention(graph, model, layer, number, rows, block)
    out, norm = layer.mixer_out, layer.attention_out_norm
    return _join(graph, model, f"{name}.attention_out", given, out, norm, stream)


def _attention(
    graph: LayerGraph,
    model: ModelConfig,
    layer: StoredLayer,
    number: int,
    rows: Rows,
    block: range,
) -> Rows:
    """Attention over the caches, which get the new keys and values first if they are its own."""
    name, epsilon = f"layer_{number}", model.rms_norm_eps
    qkv, gate = graph.product(f"{name}.qkv", rows, layer.mixer_in), ""
    if model.gated_attention:
        both, qkv, gate = qkv, f"{name}.qkv_alone", f"{name}.gate"
        heads = model.num_heads + 2 * model.num_kv_heads, model.num_heads
        sizes = graph.integers(*(count * model.head_dim for count in heads))
        graph.split("Split", [both, sizes], [qkv, gate], axis=-1)
    qkv = _prepared(graph, model, layer, name, qkv)
    is_windowed = number in model.window_layers
    own = "window_" if is_windowed and model.window_inv_freq is not None else ""
    is_rotated = number not in model.unrotated_layers
    angles = [f"{own}cos", f"{own}sin"] if is_rotated else ["", ""]
    norms = [
        "" if it is None or model.wide_qk_norm else graph.weight(f"{name}.{kind}_norm.weight", it)
        for kind, it in (("query", layer.query_norm), ("key", layer.key_norm))
    ]
    cache, shares_keys = model.cache_of(number), model.shares_keys(number)
    caches = [f"{kind}_{cache.written_by}" for kind in ("key", "value")]
    written = [] if shares_keys else [f"{cache}_out" for cache in caches]
    if shares_keys and cache.written_by in block:
        caches = [f"{cache}_out" for cache in caches]
    sinks = "" if layer.sinks is None else graph.weight(f"{name}.sinks", layer.sinks)
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
        epsilon=epsilon,
        shares_keys=int(shares_keys),
    )
    if not gate:
        return Rows(attended)
    both = graph.node("Concat", [gate, attended], f"{name}.gated", axis=-1)
    return Rows(both, gate="sigmoid")


def _read(model: ModelConfig, name: str, norm: StoredTensor | None, stream: str) -> Rows:
    """What a layer's products read of the stream: normed, where there is a norm before them."""
    return Rows(stream, None if norm is None else Norm(name, norm, model.rms_norm_eps))


def _prepared(
    graph: LayerGraph, model: ModelConfig, layer: StoredLayer, name: str, qkv: str
) -> str:
    """Queries, keys and values as attention reads them, what it cannot do itself done."""
    if not model.wide_qk_norm and model.query_scaling is None:
        return qkv
    heads = (model.num_heads, model.num_kv_heads, model.num_kv_heads)
    sizes = graph.integers(*(count * model.head_dim for count in heads))
    parts = [f"{name}.{part}" for part in ("query", "key", "value")]
    graph.split("Split", [qkv, sizes], parts, axis=-1)
    query, key, value = parts
    if model.wide_qk_norm and layer.query_norm is not None and layer.key_norm is not None:
        query = graph.normed(
            query, Norm(f"{name}.query_norm", layer.query_norm, model.rms_norm_eps)
        )
        key = graph.normed(key, Norm(f"{name}.key_norm", layer.key_norm, model.rms_norm_eps))
    if model.query_scaling is not None:
        scale = graph.node("Squeeze", [QUERY_SCALE, graph.integers(1)], f"{name}.query_scale")
        query = graph.node("Mul", [query, scale], f"{name}.query_scaled")
    return graph.node("Concat", [query, key, value], f"{name}.prepared", axis=-1)


def _feed_forward(
    graph: LayerGraph, model: ModelConfig, layer: StoredLayer, number: int, stream: str
) -> str:
    """The stream plus the gated feed-forward, or plus a mixture of experts."""
    name = f"layer_{number}"
    rows = _read(model, f"{name}.ffn_norm", layer.ffn_norm, stream)
    both = ""
    if layer.gate_up is not None:
        both = graph.product(f"{name}.gate_up", rows, layer.gate_up)
    gated = Rows(both, gate=model.activation)
    if model.experts is not None and layer.mixture is not None:
        beside = "" if layer.down is None else graph.product(f"{name}.down", gated, layer.down)
        how = model.experts, layer.mixture, number
        return mixture(graph, *how, rows, beside, model.residual_scale)
    if layer.down is None:
        return stream
    return _join(graph, model, f"{name}.down", gated, layer.down, layer.ffn_out_norm, stream)


def _join(
    graph: LayerGraph,
    model: ModelConfig,
    name: str,
    rows: Rows,
    layer: StoredLinear,
    norm: StoredTensor | None,
    stream: str,
) -> str:
    """The stream plus what a layer gives for rows, normed and scaled."""
    if norm is None and model.residual_scale == 1:
        return graph.product(name, rows, layer, stream)
    added = graph.product(name, rows, layer)
    if norm is not None:
        added = graph.normed(added, Norm(f"{name}.norm", norm, model.rms_norm_eps))
    if model.residual_scale != 1:
        # Not folded into weights: those of a checkpoint may be integers, which stay as they are.
        added = graph.node("Mul", [added, graph.number(model.residual_scale)], f"{name}.scaled")
    return graph.node("Add", [stream, added], f"{name}.added")
