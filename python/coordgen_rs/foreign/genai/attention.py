"""GroupQueryAttention, in operators whose rows have the same bits at every width.

In: a node of ONNX Runtime GenAI's graphs. Out: the nodes that take its place. They read the mask of
a draft tree, and write keys and values to absolute slots of the cache, in place, as in
`tools/export/cpu/graph.py`, where it is told why these operators are exact. The original has a
kernel of its own for one row, which gives other bits, and cannot be told of a tree.

The new graph reads: position_ids (1, M) int64; mask (1, 1, M, slots) f32, additive and finite;
write_index (1,) int64; key_i, value_i (1, kv_heads, slots, head_dim) f32 for each layer i.
"""

from typing import Any

import onnx
from onnx import TensorProto, helper

from coordgen_rs.bundle.manifest import ModelShape
from coordgen_rs.foreign.genai.folder import DECODE_ROWS
from coordgen_rs.foreign.genai.graph import DecoderGraph
from coordgen_rs.foreign.genai.graph_edit import attributes

_CONTRIBUTED = ("FusedMatMul",)
_ANY, _SAME = -1, 0
"""Dimensions in a Reshape: the one that it infers, and one that keeps its length."""
_MASKED = -1e4
"""The value that the core writes into masks."""

_INPUTS = (
    *("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"),
    *("cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink"),
    *("k_scale", "v_scale", "q_norm_weight", "k_norm_weight"),
)
_UNSUPPORTED_INPUTS = (
    *("attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight"),
)
"""ONNX Runtime's CPU provider does not run the last four: a folder for CPU has none of them."""
_READ = (
    *("num_heads", "kv_num_heads", "scale", "local_window_size", "softcap", "do_rotary"),
    "rotary_interleaved",
)
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "sliding_window_cache": (0, 1),
    "smooth_softmax": (0, -1),
    "causal": (1,),
    "k_quant_type": (b"NONE",),
    "v_quant_type": (b"NONE",),
    "kv_cache_bit_width": (0,),
    "qk_output": (0,),
}
"""Attributes that are not read, and the values that they may have."""


class AttentionWriter:
    """Writes the nodes for all layers; what they share is written once.

    Args:
        graph: Holds the nodes, and what they rotate by.
        sizes: The sizes of all layers.
    """

    def __init__(self, graph: DecoderGraph, sizes: ModelShape) -> None:
        self._graph, self._sizes = graph, sizes
        self._nodes: list[onnx.NodeProto] = []
        self._shared: set[str] = set()

    def replacement(self, node: onnx.NodeProto, layer: int) -> list[onnx.NodeProto]:
        """The nodes that compute what `node` does.

        Raises:
            BundleError: It does something that they cannot; the message names it.
        """
        self._nodes, name = [], f"coordgen.layer_{layer}"
        given = {name: value for name, value in zip(_INPUTS, node.input, strict=False) if value}
        options = attributes(node)
        self._check(node, given, options)
        rotations = self._rotations(given) if options.get("do_rotary") else None
        query, key, value = self._heads(name, given, options, rotations)
        caches = []
        for kind, new in (("key", key), ("value", value)):
            cache = f"{kind}_{layer}"
            inputs = [cache, new, "write_index"]
            caches.append(self._node("TensorScatter", inputs, f"{cache}_out", axis=-2))
        attended = self._attend(name, query, caches, options)
        attended = self._node("Transpose", [attended], f"{name}.attended_by_row", perm=[0, 2, 1, 3])
        width = self._sizes.num_heads * self._sizes.head_dim
        self._node("Reshape", [attended, self._integers(1, _ANY, width)], node.output[0])
        return self._nodes

    def _check(self, node: onnx.NodeProto, given: dict[str, str], options: dict[str, Any]) -> None:
        """Refuse what the nodes would ignore.

        Raises:
            BundleError: There is something.
        """
        refused = [name for name in _UNSUPPORTED_INPUTS if name in given]
        refused += [f"input {len(_INPUTS)}"] if len(node.input) > len(_INPUTS) else []
        for name, value in options.items():
            if name not in _READ and value not in _WITHOUT_EFFECT.get(name, ()):
                refused.append(f"{name}={value!r:.30}")
        if any(node.output[3:]):
            refused.append("output 3")
        if refused:
            raise self._graph.error(
                f"its attention uses {', '.join(refused)}, which is not supported"
            )
        heads = options.get("num_heads"), options.get("kv_num_heads")
        if heads != (self._sizes.num_heads, self._sizes.num_kv_heads):
            raise self._graph.error(f"its attention has {heads} heads, unlike its config")

    def _rotations(self, given: dict[str, str]) -> list[str]:
        """Cosines and sines of each row, `(1, M, size / 2)`."""
        if "cos_cache" not in given or "sin_cache" not in given:
            raise self._graph.error("its attention rotates without cos_cache and sin_cache")
        rows = []
        for name in (given["cos_cache"], given["sin_cache"]):
            # A draft may reach beyond the last position; it is cut off when it is accepted.
            last = self._graph.cache_shape(name)[0] - 1
            inputs = ["position_ids", self._integers(last)]
            positions = self._shared_node("Min", inputs, f"coordgen.positions_to_{last}")
            rows.append(self._shared_node("Gather", [name, positions], f"coordgen.{name}.rows"))
        return rows

    def _heads(
        self,
        name: str,
        given: dict[str, str],
        options: dict[str, Any],
        rotations: list[str] | None,
    ) -> tuple[str, str, str]:
        """Query, key and value by head, `(1, heads, M, head_dim)`, rotated."""
        heads, kv_heads = self._sizes.num_heads, self._sizes.num_kv_heads

        def rotated(x: str) -> str:
            return x if rotations is None else self._rotated(x, given, options, rotations)

        if "key" in given:
            query, key, value = (
                self._by_head(given[part], count, f"{name}.{part}")
                for part, count in (("query", heads), ("key", kv_heads), ("value", kv_heads))
            )
            return rotated(query), rotated(key), value
        packed = self._by_head(given["query"], heads + 2 * kv_heads, f"{name}.qkv")
        parts = {f"{name}.both": heads + kv_heads, f"{name}.value": kv_heads}
        both, value = self._split(packed, parts)
        parts = {f"{name}.query": heads, f"{name}.key": kv_heads}
        query, key = self._split(rotated(both), parts)
        return query, key, value

    def _by_head(self, x: str, heads: int, name: str) -> str:
        """`x (1, M, heads * head_dim)` as `(1, heads, M, head_dim)`."""
        by_row = self._integers(1, _ANY, heads, self._sizes.head_dim)
        by_row = self._node("Reshape", [x, by_row], f"{name}_by_row")
        return self._node("Transpose", [by_row], f"{name}_by_head", perm=[0, 2, 1, 3])

    def _split(self, x: str, parts: dict[str, int]) -> list[str]:
        """Consecutive heads of `x`: so many of each name."""
        self._add("Split", [x, self._integers(*parts.values())], list(parts), axis=1)
        return list(parts)

    def _rotated(
        self, x: str, given: dict[str, str], options: dict[str, Any], rotations: list[str]
    ) -> str:
        size = 2 * self._graph.cache_shape(given["cos_cache"])[1]
        partial = {} if size == self._sizes.head_dim else {"rotary_embedding_dim": size}
        return self._node(
            "RotaryEmbedding",
            [x, *rotations],
            f"{x}.rotated",
            interleaved=options.get("rotary_interleaved", 0),
            **partial,
        )

    def _attend(self, name: str, query: str, caches: list[str], options: dict[str, Any]) -> str:
        """Softmax attention of `query (1, heads, M, head_dim)` over the caches, same shape."""
        sizes, (key, value) = self._sizes, caches
        group = sizes.num_heads // sizes.num_kv_heads
        scale = float(options.get("scale") or sizes.head_dim**-0.5)
        mask = self._mask(int(options.get("local_window_size", -1)))
        if group == 1:  # a product of a single row takes another kernel, so there is one more
            query = self._lengthened(query, f"{name}.query.lengthened")
            mask = self._lengthened(mask, f"coordgen.{mask}.lengthened", is_shared=True)
        else:  # heads that share a key are further rows of one product
            folded = self._integers(1, sizes.num_kv_heads, _ANY, sizes.head_dim)
            query = self._node("Reshape", [query, folded], f"{name}.query_folded")
        x = self._node("FusedMatMul", [query, key], f"{name}.scores", transB=1, alpha=scale)
        x = self._capped(x, float(options.get("softcap", 0.0)))
        if group > 1:
            unfolded = self._integers(sizes.num_kv_heads, group, _ANY, _SAME)
            x = self._node("Reshape", [x, unfolded], f"{name}.scores_unfolded")
        x = self._node("Add", [x, mask], f"{name}.scores_masked")
        x = self._node("Softmax", [x], f"{name}.weights", axis=-1)
        if group > 1:
            folded = self._integers(1, sizes.num_kv_heads, _ANY, _SAME)
            x = self._node("Reshape", [x, folded], f"{name}.weights_folded")
        x = self._node("MatMul", [x, value], f"{name}.attended")
        if group == 1:
            ends = [self._integers(number) for number in (0, -1, 2)]
            return self._node("Slice", [x, *ends], f"{name}.attended.shortened")
        by_head = self._integers(1, sizes.num_heads, _ANY, sizes.head_dim)
        return self._node("Reshape", [x, by_head], f"{name}.attended_by_head")

    def _capped(self, x: str, cap: float) -> str:
        if not cap:
            return x
        limit = self._constant(f"cap_{cap}", TensorProto.FLOAT, [], [cap])
        x = self._node("Div", [x, limit], f"{x}.of_cap")
        x = self._node("Tanh", [x], f"{x}.tanh")
        return self._node("Mul", [x, limit], f"{x}.capped")

    def _mask(self, window: int) -> str:
        """The mask, `(1, 1, M, slots)`; with a window, only of that many last positions.

        A row of a tree stands in a slot at or after its position. What is taken away is found by
        slots, so no ancestor in the tree may be out of the window: it is as wide as a step.

        Raises:
            BundleError: It is narrower.
        """
        if window <= 0:
            return "mask"
        if window < DECODE_ROWS:
            raise self._graph.error(
                f"its attention has a window of {window} tokens, narrower than the "
                f"{DECODE_ROWS} of a draft tree, which is not supported"
            )
        name = f"coordgen.mask_of_{window}"
        if name in self._shared:
            return name
        self._shared.add(name)
        shape = self._node("Shape", ["mask"], f"{name}.slots", start=3)
        shape = self._node("Squeeze", [shape], f"{name}.count")
        zero, one = (self._constant(f"int_{n}", TensorProto.INT64, [], [n]) for n in (0, 1))
        slots = self._node("Range", [zero, shape, one], f"{name}.range")
        behind = self._node("Sub", ["position_ids", self._integers(window)], f"{name}.behind")
        behind = self._node("Reshape", [behind, self._integers(1, 1, _ANY, 1)], f"{name}.by_row")
        gone = self._node("LessOrEqual", [slots, behind], f"{name}.gone")
        gone = self._node("Cast", [gone], f"{name}.factor", to=TensorProto.FLOAT)
        least = self._constant("masked", TensorProto.FLOAT, [], [_MASKED])
        gone = self._node("Mul", [gone, least], f"{name}.taken")
        return self._node("Min", ["mask", gone], name)

    def _lengthened(self, x: str, name: str, *, is_shared: bool = False) -> str:
        """`x (1, heads, M, size)` with a row of zeros behind the last."""
        inputs = [x, self._integers(0, 0, 0, 0, 0, 0, 1, 0)]
        return (self._shared_node if is_shared else self._node)("Pad", inputs, name)

    def _shared_node(self, operator: str, inputs: list[str], name: str, **options: Any) -> str:
        if name not in self._shared:
            self._shared.add(name)
            self._node(operator, inputs, name, **options)
        return name

    def _integers(self, *values: int) -> str:
        name = "integers_" + "_".join(map(str, values))
        return self._constant(name, TensorProto.INT64, [len(values)], values)

    def _constant(self, name: str, kind: int, shape: list[int], values: Any) -> str:
        name = f"coordgen.{name}"
        if name not in self._shared:
            self._shared.add(name)
            self._add("Constant", [], [name], value=helper.make_tensor(name, kind, shape, values))
        return name

    def _node(self, operator: str, inputs: list[str], output: str, **options: Any) -> str:
        self._add(operator, inputs, [output], **options)
        return output

    def _add(self, operator: str, inputs: list[str], outputs: list[str], **options: Any) -> None:
        domain = "com.microsoft" if operator in _CONTRIBUTED else ""
        self._nodes.append(
            helper.make_node(operator, inputs, outputs, name=outputs[0], domain=domain, **options)
        )
