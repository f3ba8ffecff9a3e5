"""What the exporter must know of a model, whatever file and family it is of."""

from dataclasses import dataclass, replace
from typing import Literal

from coordgen_rs.bundle.layers import LayerCache
from coordgen_rs.bundle.manifest import ModelShape, Recommended
from coordgen_rs.bundle.rope import QueryScaling
from coordgen_rs.convert.families.config.layers import Experts, Recurrent

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
