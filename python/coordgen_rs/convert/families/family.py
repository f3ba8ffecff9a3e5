"""A family of models: what its architecture says, in the words of Hugging Face and of GGUF.

In: the fields of a config.json, as it says them or as a GGUF file does (`gguf.py`). Out: a
`ModelConfig`. Options that a family's graphs do not know are refused. All families are one decoder
with some switches set; no family has an exporter of its own. Those of `table.py` say no more than
their switches; each of the others has a file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.config_json import (
    WindowRule,
    check_heads,
    no_layer,
    number,
    positive,
    recommended,
    recurrent_layers,
    refuse_value,
    sliding_window,
    suppressed_token_ids,
    token_ids,
    unrotated_layers,
)
from coordgen_rs.convert.families.gguf import Gguf
from coordgen_rs.convert.families.model_config import Experts, ModelConfig, Recurrent, Switches
from coordgen_rs.convert.families.rope import (
    QUERY_BETA,
    read_query_scaling,
    read_ropes,
    rope_fields,
)
from coordgen_rs.errors import UnsupportedModelError

_ACTIVATIONS = {
    "silu": ("hidden_act", ("silu", "swish")),
    "gelu_tanh": ("hidden_activation", ("gelu_pytorch_tanh",)),
}
"""Field and accepted names, for Gemma and for others."""
_GATE_UP = ".mlp.gate_up_proj.weight"
_LONGROPE_LIMIT = "longrope has other factors for longer contexts, which are not supported"


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


@dataclass(frozen=True)
class Family(Switches):
    """What the models of a family have in common, beside switches."""

    name: str
    architecture: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What a config.json means by leaving a field out, where it is not what Llama's means."""
    fields: Callable[[dict[str, Any]], dict[str, Any]] = lambda config: config
    """Says in Llama's words what a config.json says in others, or refuses it."""
    inside: tuple[str, str] | None = None
    """The architecture of models that also see pictures, and the `model_type` of their part that is
    of this family."""
    assistant: str = ""
    """The architecture of drafters that are exported beside their target, if there are any."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What names of tensors have instead of Llama's and Qwen3-MoE's parts; replaced in order."""
    tensors: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda tensors: tensors
    """Makes tensors of Llama's and Qwen3-MoE's shapes of a Hugging Face checkpoint's."""
    gguf: tuple[Gguf, ...] = ()
    """What its GGUF files are called and hold, by architecture; none where there are none."""
    tells_bias: bool = False
    """Whether `attention_bias` says if queries, keys and values have a bias."""
    quantized_by: str | None = None
    """What `quantization_config` may name as its method."""
    window_rule: WindowRule = no_layer
    """Which layers have a sliding window, where there is one; for others than that of Llama,
    `use_sliding_window` says whether."""
    has_layer_types: bool = False
    """Whether `layer_types` may say otherwise than the rule."""
    rotates_part: bool = False
    """Only the first dimensions of a head may be rotated."""
    rotates_by_kind: bool = False
    """Layers with a window may be rotated otherwise than others."""
    scales_queries: bool = False
    """Queries may grow with their position."""
    options: Callable[[Mapping[str, Any], int], dict[str, Any]] = lambda config, hidden_size: {}
    """Fields of `ModelConfig` that others leave as they are, from a config.json and the hidden
    size: what is multiplied, for one."""
    rotates_neighbours: bool = False
    """Neighbouring dimensions of a head are rotated together in Hugging Face checkpoints, too."""
    caps_logits: bool = False
    """Logits may be kept below a number."""
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
    switches = {it.name: getattr(family, it.name) for it in fields(Switches)}
    options = switches | family.options(config, hidden_size)
    caches = options.get("caches")
    found = rope_fields(
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
        bos_token_id=bos_token_ids[0] if bos_token_ids else None,
        end_token_ids=end_token_ids,
        window=window,
        window_layers=window_layers,
        rope_factor=rope.factor,
        query_scaling=query_scaling,
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
    activation, names = _ACTIVATIONS[family.activation]
    may_have_bias = family.qkv_bias or family.tells_bias
    refused = {
        "quantization_config": _is_otherwise_quantized(config, family),
        "attention_bias": bool(config.get("attention_bias")) and not may_have_bias,
        "mlp_bias": bool(config.get("mlp_bias")),
        activation: config.get(activation, names[0]) not in names,
        "attn_logit_softcapping": config.get("attn_logit_softcapping") is not None,
        "final_logit_softcapping": config.get("final_logit_softcapping") is not None
        and not family.caps_logits,
        "use_bidirectional_attention": bool(config.get("use_bidirectional_attention")),
    }
    for name, is_refused in refused.items():
        if is_refused:
            refuse_value(config, name)


def _is_otherwise_quantized(config: Mapping[str, Any], family: Family) -> bool:
    """Whether weights are quantised in a way that the family's readers do not know."""
    given = config.get("quantization_config")
    if given is None:
        return False
    method = given.get("quant_method") if isinstance(given, dict) else None
    return family.quantized_by is None or method != family.quantized_by
