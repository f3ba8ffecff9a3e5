"""A bundle's weights in the format of ONNX Runtime GenAI, on the operators that its builder takes.

In: a float32 bundle. Out: a directory with model.onnx and genai_config.json. The graph is what
`onnxruntime_genai.models.builder -p fp32 -e cpu` makes of a Llama (packed query, key and value,
GroupQueryAttention with rotary embedding and one cache for past and present), so that the peer
runs as its own makers have it run; the builder itself would need torch. GenAI is not needed here.
"""

import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from coordgen_rs.bundle.layers import PanelRows
from coordgen_rs.errors import OptionError

MODEL_NAME = "model.onnx"
CONFIG_NAME = "genai_config.json"
_OPSET, _IR_VERSION = 21, 10


def export_genai(bundle, out, threads):
    """Write the directory `out`.

    Args:
        bundle: An opened bundle with float32 weights.
        out: A directory that does not exist yet, or is empty.
        threads: Compute threads of the session.

    Raises:
        OptionError: The bundle is quantised.
    """
    if bundle.manifest.weights != "fp32":
        raise OptionError(f"weights are {bundle.manifest.weights!r}, but must be 'fp32'")
    out.mkdir(parents=True, exist_ok=True)
    graph = _DecoderGraph(bundle.manifest, _weights(bundle))
    onnx.save(
        graph.model(), out / MODEL_NAME, save_as_external_data=True, location=f"{MODEL_NAME}.data"
    )
    config = genai_config(bundle.manifest, threads)
    (out / CONFIG_NAME).write_text(json.dumps(config, indent=2), encoding="utf-8")


def genai_config(manifest, threads):
    """What GenAI has to know of the model, and how its session is to run."""
    model = manifest.model
    return {
        "model": {
            "type": "llama",
            "bos_token_id": manifest.bos_token_id or 0,
            "eos_token_id": manifest.end_token_ids,
            "pad_token_id": manifest.end_token_ids[0],
            "context_length": manifest.context,
            "vocab_size": model.vocab_size,
            "decoder": {
                "filename": MODEL_NAME,
                "session_options": {"provider_options": [], "intra_op_num_threads": threads},
                "hidden_size": model.hidden_size,
                "head_size": model.head_dim,
                "num_attention_heads": model.num_heads,
                "num_key_value_heads": model.num_kv_heads,
                "num_hidden_layers": model.num_layers,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {"do_sample": False, "num_beams": 1, "past_present_share_buffer": True},
    }


def _weights(bundle):
    """All weights by name: those of the bundle's graphs, float32, and its embedding."""
    manifest, weights = bundle.manifest, {}
    for part in (*manifest.blocks, manifest.head):
        graph = onnx.load(bundle.path / next(iter(part.graphs.values()))).graph
        stored = {it.name: numpy_helper.to_array(it) for it in graph.initializer}
        weights |= {name: it for name, it in stored.items() if it.dtype == np.float32}
        for node in graph.node:
            if node.op_type == "Product":
                weights[f"{node.name}.weight"] = _matrix(node, stored)
    embedding = bundle.embedding()[np.arange(manifest.model.vocab_size)]
    return weights | {"embedding": embedding}


def _matrix(node, stored):
    """The weights `(out, in)` of a product, whose last inputs are its segments."""
    how = {it.name: helper.get_attribute_value(it) for it in node.attribute}
    kinds, sizes = how["types"].decode().split(","), how["sizes"]
    segments = zip(node.input[-len(sizes) :], kinds, sizes, strict=True)
    return np.concatenate(
        [
            PanelRows(stored[name], kind, size, how["columns"], 1.0)[np.arange(size)]
            for name, kind, size in segments
        ]
    )


class _DecoderGraph:
    """A decoder of one graph, from token ids to the logits of every row."""

    def __init__(self, manifest, weights):
        self._manifest, self._weights = manifest, weights
        self._nodes, self._constants = [], []
        self._inputs = [_info(name, TensorProto.INT64, "batch", length) for name, length in _TOKENS]
        self._outputs = []

    def model(self):
        """The whole model."""
        shape = self._manifest.model
        self._rotary_caches()
        self._lengths()
        hidden = self._node("Gather", [self._constant("embedding"), "input_ids"], "hidden")
        normed = self._node(
            "SimplifiedLayerNormalization",
            [hidden, self._constant("layer_0.attention_norm.weight")],
            "layer_0.attention_norm",
            axis=-1,
            epsilon=shape.rms_norm_eps,
            stash_type=1,
        )
        for number in range(shape.num_layers):
            name = f"layer_{number}"
            attended = self._linear(f"{name}.attention_out", self._attention(number, normed))
            hidden, normed = self._add_and_norm(f"{name}.ffn_norm", hidden, attended)
            fed = self._feed_forward(name, normed)
            is_last = number + 1 == shape.num_layers
            next_norm = "norm" if is_last else f"layer_{number + 1}.attention_norm"
            hidden, normed = self._add_and_norm(next_norm, hidden, fed)
        self._linear("logits", normed)
        self._outputs.append(_info("logits", TensorProto.FLOAT, "batch", "rows", shape.vocab_size))
        graph = helper.make_graph(
            self._nodes, "decoder", self._inputs, self._outputs, self._constants
        )
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)

    def _rotary_caches(self):
        positions = np.arange(self._manifest.context, dtype=np.float32)
        angles = np.outer(positions, np.array(self._manifest.inv_freq, np.float32))
        self._weights |= {"cos_cache": np.cos(angles), "sin_cache": np.sin(angles)}
        for name in ("cos_cache", "sin_cache"):
            self._constant(name)

    def _lengths(self):
        """`seqlens_k (batch,)`, the index of the last token, and `total_len ()`, both int32."""
        self._weights |= {"one": np.array([1], np.int64), "axis": np.array(1, np.int64)}
        summed = self._node(
            "ReduceSum", ["attention_mask", self._constant("one")], "len", keepdims=0
        )
        last = self._node("Sub", [summed, "one"], "last")
        self._node("Cast", [last], "seqlens_k", to=TensorProto.INT32)
        shape = self._node("Shape", ["attention_mask"], "mask_shape")
        total = self._node("Gather", [shape, self._constant("axis")], "total", axis=0)
        self._node("Cast", [total], "total_len", to=TensorProto.INT32)

    def _attention(self, number, normed):
        shape = self._manifest.model
        packed = self._linear(f"layer_{number}.qkv", normed)
        past, present = (
            [f"{when}.{number}.{kind}" for kind in ("key", "value")]
            for when in ("past_key_values", "present")
        )
        for names, infos, length in (
            (past, self._inputs, "past_len"),
            (present, self._outputs, "total_len"),
        ):
            cache = ("batch", shape.num_kv_heads, length, shape.head_dim)
            infos += [_info(name, TensorProto.FLOAT, *cache) for name in names]
        attended = f"layer_{number}.attended"
        self._nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [packed, "", "", *past, "seqlens_k", "total_len", "cos_cache", "sin_cache"],
                [attended, *present],
                name=attended,
                domain="com.microsoft",
                num_heads=shape.num_heads,
                kv_num_heads=shape.num_kv_heads,
                scale=float(shape.head_dim**-0.5),
                do_rotary=1,
            )
        )
        return attended

    def _feed_forward(self, name, normed):
        """SwiGLU; gate and up are two products, as the builder has them."""
        size = self._manifest.model.ffn_size
        both = self._weights[f"{name}.gate_up.weight"]
        self._weights |= {f"{name}.gate.weight": both[:size], f"{name}.up.weight": both[size:]}
        gate, up = (self._linear(f"{name}.{part}", normed) for part in ("gate", "up"))
        sigmoid = self._node("Sigmoid", [gate], f"{name}.sigmoid")
        silu = self._node("Mul", [gate, sigmoid], f"{name}.silu")
        activated = self._node("Mul", [silu, up], f"{name}.activated")
        return self._linear(f"{name}.down", activated)

    def _add_and_norm(self, name, hidden, added):
        """The sum `(batch, rows, D)`, and its RMSNorm."""
        total, normed = f"{name}.sum", f"{name}.normed"
        self._nodes.append(
            helper.make_node(
                "SkipSimplifiedLayerNormalization",
                [hidden, added, self._constant(f"{name}.weight")],
                [normed, "", "", total],
                name=normed,
                domain="com.microsoft",
                epsilon=self._manifest.model.rms_norm_eps,
            )
        )
        return total, normed

    def _linear(self, name, x):
        """A layer's product, and its bias where it has one; weights stand as `(in, out)`."""
        transposed = np.ascontiguousarray(self._weights[f"{name}.weight"].T)
        self._weights[f"{name}.transposed"] = transposed
        bias = f"{name}.bias" in self._weights
        product = f"{name}.product" if bias else name
        self._node("MatMul", [x, self._constant(f"{name}.transposed")], product)
        if bias:
            self._node("Add", [product, self._constant(f"{name}.bias")], name)
        return name

    def _node(self, operator, inputs, output, **attributes):
        self._nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def _constant(self, name):
        self._constants.append(numpy_helper.from_array(self._weights[name], name))
        return name


_TOKENS = (("input_ids", "rows"), ("attention_mask", "total_len"))
"""Inputs of int64 `(batch, length)`."""


def _info(name, element_type, *shape):
    return helper.make_tensor_value_info(name, element_type, shape)
