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
    has_input_norms: bool = True
    """Attention and feed-forward read normed rows."""


_MODEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
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
_INPUT_NORMS = ("attn_norm", "ffn_norm")
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
    "phi3": Architecture("Phi3ForCausalLM", layer_names=_FUSED),
    "gemma3": Architecture("Gemma3ForCausalLM", layer_names=_HEAD_NORMS | _GEMMA_NORMS),
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
    names = dict(_MODEL)
    parts = _LAYER | architecture.layer_names
    if not architecture.has_input_norms:
        parts = {part: name for part, name in parts.items() if part not in _INPUT_NORMS}
    for number in range(num_layers):
        for part, name in parts.items():
            for kind in ("weight", "bias"):
                names[f"blk.{number}.{part}.{kind}"] = f"model.layers.{number}.{name}.{kind}"
    return names
