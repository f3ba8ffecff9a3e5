"""The graphs of a folder of ONNX Runtime GenAI, as a session runs them: all layers, and the head.

In: the folder's graph. Out: two models as bytes, whose weights stay in the folder's files. The
layers read token ids, so the embedding is in them; attention is replaced (`attention.py`), and the
product that makes logits is cut off as the head: reading a prompt needs no logits.
"""

import onnx
from onnx import TensorProto, helper

from coordgen_rs.bundle.manifest import ModelShape
from coordgen_rs.formats.genai.attention import PATH, AttentionWriter
from coordgen_rs.formats.genai.graph import DecoderGraph

_OPSET, _IR_VERSION = 24, 11
_ROWS, _SLOTS, _ROW_BYTES = "rows", "slots", "row_bytes"


def block_model(graph: DecoderGraph, model: ModelShape) -> bytes:
    """All layers, from token ids to the hidden states that the head reads; changes `graph`.

    Inputs: `input_ids (1, M)` int64, and those of `attention.py`. Outputs: `hidden_out (1, M,
    hidden_size)`, and `key_i_out`, `value_i_out`, the caches with M slots overwritten.

    Raises:
        BundleError: The graph does something that cannot be run; the message names it.
    """
    writer = AttentionWriter(graph, model)
    for layer, node in _in_order(graph):
        graph.edit.replace(node, writer.replacement(node, layer))
    graph.edit.append(helper.make_node("Identity", [graph.hidden], ["hidden_out"]))
    cache = (1, model.num_kv_heads, _SLOTS, _ROW_BYTES)
    names = [f"{kind}_{layer}" for layer in range(model.num_layers) for kind in ("key", "value")]
    inputs = [
        _info("input_ids", 1, _ROWS, kind=TensorProto.INT64),
        _info("position_ids", 1, _ROWS, kind=TensorProto.INT64),
        *(_info(name, size, kind=TensorProto.INT32) for name, size in PATH.items()),
        *(_info(name, *cache, kind=TensorProto.UINT8) for name in names),
    ]
    outputs = [_info("hidden_out", 1, _ROWS, model.hidden_size)]
    outputs += [_info(f"{name}_out", *cache, kind=TensorProto.UINT8) for name in names]
    return _part(graph, outputs, inputs)


def head_model(graph: DecoderGraph, model: ModelShape) -> bytes:
    """The head, from `hidden (1, M, hidden_size)` to `logits (1, M, vocab_size)`; changes `graph`.

    Raises:
        BundleError: Logits need more than hidden states.
    """
    product = onnx.NodeProto()
    product.CopyFrom(graph.product)
    product.input[0] = "hidden"
    graph.edit.replace(graph.product, [product])
    logits = graph.logits
    if logits != "logits":
        graph.edit.append(helper.make_node("Identity", [logits], ["logits"]))
    inputs = [_info("hidden", 1, _ROWS, model.hidden_size)]
    return _part(graph, [_info("logits", 1, _ROWS, model.vocab_size)], inputs)


def _in_order(graph: DecoderGraph) -> list[tuple[int, onnx.NodeProto]]:
    """Layers and their attention nodes in the graph's order: what nodes share stands first."""
    layers = {id(node): layer for layer, node in enumerate(graph.attention)}
    return [(layers[id(node)], node) for node in graph.edit.nodes if id(node) in layers]


def _part(
    graph: DecoderGraph,
    outputs: list[onnx.ValueInfoProto],
    inputs: list[onnx.ValueInfoProto],
) -> bytes:
    """The model from `inputs` to `outputs`.

    Raises:
        BundleError: They are computed from other inputs, too.
    """
    unknown = graph.edit.unknown_inputs(
        [value.name for value in outputs], [value.name for value in inputs]
    )
    if unknown:
        raise graph.error(
            f"it uses {unknown[0]!r:.60} for more than the length of the text, which does not "
            "allow draft trees"
        )
    part: bytes = graph.edit.part(outputs, inputs, _OPSET, _IR_VERSION).SerializeToString()
    return part


def _info(name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)
