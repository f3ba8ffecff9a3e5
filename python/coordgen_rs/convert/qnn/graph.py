"""The float32 graphs that are quantised for Qualcomm's HTP: a block of layers, or the head.

In: a checkpoint's weights. Out: a model with its weights, rows M and past slots P symbolic.
A block's inputs, all float32 (D hidden size):
    hidden (1, M, D); mask (1, 1, M, P + M), additive and finite;
    cos, sin (1, 1, M, head_dim / 2), unless no layer of the block is rotated;
    for each layer i of the model: key_i, value_i (1, num_kv_heads, P, head_dim), the past.
Its outputs: hidden_out (1, M, D); key_i_new, value_i_new (1, num_kv_heads, M, head_dim), the new
rows only, which stand behind the past where they are attended to: the host commits some of them.
The head: hidden (1, M, D) to logits (1, M, vocab_size).
Matrices may also be further inputs (in, out), under the names of the constants that they would be:
so no weight is in memory while encodings are chosen.

Why these operators: HTP runs each of them in fixed point (measured on its emulator, for HTP
versions 73 to 81). ScatterND, RotaryEmbedding and Where do not finalise in a quantised block,
ScatterElements gives wrong results, GroupQueryAttention is not there at all.
The factor 1 / sqrt(head_dim) is part of the query weights, or of the norm behind them, which saves
a product of all scores; a factor of the residual stream is part of the weights before it.
Keys and values are stored less a constant, zero here, that `outliers.py` chooses for each channel.
Layers that read the same input are not joined, as on CPU: each gets encodings of its own.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from coordgen_rs.bundle import rope
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.families.model_config import ModelConfig
from coordgen_rs.convert.graph_builder import GraphBuilder, float_info

ROWS, PAST, ATTENDED = "rows", "past", "attended"
"""The symbolic dimensions."""

REPEATED_MASK = "mask_of_group"
"""The value that holds the mask once for each head of a group, where groups have several."""

_PARTS = ("first", "second", "rest")
_OPSET = 23
_ANY = -1
"""The number of rows in a Reshape, which infers it."""
_MASKED = -1e4

Array = NDArray[np.float32]


def scores_name(layer: int) -> str:
    """The value that holds a layer's attention scores before the mask."""
    return f"layer_{layer}.scores"


def masked_scores_name(layer: int) -> str:
    """The value that holds a layer's attention scores with the mask added."""
    return f"layer_{layer}.scores_masked"


def key_value_names(layer: int, kind: str) -> tuple[str, str, str]:
    """Past, new rows and both together of a layer's keys or values (`kind`)."""
    return f"{kind}_{layer}", f"{kind}_{layer}_new", f"{kind}_{layer}_all"


def centre_names(layer: int) -> tuple[str, str, str]:
    """The constants that are taken off rotated keys, for first halves, second halves and the rest.

    `(num_kv_heads, 1, n)` each, the last of them only where there is a rest.
    """
    first, second, rest = (f"layer_{layer}.key_centre_{part}" for part in _PARTS)
    return first, second, rest


def block_graph(
    source: Checkpoint,
    layers: range,
    *,
    has_matrices: bool = True,
    apart: Mapping[int, Sequence[int]] | None = None,
) -> onnx.ModelProto:
    """The graph of some consecutive layers, whose matrices are constants or inputs.

    `apart` are channels of a layer's feed-forward that are computed by themselves, under names that
    end in `_apart`, so that they have encodings of their own.

    Raises CheckpointError for a tensor that is missing, misshaped or damaged.
    """
    config = source.config
    inputs = [
        float_info("hidden", 1, ROWS, config.hidden_size),
        float_info("mask", 1, 1, ROWS, ATTENDED),
    ]
    if not config.unrotated_layers.issuperset(layers):
        inputs += [float_info(angle, 1, 1, ROWS, len(config.inv_freq)) for angle in ("cos", "sin")]
    outputs = [float_info("hidden_out", 1, ROWS, config.hidden_size)]
    graph, x = _QnnGraph(source, has_matrices), "hidden"
    for number in layers:
        for kind in ("key", "value"):
            past, new, _ = key_value_names(number, kind)
            inputs.append(float_info(past, 1, config.num_kv_heads, PAST, config.head_dim))
            outputs.append(float_info(new, 1, config.num_kv_heads, ROWS, config.head_dim))
        x = graph.attention(number, x)
        output = "hidden_out" if number == layers[-1] else None
        x = graph.feed_forward(number, x, output, (apart or {}).get(number, ()))
    return graph.model("block", [*inputs, *graph.matrices], outputs, _OPSET)


def has_bare_keys(config: ModelConfig, layer: int) -> bool:
    """Whether a layer's keys are neither normed nor rotated: their centre is part of a bias."""
    return layer in config.unrotated_layers and not config.qk_norm


def head_graph(source: Checkpoint, *, has_matrices: bool = True) -> onnx.ModelProto:
    """The graph from the last hidden rows to logits, made as in `block_graph`."""
    graph, config = _QnnGraph(source, has_matrices), source.config
    normed = graph.norm("norm", "hidden", source.final_norm_tensor())
    graph.linear("logits", normed, source.output_tensor())
    return graph.model(
        "head",
        [float_info("hidden", 1, ROWS, config.hidden_size), *graph.matrices],
        [float_info("logits", 1, ROWS, config.vocab_size)],
        _OPSET,
    )


def text_inputs(config: ModelConfig, layers: range, num_rows: int) -> dict[str, Array]:
    """All inputs of a block but `hidden`, where a text is read at once, from its start.

    The past has one slot, which nobody sees, because ONNX Runtime reduces no empty tensors.
    """
    mask = np.full((1, 1, num_rows, 1 + num_rows), _MASKED, np.float32)
    mask[0, 0, :, 1:] = np.where(np.tri(num_rows, dtype=bool), 0, np.float32(_MASKED))
    cos, sin = rope.tables(num_rows, config.inv_freq, config.rope_factor or 1.0)
    past = np.zeros((1, config.num_kv_heads, 1, config.head_dim), np.float32)
    return {
        "mask": mask,
        "cos": cos[np.newaxis, np.newaxis],
        "sin": sin[np.newaxis, np.newaxis],
        **{key_value_names(it, kind)[0]: past for it in layers for kind in ("key", "value")},
    }


class _QnnGraph(GraphBuilder):
    """A graph under construction that reads its weights from a checkpoint."""

    def __init__(self, source: Checkpoint, has_matrices: bool) -> None:
        super().__init__()
        self._source, self._model = source, source.config
        self._has_matrices, self._has_repeated_mask = has_matrices, False
        self.matrices: list[onnx.ValueInfoProto] = []
        """Inputs that stand for matrices."""

    def linear(self, name: str, x: str, weight: Tensor, bias: Array | None = None) -> str:
        """`x (1, M, in)` times `weight (out, in)`, plus `bias (out,)`: `(1, M, out)`."""
        product = name if bias is None else f"{name}.product"
        matrix = f"{name}.weight"
        if self._has_matrices:
            self._constant(matrix, np.ascontiguousarray(weight.load().T))
        else:
            self.matrices.append(float_info(matrix, *weight.shape[::-1]))
        self.node("MatMul", [x, matrix], product)
        if bias is None:
            return product
        return self.node("Add", [product, self._constant(f"{name}.bias", bias)], name)

    def norm(self, name: str, x: str, weight: Tensor) -> str:
        """RMSNorm of the last dimension."""
        scale = self._constant(f"{name}.weight", weight.load())
        epsilon = self._model.rms_norm_eps
        return self.node("RMSNormalization", [x, scale], name, axis=-1, epsilon=epsilon)

    def attention(self, number: int, x: str) -> str:
        """`x (1, M, D)` plus attention over the past and the new rows."""
        model, name = self._model, f"layer_{number}"
        width = model.num_heads * model.head_dim
        normed = self.norm(f"{name}.attention_norm", x, self._norm(number, "attention_norm"))
        query = self._query_or_key(number, "query", normed)
        _, new_key, _ = key_value_names(number, "key")
        self._query_or_key(number, "key", normed, output=new_key)
        _, new_value, _ = key_value_names(number, "value")
        self._by_head(number, "v_proj", normed, new_value)
        attended = self._attend(number, query)
        attended = self.node("Transpose", [attended], f"{name}.by_row", perm=[0, 2, 1, 3])
        rows = self.integers(1, _ANY, width)
        attended = self.node("Reshape", [attended, rows], f"{name}.attended_rows")
        weight = self._weight(number, "self_attn.o_proj", self._model.residual_scale)
        centre = np.zeros(model.hidden_size, np.float32)
        out = self.linear(f"{name}.attention_out", attended, weight, centre)
        return self.node("Add", [x, out], f"{name}.after_attention")

    def feed_forward(
        self, number: int, x: str, output: str | None, apart: Sequence[int] = ()
    ) -> str:
        """`x (1, M, D)` plus SwiGLU, under the name `output` if there is one."""
        name = f"layer_{number}"
        normed = self.norm(f"{name}.ffn_norm", x, self._norm(number, "ffn_norm"))
        if not len(apart):
            out = self._gated(number, normed, None)
        else:
            others = np.setdiff1d(np.arange(self._model.ffn_size), apart)
            parts = [
                self._gated(number, normed, others),
                self._gated(number, normed, np.asarray(apart), "_apart"),
            ]
            out = self.node("Add", parts, f"{name}.down_joined")
        return self.node("Add", [x, out], output or f"{name}.after_ffn")

    def _gated(
        self, number: int, x: str, channels: NDArray[np.int64] | None, suffix: str = ""
    ) -> str:
        """What some channels of the feed-forward give, None for all: `(1, M, D)`."""
        gate, up = self._weight(number, "mlp.gate_proj"), self._weight(number, "mlp.up_proj")
        down = self._weight(number, "mlp.down_proj", self._model.residual_scale)
        if channels is not None:
            gate, up, down = gate.rows(channels), up.rows(channels), down.columns(channels)

        def name(part: str) -> str:
            return f"layer_{number}.{part}{suffix}"

        gated = self.linear(name("gate"), x, gate)
        upward = self.linear(name("up"), x, up)
        sigmoid = self.node("Sigmoid", [gated], name("sigmoid"))
        silu = self.node("Mul", [gated, sigmoid], name("silu"))
        activated = self.node("Mul", [silu, upward], name("activated"))
        return self.linear(name("down"), activated, down)

    def _by_head(
        self,
        number: int,
        part: str,
        x: str,
        output: str,
        scale: float = 1.0,
        norm: Tensor | None = None,
    ) -> str:
        """A linear layer of attention, its weights times `scale`: `(1, heads, M, head_dim)`.

        Each head is normed by itself if there is a `norm`: in three dimensions, before heads are
        moved: with a norm in four, rows behind the first differ with the number of rows (measured
        on the emulator).
        """
        model = self._model
        heads = model.num_heads if part == "q_proj" else model.num_kv_heads
        width = heads * model.head_dim
        weight = self._weight(number, f"self_attn.{part}", scale)
        bias = None
        has_centre = part == "k_proj" and has_bare_keys(self._model, number)
        if part == "v_proj" or has_centre:
            bias = np.zeros(width, np.float32)
        if self._model.qkv_bias:
            bias_name = f"model.layers.{number}.self_attn.{part}.bias"
            bias = self._source.tensor(bias_name, width).times(scale).load()
        rows = self.linear(f"layer_{number}.{part}", x, weight, bias)
        if norm is not None:
            one_by_one = self.integers(1, _ANY, model.head_dim)
            rows = self.node("Reshape", [rows, one_by_one], f"{output}.one_by_one")
            rows = self.norm(f"layer_{number}.{part}.normed", rows, norm)
        split = self.integers(1, _ANY, heads, model.head_dim)
        rows = self.node("Reshape", [rows, split], f"{output}.by_row")
        return self.node("Transpose", [rows], output, perm=[0, 2, 1, 3])

    def _query_or_key(self, number: int, kind: str, x: str, output: str | None = None) -> str:
        """Queries, scaled, or keys: `(1, heads, M, head_dim)`, under the name `output` if given.

        They are normed and rotated where the model does so.
        """
        config, name = self._model, f"layer_{number}.{kind}"
        scale = config.score_scale if kind == "query" else 1.0
        is_rotated = number not in config.unrotated_layers
        finished = output or (f"{name}_rotary.turned" if is_rotated else f"{name}_finished")
        by_head = name if is_rotated else finished
        part = "q_proj" if kind == "query" else "k_proj"
        if config.qk_norm:
            norm = self._norm(number, f"{kind}_norm", scale)
            heads = self._by_head(number, part, x, by_head, norm=norm)
        else:
            heads = self._by_head(number, part, x, by_head, scale)
        if not is_rotated:
            return heads
        centres = centre_names(number) if kind == "key" else ()
        return self._rotate(f"{name}_rotary", heads, finished, centres)

    def _rotate(self, name: str, x: str, output: str, centres: Sequence[str]) -> str:
        """Rotary embedding of `x (1, heads, M, head_dim)`: element i turns with i + head_dim / 2.

        Spelt out: quantised blocks with the operator RotaryEmbedding did not finalise on HTP.
        The graph has inputs `cos` and `sin` `(1, 1, M, head_dim / 2)`; with fewer columns, the
        dimensions behind those that are rotated stay as they are. `output` names the result, from
        which constants with the names `centres` are taken, if there are any.
        """
        half = len(self._model.inv_freq)
        sizes = [half, half, self._model.head_dim - 2 * half]
        sizes = sizes if sizes[2] else sizes[:2]
        first, second, *rest = parts = [
            f"{name}.{part}" for part, _ in zip(_PARTS, sizes, strict=False)
        ]
        self.split("Split", [x, self.integers(*sizes)], parts, axis=-1)
        first_cos = self.node("Mul", [first, "cos"], f"{name}.first_cos")
        second_sin = self.node("Mul", [second, "sin"], f"{name}.second_sin")
        second_cos = self.node("Mul", [second, "cos"], f"{name}.second_cos")
        first_sin = self.node("Mul", [first, "sin"], f"{name}.first_sin")
        turned_first = self.node("Sub", [first_cos, second_sin], f"{name}.turned_first")
        turned_second = self.node("Add", [second_cos, first_sin], f"{name}.turned_second")
        turned = [turned_first, turned_second, *rest]
        for index, (centre, size) in enumerate(zip(centres, sizes, strict=False)):
            zeros = np.zeros((self._model.num_kv_heads, 1, size), np.float32)
            pair = [turned[index], self._constant(centre, zeros)]
            turned[index] = self.node("Sub", pair, f"{name}.centred_{_PARTS[index]}")
        return self.node("Concat", turned, output, axis=-1)

    def _attend(self, number: int, query: str) -> str:
        """Softmax attention of `query (1, heads, M, head_dim)`, in the same shape.

        Heads that share a key are further rows of one product, so that it is never repeated.
        """
        model, name = self._model, f"layer_{number}"
        kv_heads, size = model.num_kv_heads, model.head_dim
        group = model.num_heads // kv_heads
        keys, values = (
            self.node("Concat", list(names[:2]), names[2], axis=2)
            for names in (key_value_names(number, kind) for kind in ("key", "value"))
        )
        if group > 1:
            folded = self.integers(1, kv_heads, _ANY, size)
            query = self.node("Reshape", [query, folded], f"{name}.query_folded")
        keys = self.node("Transpose", [keys], f"{name}.keys_transposed", perm=[0, 1, 3, 2])
        scores = self.node("MatMul", [query, keys], scores_name(number))
        scores = self.node("Add", [scores, self._mask(group)], masked_scores_name(number))
        weights = self.node("Softmax", [scores], f"layer_{number}.weights", axis=-1)
        attended = self.node("MatMul", [weights, values], f"{name}.attended")
        if group > 1:
            by_head = self.integers(1, model.num_heads, _ANY, size)
            attended = self.node("Reshape", [attended, by_head], f"{name}.attended_by_head")
        return attended

    def _mask(self, group: int) -> str:
        """The mask once for each head of a group: they stand below one another, each with all rows.

        All layers of the block read the same one.
        """
        if group == 1:
            return "mask"
        if not self._has_repeated_mask:
            self.node("Concat", ["mask"] * group, REPEATED_MASK, axis=2)
            self._has_repeated_mask = True
        return REPEATED_MASK

    def _weight(self, number: int, part: str, scale: float = 1.0) -> Tensor:
        return self._source.weight_tensor(number, part).times(scale)

    def _norm(self, number: int, field: str, scale: float = 1.0) -> Tensor:
        """What a norm multiplies by, times `scale`; `field` as in `ModelConfig.norm_names`."""
        is_of_heads = field in ("query_norm", "key_norm")
        size = self._model.head_dim if is_of_heads else self._model.hidden_size
        name = self._model.norm_names(number)[field]
        return self._source.norm_tensor(name, size).times(scale)

    def _constant(self, name: str, values: Array) -> str:
        self.constants[name] = numpy_helper.from_array(values, name)
        return name
