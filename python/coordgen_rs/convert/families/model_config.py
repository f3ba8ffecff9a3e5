"""What the exporter must know of a model, whatever file and family it is of: sizes and switches.

And what layers have in place of attention, or of a dense feed-forward. In: the fields of a
config.json, in the words of Qwen3-MoE for mixtures of experts; the tensors of a checkpoint. Out: an
`Experts`, or one of the kinds of recurrent layers; which tensors a layer has, and how large they
are. All experts of a layer are in one matrix, one below the other, whether a checkpoint holds them
one by one or all together. Tensors of recurrent layers have the names of transformers but for `A`,
which is -exp(A_log).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.layers import LayerCache, RecurrentKind
from coordgen_rs.bundle.manifest import ModelShape, Recommended
from coordgen_rs.bundle.rope import QueryScaling
from coordgen_rs.convert.containers.tensor import Tensor, stacked
from coordgen_rs.convert.families.config_json import positive, refuse_field
from coordgen_rs.errors import CheckpointError

Scoring = Literal["softmax", "sigmoid"]
"""How a router's logits become shares: over all experts together, or of each by itself."""
ExpertGate = Literal["silu", "gelu_tanh", "clamped_swiglu"]

ROUTER = "mlp.gate"
CHOICE_BIAS = "mlp.expert_bias"
BESIDE_GATE = "mlp.shared_expert_gate"
_GATES_AND_UPS = "mlp.experts.gate_up_proj.weight"
"""Of each expert, its gate, then its up."""
PARTS = ("gate_proj", "up_proj", "down_proj")
"""What the matrices of a layer are called, `mlp.experts.{part}.weight`: the first two
`(num * size, hidden_size)`, the last `(num * hidden_size, size)`."""

_MOST_EXPERTS = 1 << 12
"""No known model has more in a layer; a damaged file may."""
_ONE_EXPERT = re.compile(r"(.*\.mlp\.experts\.)(\d{1,5})\.(\w+\.weight)")
_ALL_EXPERTS = re.compile(r"(.*\.mlp\.experts\.(?:gate_up_proj|down_proj))(?:\.weight)?")


@dataclass(frozen=True)
class Experts:
    """The mixtures of experts of a model, one for each of some layers."""

    layers: frozenset[int]
    """Those that have one; others have a dense feed-forward."""
    num: int
    """Experts of a layer."""
    chosen: int
    """Those that a row is given to."""
    size: int
    """Of an expert's feed-forward."""
    scoring: Scoring = "softmax"
    is_normed: bool = True
    """Whether the shares of the chosen add up to 1."""
    share_epsilon: float = 0.0
    """What is added to their sum before they are divided by it."""
    share_scale: float = 1.0
    """What they are multiplied by at last."""
    has_choice_bias: bool = False
    """Whether a bias is added to scores for choosing alone."""
    shared_size: int = 0
    """Of the feed-forward that every row gets beside its experts; 0 where there is none."""
    gates_shared: bool = False
    """Whether that is multiplied by the sigmoid of a gate of its own."""
    gate: ExpertGate = "silu"
    has_biases: bool = False
    """Whether the router and the experts' layers have biases."""

    def shapes(self, hidden_size: int) -> dict[str, tuple[int, int]]:
        """The shape of each of a layer's `PARTS`."""
        up = (self.num * self.size, hidden_size)
        return dict(zip(PARTS, (up, up, (self.num * hidden_size, self.size)), strict=True))


def read_experts(config: Mapping[str, Any], layers: Iterable[int], **switches: Any) -> Experts:
    """The sizes that all families tell, and what they differ in.

    Raises:
        CheckpointError: A field is malformed, or out of range.
    """
    num, chosen = positive(config, "num_experts"), positive(config, "num_experts_per_tok")
    if num > _MOST_EXPERTS or chosen > num:
        raise CheckpointError(
            f"config.json: num_experts is {num} and num_experts_per_tok {chosen}, expected at most "
            f"{_MOST_EXPERTS}, and no more than there are"
        )
    size = positive(config, "moe_intermediate_size")
    return Experts(frozenset(layers), num, chosen, size, **switches)


def matrices_of_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with all experts of a layer as matrices.

    Raises:
        CheckpointError: An expert is missing, or has another shape than others.
    """
    found: dict[str, Tensor] = {}
    experts = defaultdict[str, dict[int, Tensor]](dict)
    for name, tensor in tensors.items():
        one, all_of_them = _ONE_EXPERT.fullmatch(name), _ALL_EXPERTS.fullmatch(name)
        if one is not None:
            experts[one[1] + one[3]][int(one[2])] = tensor
        elif all_of_them is not None and len(tensor.shape) == 3:
            found[f"{all_of_them[1]}.weight"] = tensor.as_matrix()
        else:
            found[name] = tensor
    for name, its in experts.items():
        for number in range(len(its)):
            if number not in its:
                raise CheckpointError(f"{name}: the checkpoint has no expert {number}")
        found[name] = stacked(name, [its[number] for number in range(len(its))])
    return found


def halved_experts(tensors: Mapping[str, Tensor], num: int) -> dict[str, Tensor]:
    """The tensors with gates and ups of so many experts apart, where they are one matrix.

    Raises:
        CheckpointError: There are not as many of each in it.
    """
    found = dict(tensors)
    for name, both in tensors.items():
        if name.endswith(_GATES_AND_UPS):
            if both.shape[0] % (2 * num):
                raise CheckpointError(f"{name} has the shape {both.shape}, expected {num} experts")
            del found[name]
            prefix, rows = name.removesuffix(_GATES_AND_UPS), both.shape[0] // num
            for part, first, last in (("gate_proj", 0, rows // 2), ("up_proj", rows // 2, rows)):
                spans = [(start + first, start + last) for start in range(0, num * rows, rows)]
                found[f"{prefix}mlp.experts.{part}.weight"] = both.joined(spans)
    return found


_LEAST_TAPS, _MOST_TAPS = 2, 8
"""Of a convolution; those of known models have 3 and 4."""
_MOST_CHANNELS = 1 << 20
_MOST_STATE = 1 << 28
"""Numbers of a layer's state; no known model has as many, a damaged file may."""
_CONVOLUTIONS = (".conv.conv.weight", ".conv1d.weight")
_LOGARITHM, _ITSELF = ".A_log", ".A"


@dataclass(frozen=True)
class MixerTensors:
    """The tensors of a layer's part that mixes tokens, by their names in the layer."""

    into: Mapping[str, int]
    """What rows are projected to, in this order: weights `(size, hidden_size)`."""
    convolution: str
    """A causal convolution: a weight `(channels, taps)`, perhaps with a bias."""
    has_bias: bool
    vectors: Mapping[str, tuple[str, int]]
    """Name and size by the operator's input."""
    out: str
    """What is projected back: a weight `(hidden_size, width)`."""


@dataclass(frozen=True)
class ShortConvolution:
    """LFM2's.

    Of three parts of a projection the first times the third is convolved, and multiplied by the
    second.
    """

    channels: int
    taps: int

    kind: RecurrentKind = "short_convolution"

    @property
    def width(self) -> int:
        """Columns of what the layer projects back."""
        return self.channels

    @property
    def tensors(self) -> MixerTensors:
        """Its tensors."""
        into = {"conv.in_proj.weight": 3 * self.channels}
        return MixerTensors(into, "conv.conv", False, {}, "conv.out_proj.weight")


@dataclass(frozen=True)
class DeltaNet:
    """Qwen3.5's gated delta net, behind a causal convolution."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    is_tiled: bool = False
    """Whether what is projected back has the first value head of every key head first, then the
    second of each; else those of a key head are neighbours, as they are before."""

    kind: RecurrentKind = "gated_delta_net"

    @property
    def channels(self) -> int:
        """Columns that are convolved: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.width

    @property
    def width(self) -> int:
        """Columns of what the layer projects back."""
        return self.value_heads * self.value_dim

    @property
    def tensors(self) -> MixerTensors:
        """Its tensors; what is projected are queries, keys and values, gates, betas and decays."""
        heads = self.value_heads
        return MixerTensors(
            {
                "linear_attn.in_proj_qkv.weight": self.channels,
                "linear_attn.in_proj_z.weight": self.width,
                "linear_attn.in_proj_b.weight": heads,
                "linear_attn.in_proj_a.weight": heads,
            },
            "linear_attn.conv1d",
            False,
            {
                "a": ("linear_attn.A", heads),
                "dt_bias": ("linear_attn.dt_bias", heads),
                "norm": ("linear_attn.norm.weight", self.value_dim),
            },
            "linear_attn.out_proj.weight",
        )


@dataclass(frozen=True)
class SelectiveState:
    """Mamba-2's selective state update, behind a causal convolution."""

    heads: int
    head_dim: int
    groups: int
    state_dim: int
    taps: int
    has_bias: bool
    """Whether the convolution has one."""
    least_step: float
    most_step: float

    kind: RecurrentKind = "selective_state"

    @property
    def channels(self) -> int:
        """Columns that are convolved: inputs, B and C."""
        return self.width + 2 * self.groups * self.state_dim

    @property
    def width(self) -> int:
        """Columns of what the layer projects back."""
        return self.heads * self.head_dim

    @property
    def tensors(self) -> MixerTensors:
        """Its tensors; what is projected are gates, inputs with B and C, and steps."""
        return MixerTensors(
            {"mamba.in_proj.weight": self.width + self.channels + self.heads},
            "mamba.conv1d",
            self.has_bias,
            {
                "a": ("mamba.A", self.heads),
                "dt_bias": ("mamba.dt_bias", self.heads),
                "d": ("mamba.D", self.heads),
                "norm": ("mamba.norm.weight", self.width),
            },
            "mamba.out_proj.weight",
        )


Recurrent = ShortConvolution | DeltaNet | SelectiveState


def read_taps(config: Mapping[str, Any], name: str, default: int) -> int:
    """The taps of a convolution.

    Raises:
        CheckpointError: There are too few or too many.
    """
    taps = positive(config, name, default)
    if not _LEAST_TAPS <= taps <= _MOST_TAPS:
        refuse_field({name: taps}, name, f"{_LEAST_TAPS} to {_MOST_TAPS}")
    return taps


def check_sizes(prefix: str, channels: int, state: int) -> None:
    """Refuse what no model has.

    Raises:
        CheckpointError: The layers are too large to be any.
    """
    if channels > _MOST_CHANNELS or state > _MOST_STATE:
        raise CheckpointError(
            f"config.json: {prefix}* give {channels} channels and a state of {state} numbers, "
            f"expected {_MOST_CHANNELS} and {_MOST_STATE} at most"
        )


def matrices_of_recurrent_layers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, of which convolutions are matrices, and no logarithms decays."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(_CONVOLUTIONS):
            found[name] = tensor.without_ones()
        elif name.endswith(_LOGARITHM):
            found[name.removesuffix(_LOGARITHM) + _ITSELF] = _decay(tensor)
        else:
            found[name] = tensor
    return found


def _decay(logarithms: Tensor) -> Tensor:
    """What a state decays by in a step of 1, as its logarithm: -exp of what is stored."""

    def decays(stored: NDArray[np.float32]) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            found = -np.exp(stored)
        if not np.isfinite(found).all():
            raise CheckpointError(f"{logarithms.name} holds what is no logarithm of a decay")
        return found

    return logarithms.computed(decays)


Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, kw_only=True)
class Switches:
    """Where the models of a family differ from Llama's, all in the same way."""

    qkv_bias: bool = False
    """Queries, keys and values have a bias."""
    out_bias: bool = False
    """What attention gives back to the stream has a bias."""
    has_sinks: bool = False
    """Each head of attention has a score that no value stands behind."""
    qk_norm: bool = False
    """Queries and keys are normed before they are rotated, each head by itself."""
    wide_qk_norm: bool = False
    """The norms of queries and keys are over all heads at once."""
    input_norms: bool = True
    """What attention and feed-forward read is normed."""
    output_norms: bool = False
    """What attention and feed-forward give is normed before it joins the residual stream."""
    norm_offset: float = 0.0
    """What is added to the weights of all norms but those inside recurrent layers."""
    activation: Activation = "silu"
    """The activation of the gate."""
    is_fused: bool = False
    """Query, key and value weights are one tensor, as are gate and up."""
    gated_attention: bool = False
    """What attention gives is multiplied by the sigmoid of a gate: `q_proj` has the query of each
    head, then its gate."""


@dataclass(frozen=True)
class ModelConfig(ModelShape, Switches):
    """Sizes and switches of a decoder: RMSNorm, RoPE, grouped queries, a gated feed-forward.

    What has a default is where models differ; the defaults are Llama's.
    """

    max_positions: int
    inv_freq: list[float]
    """`(head_dim / 2,)`, or fewer where only the first dimensions of a head are rotated; rope
    scaling included."""
    tied_head: bool
    """The output layer is the embedding."""
    bos_token_id: int | None
    end_token_ids: list[int]
    embedding_scale: float = 1.0
    """What the rows of the embedding are multiplied by, for the first layer."""
    attention_scale: float | None = None
    """What scores are multiplied by; None for the root of 1 / head_dim."""
    residual_scale: float = 1.0
    """What attention and feed-forward give is multiplied by this before it joins the residual."""
    logits_scale: float = 1.0
    """What the logits are multiplied by."""
    rope_factor: float | None = None
    """What cosines and sines of `inv_freq` are multiplied by; None for 1."""
    query_scaling: QueryScaling | None = None
    """How queries grow with their position; None where they do not."""
    recurrent: Recurrent | None = None
    """What `recurrent_layers` have in place of attention."""
    recurrent_layers: frozenset[int] = frozenset()
    experts: Experts | None = None
    """What some layers have in place of a dense feed-forward."""
    unrotated_layers: frozenset[int] = frozenset()
    """Layers without rotary embedding."""
    window: int | None = None
    """Tokens that `window_layers` see; None where they see the whole context."""
    window_layers: frozenset[int] = frozenset()
    """Layers with a sliding window."""
    window_inv_freq: list[float] | None = None
    """Rotation in `window_layers`, where it is another than `inv_freq`."""
    caches: tuple[LayerCache, ...] | None = None
    """The keys and values that each layer reads; None where all have their own, of one size."""
    keys_are_values: frozenset[int] = frozenset()
    """Layers whose values are their keys, before these are normed and rotated."""
    value_norm: bool = False
    """Values are normed, each head by itself, without a weight."""
    wide_ffn_layers: frozenset[int] = frozenset()
    """Layers whose feed-forward is twice as wide."""
    layer_scalars: bool = False
    """What a layer gives is multiplied by a number of its own."""
    per_layer_size: int = 0
    """Numbers that each layer reads of a token's second embedding; 0 where there is none."""
    logits_cap: float | None = None
    """What logits are kept below, by a hyperbolic tangent; None for nothing."""
    suppressed_token_ids: tuple[int, ...] = ()
    """Tokens that no answer may hold, whatever their logits."""
    recommended: Recommended | None = None
    """How its makers recommend to draw from it; None where they say nothing."""
    why_most_positions: str = ""
    """Why `max_positions` is less than config.json says; for messages."""

    @property
    def score_scale(self) -> float:
        """What attention scores are multiplied by."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    def has_experts(self, number: int) -> bool:
        """Whether the feed-forward of layer `number` is a mixture of experts."""
        return self.experts is not None and number in self.experts.layers

    def dense_size(self, number: int) -> int:
        """Of the feed-forward that every row gets in layer `number`; 0 for experts alone."""
        if self.experts is None or number not in self.experts.layers:
            return self.ffn_size * (2 if number in self.wide_ffn_layers else 1)
        return self.experts.shared_size

    def cache_of(self, number: int) -> LayerCache:
        """The keys and values that layer `number` reads."""
        if self.caches is not None:
            return self.caches[number]
        return LayerCache(self.num_kv_heads, self.head_dim, number)

    def shares_keys(self, number: int) -> bool:
        """Whether layer `number` reads the keys and values of an earlier one."""
        return self.cache_of(number).written_by != number

    def norm_names(self, number: int) -> dict[str, str]:
        """The tensors of the norms of layer `number`, by what is normed."""
        names = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
        if self.output_norms:
            names |= {
                "attention_out_norm": "post_attention_layernorm",
                "ffn_norm": "pre_feedforward_layernorm",
                "ffn_out_norm": "post_feedforward_layernorm",
            }
        if not self.input_norms:
            del names["attention_norm"], names["ffn_norm"]
        if self.qk_norm and number not in self.recurrent_layers:
            names["query_norm"] = "self_attn.q_norm"
            if not self.shares_keys(number):
                names["key_norm"] = "self_attn.k_norm"
        return {field: f"model.layers.{number}.{name}" for field, name in names.items()}

    def norm_size(self, field: str, number: int) -> int:
        """Dimensions of a norm in layer `number`, by what is normed."""
        cache = self.cache_of(number)
        heads = {"query_norm": self.num_heads, "key_norm": cache.num_kv_heads}
        if field not in heads:
            return self.hidden_size
        return heads[field] * cache.head_dim if self.wide_qk_norm else cache.head_dim

    def within(self, context: int) -> "ModelConfig":
        """The same without what a context of so many tokens does not reach.

        Its window, if that is as wide, and the growth of queries, if it begins behind.
        """
        window, scaling = self.window, self.query_scaling
        return replace(
            self,
            window=None if window is not None and context <= window else window,
            query_scaling=None if scaling is not None and context <= scaling.period else scaling,
        )


def linear_layers(config: ModelConfig, number: int) -> dict[str, dict[str, tuple[int, int]]]:
    """The linear layers of layer `number` but its experts, in the order of their computation.

    Returns:
        For each its tensors, which read the same, one below the other: `(rows, columns)` by their
        names in the layer, without `.weight`.
    """
    hidden, ffn = config.hidden_size, config.dense_size(number)
    if config.recurrent is not None and number in config.recurrent_layers:
        tensors = config.recurrent.tensors
        into = {it.removesuffix(".weight"): (n, hidden) for it, n in tensors.into.items()}
        back = {tensors.out.removesuffix(".weight"): (hidden, config.recurrent.width)}
        found = {"projected": into, "attention_out": back}
    else:
        cache = config.cache_of(number)
        query, key = (it * cache.head_dim for it in (config.num_heads, cache.num_kv_heads))
        sizes = {"q_proj": query * (2 if config.gated_attention else 1)}
        if not config.shares_keys(number):
            sizes["k_proj"] = key
            if number not in config.keys_are_values:
                sizes["v_proj"] = key
        if config.is_fused:
            sizes = {"qkv_proj": query + 2 * key}
        into = {f"self_attn.{part}": (n, hidden) for part, n in sizes.items()}
        found = {"qkv": into, "attention_out": {"self_attn.o_proj": (hidden, query)}}
    if ffn:
        sizes = {"gate_up_proj": 2 * ffn} if config.is_fused else {"gate_proj": ffn, "up_proj": ffn}
        found["gate_up"] = {f"mlp.{part}": (n, hidden) for part, n in sizes.items()}
        found["down"] = {"mlp.down_proj": (hidden, ffn)}
    return found
