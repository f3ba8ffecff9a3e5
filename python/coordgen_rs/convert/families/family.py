"""A family of models: what its architecture says, in the words of Hugging Face and of GGUF.

In: the fields of a config.json, as it says them or as a GGUF file does (`gguf.py`). Out: a
`ModelConfig`. Options that a family's graphs do not know are refused. All families are one decoder
with some switches set; no family has an exporter of its own. Those of `table.py` say no more than
their switches; each of the others has a file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coordgen_rs.bundle.recommended import recommended
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.config.experts import Experts
from coordgen_rs.convert.families.config.fields import (
    WindowRule,
    check_heads,
    flag,
    no_layer,
    number,
    positive,
    recurrent_layers,
    rotations,
    sliding_window,
    suppressed_token_ids,
    token_ids,
    unrotated_layers,
)
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.families.config.recurrent import Recurrent
from coordgen_rs.convert.families.config.rope import QUERY_BETA, read_query_scaling, read_ropes
from coordgen_rs.convert.families.gguf import Gguf
from coordgen_rs.errors import UnsupportedModelError

_ACTIVATIONS = {
    False: ("hidden_act", ("silu", "swish")),
    True: ("hidden_activation", ("gelu_pytorch_tanh",)),
}
"""Field and accepted names, for Gemma and for others."""
_GATE_UP = ".mlp.gate_up_proj.weight"
_LONGROPE_LIMIT = "longrope has other factors for longer contexts, which are not supported"

Arranged = tuple[dict[str, Tensor], ModelConfig]


def no_options(config: Mapping[str, Any], hidden_size: int) -> dict[str, Any]:
    """Nothing that only one family has."""
    return {}


def same_fields(config: dict[str, Any]) -> dict[str, Any]:
    """The config.json as it is."""
    return config


def same_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as they are."""
    return tensors


def halved_feed_forwards(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with gate and up of feed-forwards apart, where they are one."""
    found = dict(tensors)
    for name, both in tensors.items():
        if name.endswith(_GATE_UP):
            del found[name]
            layer, half = name.removesuffix(_GATE_UP), both.shape[0] // 2
            found[f"{layer}.mlp.gate_proj.weight"] = both.part(0, half)
            found[f"{layer}.mlp.up_proj.weight"] = both.part(half, both.shape[0])
    return found


def as_they_are(tensors: dict[str, Tensor], config: ModelConfig) -> Arranged:
    """The tensors of a GGUF file as they are."""
    return tensors, config


@dataclass(frozen=True)
class Family:
    """What the models of a family have in common."""

    name: str
    architecture: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What a config.json means by leaving a field out, where it is not what Llama's means."""
    fields: Callable[[dict[str, Any]], dict[str, Any]] = same_fields
    """Says in Llama's words what a config.json says in others, or refuses it."""
    inside: tuple[str, str] | None = None
    """The architecture of models that also see pictures, and the `model_type` of their part that is
    of this family."""
    assistant: str = ""
    """The architecture of drafters that are exported beside their target, if there are any."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What names of tensors have instead of Llama's and Qwen3-MoE's parts; replaced in order."""
    tensors: Callable[[dict[str, Tensor]], dict[str, Tensor]] = same_tensors
    """Makes tensors of Llama's and Qwen3-MoE's shapes of a Hugging Face checkpoint's."""
    gguf: tuple[Gguf, ...] = ()
    """What its GGUF files are called and hold, by architecture; none where there are none."""
    arranged: Callable[[dict[str, Tensor], ModelConfig], Arranged] = as_they_are
    """Tensors of a GGUF file in Hugging Face's order and shapes, and the configuration for them."""
    qkv_bias: bool | None = False
    """Queries, keys and values have a bias; None where `attention_bias` says whether."""
    out_bias: bool = False
    """What attention gives back to the stream has a bias."""
    has_sinks: bool = False
    """Each head of attention has a score that no value stands behind."""
    quantized_by: str | None = None
    """What `quantization_config` may name as its method."""
    qk_norm: bool = False
    """Queries and keys are normed before they are rotated, each head by itself."""
    norms_behind: bool = False
    """OLMo's blocks: norms stand behind attention and feed-forward, not before them, and those of
    queries and keys are over all heads at once."""
    window_rule: WindowRule = no_layer
    """Which layers have a sliding window, where there is one; for others than that of Llama,
    `use_sliding_window` says whether."""
    has_layer_types: bool = False
    """Whether `layer_types` may say otherwise than the rule."""
    is_fused: bool = False
    """Query, key and value weights are one tensor, as are gate and up."""
    rotates_part: bool = False
    """Only the first dimensions of a head may be rotated."""
    rotates_by_kind: bool = False
    """Layers with a window may be rotated otherwise than others."""
    scales_queries: bool = False
    """Queries may grow with their position."""
    options: Callable[[Mapping[str, Any], int], dict[str, Any]] = no_options
    """Fields of `ModelConfig` that others leave as they are, from a config.json and the hidden
    size: what is multiplied, for one."""
    four_norms: bool = False
    """Gemma's blocks: norms stand before and behind attention and feed-forward."""
    has_gelu: bool = False
    """The activation of the gate is GELU, as in Gemma, and has its field."""
    rotates_neighbours: bool = False
    """Neighbouring dimensions of a head are rotated together in Hugging Face checkpoints, too."""
    caps_logits: bool = False
    """Logits may be kept below a number."""
    norm_offset: float = 0.0
    """What is added to the weights of all norms but those inside recurrent layers."""
    gated_attention: bool = False
    """What attention gives is multiplied by a gate."""
    recurrent: Callable[[Mapping[str, Any], int], Recurrent] | None = None
    """What layers without attention have, from a config.json and the hidden size; None for a family
    without such layers."""
    experts: Callable[[Mapping[str, Any], int], Experts | None] | None = None
    """The mixtures of experts, from a config.json and the number of layers; None for a family
    without."""


def model_config(
    family: Family, config: Mapping[str, Any], generation: Mapping[str, Any]
) -> ModelConfig:
    """Reads the fields of a model, in the words of Hugging Face.

    Args:
        family: That of the model.
        config: The parsed config.json.
        generation: The parsed generation_config.json; empty where there is none.

    Raises:
        UnsupportedModelError: The exporter cannot do this model.
        CheckpointError: A field is missing or malformed.
    """
    config = family.fields({**family.defaults, **config})
    _refuse_options(config, family)
    hidden_size = positive(config, "hidden_size")
    num_layers = positive(config, "num_hidden_layers")
    num_heads = positive(config, "num_attention_heads")
    num_kv_heads = positive(config, "num_key_value_heads", num_heads)
    head_dim = positive(config, "head_dim", hidden_size // num_heads)
    check_heads(num_heads, num_kv_heads, head_dim)
    vocab_size = positive(config, "vocab_size")
    bos_token_ids = token_ids("bos_token_id", config, generation, vocab_size)
    end_token_ids = token_ids("eos_token_id", config, generation, vocab_size)
    ffn_size = positive(config, "intermediate_size")
    max_positions = positive(config, "max_position_embeddings")
    rms_norm_eps = number(config, "rms_norm_eps")
    window, window_layers = sliding_window(
        config,
        num_layers,
        family.window_rule,
        family.has_layer_types,
        has_recurrent=family.recurrent is not None,
    )
    recurrent, without_attention = None, recurrent_layers(config, num_layers)
    if family.recurrent is not None and without_attention:
        recurrent = family.recurrent(config, hidden_size)
    unrotated = frozenset(unrotated_layers(config, num_layers))
    options = family.options(config, hidden_size)
    caches = options.get("caches")
    found = rotations(
        config,
        head_dim if caches is None else caches[-1].head_dim,
        by_kind=family.rotates_by_kind,
        rotates_part=family.rotates_part,
        window_head_dim=head_dim,
    )
    rope, window_rope = read_ropes(found)
    query_scaling = None
    if family.scales_queries:
        query_scaling = read_query_scaling(found[0].parameters)
    elif found[0].parameters.get(QUERY_BETA):
        beta = found[0].parameters[QUERY_BETA]
        raise UnsupportedModelError(
            f"config.json: {QUERY_BETA} = {beta!r:.60} is not supported in {family.name}"
        )
    return ModelConfig(
        family=family.name,
        hidden_size=hidden_size,
        ffn_size=ffn_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_positions=rope.most_positions or max_positions,
        rms_norm_eps=rms_norm_eps,
        inv_freq=rope.inv_freq,
        tied_head=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=flag(config, "attention_bias", False)
        if family.qkv_bias is None
        else family.qkv_bias,
        out_bias=family.out_bias,
        has_sinks=family.has_sinks,
        bos_token_id=bos_token_ids[0] if bos_token_ids else None,
        end_token_ids=end_token_ids,
        qk_norm=family.qk_norm,
        window=window,
        window_layers=window_layers,
        wide_qk_norm=family.norms_behind,
        input_norms=not family.norms_behind,
        output_norms=family.four_norms or family.norms_behind,
        norm_offset=family.norm_offset,
        activation="gelu_tanh" if family.has_gelu else "silu",
        is_fused=family.is_fused,
        rope_factor=rope.factor,
        query_scaling=query_scaling,
        gated_attention=family.gated_attention,
        recurrent=recurrent,
        recurrent_layers=without_attention,
        experts=None if family.experts is None else family.experts(config, num_layers),
        unrotated_layers=unrotated,
        window_inv_freq=None if window_rope is None else window_rope.inv_freq,
        suppressed_token_ids=suppressed_token_ids(generation, vocab_size),
        recommended=recommended(generation),
        why_most_positions=_LONGROPE_LIMIT if rope.most_positions else "",
        **options,
    )


def _refuse_options(config: dict[str, Any], family: Family) -> None:
    """Refuse options that change the arithmetic.

    Raises:
        UnsupportedModelError: There is one; the message names it.
    """
    activation, names = _ACTIVATIONS[family.has_gelu]
    refused = {
        "quantization_config": _is_otherwise_quantized(config, family),
        "attention_bias": family.qkv_bias is False and bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        activation: config.get(activation, names[0]) not in names,
        "attn_logit_softcapping": config.get("attn_logit_softcapping") is not None,
        "final_logit_softcapping": config.get("final_logit_softcapping") is not None
        and not family.caps_logits,
        "use_bidirectional_attention": bool(config.get("use_bidirectional_attention")),
    }
    for name, is_refused in refused.items():
        if is_refused:
            raise UnsupportedModelError(
                f"config.json: {name} = {config[name]!r:.200} is not supported"
            )


def _is_otherwise_quantized(config: Mapping[str, Any], family: Family) -> bool:
    """Whether weights are quantised in a way that the family's readers do not know."""
    given = config.get("quantization_config")
    if given is None:
        return False
    method = given.get("quant_method") if isinstance(given, dict) else None
    return family.quantized_by is None or method != family.quantized_by
