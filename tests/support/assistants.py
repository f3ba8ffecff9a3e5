"""Random drafters of Gemma 4, in the form that Hugging Face directories have, beside their targets.

They need neither PyTorch nor transformers.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from checkpoints import CHECKPOINTS, random_weights, save_weights
from gemma4 import CONFIGS as TARGETS
from gemma4 import Shapes, write_gemma4

_LAYERS = ("sliding_attention", "sliding_attention", "full_attention")
_ARCHITECTURES = {
    "gemma4": "Gemma4AssistantForCausalLM",
    "gemma4_unified": "Gemma4UnifiedAssistantForCausalLM",
}
_SIZE = 32
_OF_TEXT = (
    *("vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim", "global_head_dim"),
    *("num_global_key_value_heads", "attention_k_eq_v", "sliding_window", "rope_parameters"),
    *("max_position_embeddings", "rms_norm_eps", "hidden_activation"),
)


def config_of(family: str, **options: Any) -> dict[str, Any]:
    """The config.json of a drafter; `options` are fields of the whole."""
    target = TARGETS[family]
    text = {name: target[name] for name in _OF_TEXT if name in target}
    text |= {
        "model_type": target["model_type"],
        "hidden_size": _SIZE,
        "intermediate_size": 48,
        "num_hidden_layers": len(_LAYERS),
        "num_kv_shared_layers": len(_LAYERS),
        "layer_types": list(_LAYERS),
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
    }
    return {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": f"{family}_assistant",
        "backbone_hidden_size": target["hidden_size"],
        "use_ordered_embeddings": family == "gemma4",
        "num_centroids": 48,
        "centroid_intermediate_top_k": 6,
        "tie_word_embeddings": True,
        "text_config": text,
        **options,
    }


def write_assistant(path: Path, family: str, *, seed: int = 1, **options: Any) -> Path:
    """Write a drafter for `write_gemma4`'s target into a new directory `path` and return it."""
    config = config_of(family, **options)
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    shutil.copy(CHECKPOINTS["embedded"] / "tokenizer.json", path)
    weights = random_weights(shapes(config), seed, np.float32)
    random = np.random.default_rng(seed)
    for name, values in weights.items():
        if name.endswith("layer_scalar"):
            weights[name] = random.uniform(0.5, 1.5, 1).astype(np.float32)
        elif name.endswith("q_norm.weight"):
            weights[name] = values * np.float32(len(values) ** -0.25)
    if config["use_ordered_embeddings"]:
        vocab_size = config["text_config"]["vocab_size"]
        weights["masked_embedding.token_ordering"] = random.permutation(vocab_size)
    save_weights(path, weights)
    return path


def shapes(config: dict[str, Any]) -> Shapes:
    """Name to shape of all weights but the order of tokens."""
    text, backbone = config["text_config"], config["backbone_hidden_size"]
    hidden, ffn = text["hidden_size"], text["intermediate_size"]
    found: Shapes = {
        "model.embed_tokens.weight": (text["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "pre_projection.weight": (hidden, 2 * backbone),
        "post_projection.weight": (backbone, hidden),
    }
    if config["use_ordered_embeddings"]:
        found["masked_embedding.centroids.weight"] = config["num_centroids"], hidden
    for number, kind in enumerate(text["layer_types"]):
        dim = text["global_head_dim" if kind == "full_attention" else "head_dim"]
        query = text["num_attention_heads"] * dim
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        parts: Shapes = {f"{norm}_layernorm.weight": (hidden,) for norm in norms}
        parts |= {
            "layer_scalar": (1,),
            "mlp.gate_proj.weight": (ffn, hidden),
            "mlp.up_proj.weight": (ffn, hidden),
            "mlp.down_proj.weight": (hidden, ffn),
            "self_attn.q_proj.weight": (query, hidden),
            "self_attn.q_norm.weight": (dim,),
            "self_attn.o_proj.weight": (hidden, query),
        }
        found |= {f"model.layers.{number}.{part}": shape for part, shape in parts.items()}
    return found


def write_pair(path: Path, family: str, **options: Any) -> tuple[Path, Path]:
    """Write a target and a drafter for it; return their directories."""
    target = write_gemma4(path / "target", family, seed=3)
    return target, write_assistant(path / "assistant", family, **options)
