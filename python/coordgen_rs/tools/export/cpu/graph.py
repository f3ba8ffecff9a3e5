"""The ONNX graphs of a bundle: a block of layers, or the head, for any number of rows.

In: where the weights are, and the model's sizes. Out: a model of a few KB without weights.

A block's inputs (all float32 unless said; M rows and the number of slots symbolic; D hidden size):
    hidden (1, M, D); mask (1, 1, M, slots), additive and finite; cos, sin (1, 1, M, head_dim / 2);
    window_mask as mask, and window_cos, window_sin as cos, sin: for layers with a sliding window,
    where the context is longer than it, and where they are rotated otherwise;
    write_index (1,) int64, the slot of row 0;
    for each layer i of the model: key_i, value_i (1, num_kv_heads, slots, head_dim).
Its outputs: hidden_out (1, M, D); key_i_out, value_i_out, the caches with M slots overwritten.
Bound to the same memory as key_i, value_i they are updated in place, and nothing is copied.
The head: hidden (1, M, D) to logits (1, M, vocab_size).

Why these operators: every row's bits must be the same at every M (measured, see the tests).
- Gemm holds the weight as stored, `(out, in)`; weights in blocks are multiplied by an operator of
  this package's core (`src/ort`), which adds the residual stream, too. The
  query, key and value layers are one, as are gate and up: fewer, larger products at M = 1.
- Heads that share a key are further rows of one product, so keys and values are never expanded.
- A product of a single row takes another kernel with other rounding. It can occur where each head
  has its own key; there attention gets a further row, which is dropped again.
- A small model's step takes longer the more nodes it has, so rotary embedding is one, and so is
  SiLU (QuickGelu with alpha 1; Swish is taken apart when loaded). A sum of the residual stream and
  its norm are two: SkipSimplifiedLayerNormalization rounds otherwise than the norm that begins a
  block, so that bits would depend on where a model is cut into blocks.
- One graph with a symbolic M serves all widths: on CPU it is as fast and as exact as a graph per
  width, and the packed weights are held once (a sixth of the memory at six widths). Mixing both
  kinds was dropped: in float32 their bits differ.
- The number of slots is symbolic, too: slots that no row sees change no bit, but cost time.
- GroupQueryAttention and separate regions for new keys were dropped: their bits depend on M.
"""

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from coordgen_rs.tools.export.checkpoints.config import ModelConfig
from coordgen_rs.tools.export.cpu.linear import OPSET, LayerGraph, Residual, Rows
from coordgen_rs.tools.export.graph_builder import float_info
from coordgen_rs.tools.export.stored import (
    Panels,
    StoredHead,
    StoredLayer,
    StoredLinear,
    StoredTensor,
)

_ROWS, _SLOTS = "rows", "slots"
"""The symbolic dimensions of the graphs' inputs and outputs."""
_ANY, _SAME = -1, 0
"""Dimensions in a Reshape: the one that it infers, and one that keeps its length."""


class _Graph(LayerGraph):
    """A graph of layers that are rotated by the tables of the bundle."""

    def rotate(self, model: ModelConfig, number: int, x: str, name: str) -> str:
        """Rotary embedding of `x (1, heads, M, head_dim)` in layer `number`."""
        has_own = model.window_inv_freq is not None and number in model.window_layers
        angles = [f"{'window_' if has_own else ''}{angle}_by_row" for angle in ("cos", "sin")]
        rotated = 2 * len(model.inv_freq)
        part = {} if rotated == model.head_dim else {"rotary_embedding_dim": rotated}
        return self.node("RotaryEmbedding", [x, *angles], name, **part)


def block_graph(
    model: ModelConfig, layers: Sequence[StoredLayer], first_layer: int
) -> onnx.ModelProto:
    """The graph of consecutive layers, `first_layer` being the number of the first in the model."""
    numbers = range(first_layer, first_layer + len(layers))
    masks = ["mask"] if model.window is None else ["mask", "window_mask"]
    inputs = [float_info("hidden", 1, _ROWS, model.hidden_size)]
    inputs += [float_info(mask, 1, 1, _ROWS, _SLOTS) for mask in masks]
    outputs = [float_info("hidden_out", 1, _ROWS, model.hidden_size)]
    graph = _Graph()
    rows = graph.node("Reshape", ["hidden", graph.integers(_ANY, model.hidden_size)], "rows")
    x = Residual(rows)
    tables = {"": model.inv_freq, "window_": model.window_inv_freq}
    for prefix, inv_freq in tables.items():
        half = len(inv_freq or [])
        for angle in (f"{prefix}cos", f"{prefix}sin") if half else ():
            inputs.append(float_info(angle, 1, 1, _ROWS, half))
            graph.node("Reshape", [angle, graph.integers(1, _ANY, half)], f"{angle}_by_row")
    inputs.append(helper.make_tensor_value_info("write_index", TensorProto.INT64, [1]))
    if _may_be_single(model):
        for mask in sorted({_mask(model, number) for number in numbers}):
            _with_another_row(graph, mask)
    for number, layer in zip(numbers, layers, strict=True):
        cache = (1, model.num_kv_heads, _SLOTS, model.head_dim)
        inputs += [float_info(f"key_{number}", *cache), float_info(f"value_{number}", *cache)]
        outputs += [
            float_info(f"key_{number}_out", *cache),
            float_info(f"value_{number}_out", *cache),
        ]
        x = _attention(graph, model, layer, number, x)
        x = _feed_forward(graph, model, layer, f"layer_{number}", x)
    rows = graph.joined(x)
    graph.node("Reshape", [rows, graph.integers(1, _ANY, model.hidden_size)], "hidden_out")
    return graph.model("block", inputs, outputs, OPSET)


def head_graph(model: ModelConfig, head: StoredHead) -> onnx.ModelProto:
    """The graph from the last hidden rows to logits."""
    graph = _Graph()
    x = graph.node("Reshape", ["hidden", graph.integers(_ANY, model.hidden_size)], "rows")
    epsilon = model.rms_norm_eps
    normed = graph.fine_normed_for(head.output, "norm", x, head.norm, epsilon)
    logits = graph.scaled(graph.product("output", normed, head.output))
    graph.node("Reshape", [logits, graph.integers(1, _ANY, model.vocab_size)], "logits")
    return graph.model(
        "head",
        [float_info("hidden", 1, _ROWS, model.hidden_size)],
        [float_info("logits", 1, _ROWS, model.vocab_size)],
        OPSET,
    )


def _attention(
    graph: _Graph, model: ModelConfig, layer: StoredLayer, number: int, x: Residual
) -> Residual:
    """`x` plus attention over the caches, which get the new keys and values first."""
    heads, kv_heads, size = model.num_heads, model.num_kv_heads, model.head_dim
    name = f"layer_{number}"
    norm, epsilon = layer.attention_norm, model.rms_norm_eps
    x, normed = graph.normed_for(layer.qkv, f"{name}.attention_norm", x, norm, epsilon)
    qkv = graph.scaled(graph.product(f"{name}.qkv", normed, layer.qkv))
    by_row = graph.integers(1, _ANY, heads + 2 * kv_heads, size)
    qkv = graph.node("Reshape", [qkv, by_row], f"{name}.qkv_by_row")
    qkv = graph.node("Transpose", [qkv], f"{name}.qkv_by_head", perm=[0, 2, 1, 3])
    query, key, value = _query_key_value(graph, model, layer, number, qkv)
    caches = []
    for kind, new in (("key", key), ("value", value)):
        cache = f"{kind}_{number}"
        inputs = [cache, new, "write_index"]
        caches.append(graph.node("TensorScatter", inputs, f"{cache}_out", axis=-2, mode="linear"))
    attended = _attend(graph, model, number, query, caches)
    attended = graph.node("Transpose", [attended], f"{name}.attended_by_row", perm=[0, 2, 1, 3])
    to_rows = graph.integers(_ANY, heads * size)
    attended = graph.node("Reshape", [attended, to_rows], f"{name}.attended_rows")
    rows = graph.rows_for(layer.attention_out, attended)
    out, out_norm = layer.attention_out, layer.attention_out_norm
    return _join(graph, model, out_norm, x, rows, out, f"{name}.attention_out")


def _query_key_value(
    graph: _Graph, model: ModelConfig, layer: StoredLayer, number: int, qkv: str
) -> tuple[str, str, str]:
    """Queries and keys, normed and rotated, and values; each `(1, heads of it, M, head_dim)`.

    `qkv` holds the heads of all three. Without norms queries and keys are rotated by one node.
    """
    heads, kv_heads = model.num_heads, model.num_kv_heads
    name = f"layer_{number}"
    query, key, value = (f"{name}.{part}" for part in ("query", "key", "value"))
    is_rotated = number not in model.unrotated_layers
    if is_rotated and (layer.query_norm is None or layer.key_norm is None):
        unrotated = f"{name}.unrotated"
        graph.split(
            "Split", [qkv, graph.integers(heads + kv_heads, kv_heads)], [unrotated, value], axis=1
        )
        rotated = graph.rotate(model, number, unrotated, f"{name}.rotated")
        graph.split("Split", [rotated, graph.integers(heads, kv_heads)], [query, key], axis=1)
        return query, key, value
    graph.split(
        "Split", [qkv, graph.integers(heads, kv_heads, kv_heads)], [query, key, value], axis=1
    )
    finished = []
    for x, norm in ((query, layer.query_norm), (key, layer.key_norm)):
        if norm is not None:
            x = graph.norm(f"{x}.normed", x, norm, model.rms_norm_eps)
        finished.append(graph.rotate(model, number, x, f"{x}.rotated") if is_rotated else x)
    return finished[0], finished[1], value


def _may_be_single(model: ModelConfig) -> bool:
    """Whether a product of attention has a single row where there is one token."""
    return model.num_heads == model.num_kv_heads


def _mask(model: ModelConfig, number: int) -> str:
    """The mask of a layer."""
    has_window = model.window is not None and number in model.window_layers
    return "window_mask" if has_window else "mask"


def _attend(
    graph: _Graph, model: ModelConfig, number: int, query: str, caches: Sequence[str]
) -> str:
    """Softmax attention of `query (1, heads, M, head_dim)` over the caches, in the same shape.

    Heads are ordered so that those sharing a key follow one another; they are folded into rows.
    """
    key, value = caches
    name, mask = f"layer_{number}", _mask(model, number)
    scale = float(model.score_scale)
    if _may_be_single(model):
        query = _with_another_row(graph, query)
        scores = graph.node("FusedMatMul", [query, key], f"{name}.scores", transB=1, alpha=scale)
        scores = graph.node("Add", [scores, f"{mask}.lengthened"], f"{name}.scores_masked")
        weights = graph.node("Softmax", [scores], f"{name}.weights", axis=-1)
        attended = graph.node("MatMul", [weights, value], f"{name}.attended")
        return _without_last_row(graph, attended)
    kv_heads, group = model.num_kv_heads, model.num_heads // model.num_kv_heads
    folded = graph.integers(1, kv_heads, _ANY, model.head_dim)
    query = graph.node("Reshape", [query, folded], f"{name}.query_folded")
    scores = graph.node("FusedMatMul", [query, key], f"{name}.scores", transB=1, alpha=scale)
    unfolded = graph.integers(kv_heads, group, _ANY, _SAME)
    scores = graph.node("Reshape", [scores, unfolded], f"{name}.scores_unfolded")
    scores = graph.node("Add", [scores, mask], f"{name}.scores_masked")
    weights = graph.node("Softmax", [scores], f"{name}.weights", axis=-1)
    folded = graph.integers(1, kv_heads, _ANY, _SAME)
    weights = graph.node("Reshape", [weights, folded], f"{name}.weights_folded")
    attended = graph.node("MatMul", [weights, value], f"{name}.attended")
    by_head = graph.integers(1, model.num_heads, _ANY, model.head_dim)
    return graph.node("Reshape", [attended, by_head], f"{name}.attended_by_head")


def _with_another_row(graph: _Graph, x: str) -> str:
    """`x (1, heads, M, size)` with a row of zeros behind the last."""
    return graph.node("Pad", [x, graph.integers(0, 0, 0, 0, 0, 0, 1, 0)], f"{x}.lengthened")


def _without_last_row(graph: _Graph, x: str) -> str:
    """`x (1, heads, M + 1, size)` without its last row."""
    start, end, rows = graph.integers(0), graph.integers(-1), graph.integers(2)
    return graph.node("Slice", [x, start, end, rows], f"{x}.shortened")


def _feed_forward(
    graph: _Graph, model: ModelConfig, layer: StoredLayer, name: str, x: Residual
) -> Residual:
    """`x` plus the gated feed-forward."""
    norm, epsilon = layer.ffn_norm, model.rms_norm_eps
    x, normed = graph.normed_for(layer.gate_up, f"{name}.ffn_norm", x, norm, epsilon)
    both = graph.product(f"{name}.gate_up", normed, layer.gate_up)
    gated = graph.gated_for(layer.down, name, both, model)
    return _join(graph, model, layer.ffn_out_norm, x, gated, layer.down, f"{name}.down")


def _join(
    graph: _Graph,
    model: ModelConfig,
    norm: StoredTensor | None,
    x: Residual,
    rows: Rows,
    layer: StoredLinear,
    name: str,
) -> Residual:
    """The residual stream `x` plus what a layer gives for some rows, normed and scaled."""
    is_bare = norm is None and model.residual_scale == 1
    if is_bare and isinstance(layer.weights, Panels):
        return Residual(graph.sum(name, rows, layer, layer.weights, x.stream))
    out = graph.product(name, rows, layer)
    if is_bare and out.scale is not None:
        return Residual(x.stream, out)
    added = graph.scaled(out)
    if norm is not None:
        added = graph.norm(f"{name}.norm", added, norm, model.rms_norm_eps)
    if model.residual_scale != 1:
        # Not folded into weights: those of a checkpoint may be integers, which stay as they are.
        added = graph.node("Mul", [added, graph.number(model.residual_scale)], f"{name}.scaled")
    return Residual(graph.node("Add", [x.stream, added], f"{name}.added"))
