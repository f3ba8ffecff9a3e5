"""Random checkpoints of Gemma 4, in the form that Hugging Face directories have.

They need neither PyTorch nor transformers. The tokenizer is that of the embedded model.
"""

import json
from pathlib import Path
from typing import Any

from hybrids import Shapes, write_random

_FILE = Path(__file__).with_name("configs.json")
CONFIGS: dict[str, dict[str, Any]] = json.loads(_FILE.read_text("utf-8"))["gemma4"]
"""As E2B, and as the larger ones, by the family's name."""


def write_gemma4(path: Path, family: str, *, seed: int = 0, **options: Any) -> Path:
    """Write a checkpoint of a family into a new directory `path` and return it."""
    config = CONFIGS[family] | options
    return write_random(path, config, shapes(config), seed=seed)


def shapes(config: dict[str, Any]) -> Shapes:
    """Name to shape of all weights."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    size = config.get("hidden_size_per_layer_input") or 0
    found: Shapes = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if size:
        found |= {
            "model.embed_tokens_per_layer.weight": (config["vocab_size"], layers * size),
            "model.per_layer_model_projection.weight": (layers * size, hidden),
            "model.per_layer_projection_norm.weight": (size,),
        }
    for number in range(layers):
        parts = _layer(config, number, size)
        found |= {f"model.layers.{number}.{part}": shape for part, shape in parts.items()}
    return found


def _layer(config: dict[str, Any], number: int, size: int) -> Shapes:
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    is_full = config["layer_types"][number] == "full_attention"
    is_shared = number >= config["num_hidden_layers"] - config["num_kv_shared_layers"]
    dim = config["global_head_dim" if is_full else "head_dim"]
    query, kv_heads = config["num_attention_heads"] * dim, config["num_key_value_heads"]
    if is_full and config["attention_k_eq_v"]:
        kv_heads = config["num_global_key_value_heads"]
    if is_shared and config.get("use_double_wide_mlp"):
        ffn *= 2
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    found: Shapes = {f"{norm}_layernorm.weight": (hidden,) for norm in norms}
    found |= {
        "layer_scalar": (1,),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.o_proj.weight": (hidden, query),
    }
    if not is_shared:
        found |= {
            "self_attn.k_proj.weight": (kv_heads * dim, hidden),
            "self_attn.k_norm.weight": (dim,),
        }
        if not (is_full and config["attention_k_eq_v"]):
            found["self_attn.v_proj.weight"] = (kv_heads * dim, hidden)
    if size:
        found |= {
            "per_layer_input_gate.weight": (size, hidden),
            "per_layer_projection.weight": (hidden, size),
            "post_per_layer_input_norm.weight": (hidden,),
        }
    return found
