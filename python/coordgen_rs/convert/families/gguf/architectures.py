"""The architectures of llama.cpp that the exporter knows, and what their tensors are called.

In: `general.architecture`. Out: an `Architecture`. Names on the left are those of GGUF, on the
right those of Hugging Face. Whether a model can be exported is for `../config.py` to say.
"""

from dataclasses import dataclass, field

from coordgen_rs.errors import UnsupportedModelError


@dataclass(frozen=True)
class Architecture:
    """What GGUF files of one architecture have in common."""

    hugging_face: str
    """The name in `architectures` of a config.json, unless metadata tells another."""
    rotates_neighbours: bool = False
    """Rows of query and key are reordered, because pairs are neighbours (GGML_ROPE_TYPE_NORM)."""
    layer_names: dict[str, str] = field(default_factory=dict)
    """Names of a layer's tensors that differ from `_LAYER`, or come on top."""
    whole_names: dict[str, str] = field(default_factory=dict)
    """Names of a layer's tensors that have no `.weight` behind them, or not in both."""
    output_norm: str = "output_norm"
    """What the last norm is called."""
    has_input_norms: bool = True
    """Attention and feed-forward read normed rows."""
    has_recurrent: bool = False
    """Layers without attention are told by 0 heads of keys and values."""
    has_experts: bool = False
    """Layers may have mixtures of experts."""
    model_names: dict[str, str] = field(default_factory=dict)
    """Names of tensors beside the layers' that only such models have."""
    lists_sizes: bool = False
    """Heads of keys and values, and widths of feed-forwards, may be told layer by layer."""


_MODEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_NORMS_BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA_NORMS = {**_NORMS_BEHIND, "ffn_norm": "pre_feedforward_layernorm"}
_PER_LAYER = {
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
"""What a layer does with its embedding."""
_INPUT_NORMS = ("attn_norm", "ffn_norm")
_SHORT_CONVOLUTION = {
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}
_DELTA_NET = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_SELECTIVE_STATE = {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_BESIDE_EXPERTS = {
    "ffn_gate_shexp": "mlp.gate_proj",
    "ffn_up_shexp": "mlp.up_proj",
    "ffn_down_shexp": "mlp.down_proj",
}
_DENSE = {
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORM_AFTER_ATTENTION = {"post_attention_norm": "post_attention_layernorm"}
_NEXT = {
    "nextn.eh_proj": "fc",
    "nextn.enorm": "pre_fc_norm_embedding",
    "nextn.hnorm": "pre_fc_norm_hidden",
    "nextn.shared_head_norm": "norm",
}
"""Beside its layer, what a head for further tokens has."""
_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}

_ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", rotates_neighbours=True),
    "smollm3": Architecture("SmolLM3ForCausalLM", rotates_neighbours=True),
    "granite": Architecture("GraniteForCausalLM", rotates_neighbours=True),
    "mistral3": Architecture("Ministral3ForCausalLM", rotates_neighbours=True),
    "olmo2": Architecture(
        "Olmo3ForCausalLM", layer_names=_HEAD_NORMS | _NORMS_BEHIND, has_input_norms=False
    ),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen3": Architecture("Qwen3ForCausalLM", layer_names=_HEAD_NORMS),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM", layer_names=_HEAD_NORMS | _EXPERTS, has_experts=True
    ),
    "phi3": Architecture("Phi3ForCausalLM", layer_names=_FUSED),
    "lfm2": Architecture(
        "Lfm2ForCausalLM",
        layer_names=_HEAD_NORMS | _SHORT_CONVOLUTION,
        output_norm="token_embd_norm",
        has_recurrent=True,
    ),
    "lfm2moe": Architecture(
        "Lfm2MoeForCausalLM",
        layer_names=_HEAD_NORMS | _SHORT_CONVOLUTION | _EXPERTS,
        whole_names={"exp_probs_b.bias": "mlp.expert_bias"},
        output_norm="token_embd_norm",
        has_recurrent=True,
        has_experts=True,
    ),
    "qwen35": Architecture(
        "Qwen3_5ForCausalLM",
        layer_names=_HEAD_NORMS | _NORM_AFTER_ATTENTION | _DELTA_NET,
        whole_names={"ssm_a": "linear_attn.A", "ssm_dt.bias": "linear_attn.dt_bias"},
    ),
    "qwen35moe": Architecture(
        "Qwen3_5MoeForCausalLM",
        layer_names=_HEAD_NORMS
        | _NORM_AFTER_ATTENTION
        | _DELTA_NET
        | _EXPERTS
        | _BESIDE_EXPERTS
        | {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"},
        whole_names={"ssm_a": "linear_attn.A", "ssm_dt.bias": "linear_attn.dt_bias"},
        has_experts=True,
    ),
    "granitemoe": Architecture(
        "GraniteMoeHybridForCausalLM",
        rotates_neighbours=True,
        layer_names=_EXPERTS | _BESIDE_EXPERTS,
        has_experts=True,
    ),
    "granitehybrid": Architecture(
        "GraniteMoeHybridForCausalLM",
        rotates_neighbours=True,
        layer_names=_SELECTIVE_STATE | _EXPERTS | _BESIDE_EXPERTS | _DENSE,
        whole_names={"ssm_a": "mamba.A", "ssm_d": "mamba.D", "ssm_dt.bias": "mamba.dt_bias"},
        has_recurrent=True,
        has_experts=True,
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        layer_names=_NORM_AFTER_ATTENTION | _EXPERTS,
        whole_names={"attn_sinks.weight": "self_attn.sinks"},
        has_experts=True,
    ),
    "gemma3": Architecture("Gemma3ForCausalLM", layer_names=_HEAD_NORMS | _GEMMA_NORMS),
    "gemma4": Architecture(
        "Gemma4ForCausalLM",
        layer_names=_HEAD_NORMS | _GEMMA_NORMS | _PER_LAYER,
        whole_names={"layer_output_scale.weight": "layer_scalar"},
        model_names={
            "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
            "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
            "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
        },
        lists_sizes=True,
    ),
}


def architecture_named(name: str) -> Architecture:
    """What is known of an architecture.

    Raises:
        UnsupportedModelError: Nothing is.
    """
    found = _ARCHITECTURES.get(name)
    if found is None:
        raise UnsupportedModelError(
            f"the GGUF architecture {name!r:.60} is not supported, only {', '.join(_ARCHITECTURES)}"
        )
    return found


def hugging_face_names(architecture: Architecture, num_layers: int) -> dict[str, str]:
    """The Hugging Face name of every tensor that such a model may have, by its name in GGUF."""
    names = _MODEL | architecture.model_names
    names[f"{architecture.output_norm}.weight"] = "model.norm.weight"
    own = architecture.layer_names
    parts = {part: name for part, name in _LAYER.items() if name not in own.values()} | own
    if not architecture.has_input_norms:
        parts = {part: name for part, name in parts.items() if part not in _INPUT_NORMS}
    for number in range(num_layers):
        for part, name in parts.items():
            for kind in ("weight", "bias"):
                names[f"blk.{number}.{part}.{kind}"] = f"model.layers.{number}.{name}.{kind}"
        for part, name in architecture.whole_names.items():
            names[f"blk.{number}.{part}"] = f"model.layers.{number}.{name}"
    return names


def next_token_names(architecture: Architecture, block: int) -> dict[str, str]:
    """The Hugging Face names of a head for further tokens, by those in GGUF: its layer is a block.

    Args:
        architecture: That of the model.
        block: The block's number.
    """
    layer = hugging_face_names(architecture, block + 1)
    prefix, usual = f"blk.{block}.", f"model.layers.{block}."
    names = {f"{prefix}{part}.weight": f"mtp.{name}.weight" for part, name in _NEXT.items()}
    for name, known in layer.items():
        if name.startswith(prefix):
            names[name] = f"mtp.layers.0.{known.removeprefix(usual)}"
    return names
