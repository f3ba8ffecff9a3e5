"""A random checkpoint of every family, with the embedded model's tokenizer.

In: a family's name, and a path. Out: a Hugging Face directory, or the same as a GGUF file. Neither
needs PyTorch or transformers.
Configurations of dense families are those that `families.py` lets transformers make.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoints import CHECKPOINTS
from families import IN_GGUF, MODELS
from gemma4 import write_gemma4
from gguf_files import write_gguf
from gpt_oss import write_gpt_oss
from hybrids import Shapes, write_hybrid, write_random
from mixtures import write_mixture

_SIZES: dict[str, Any] = {
    "vocab_size": 1536,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_DENSE = {
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "mistral": "Mistral, window 24",
    "ministral3": "Ministral 3",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "glm4": "GLM-4",
    "smollm3": "SmolLM3",
    "granite": "Granite 3",
    "granitemoe": "Granite 3 with experts",
    "granitemoeshared": "Granite 3 with a shared expert",
    "phi3": "Phi-4-mini",
    "gemma3": "Gemma 3",
}
"""Names in `MODELS`."""
_BEFORE = ("input_layernorm", "post_attention_layernorm")
_BEHIND = ("post_attention_layernorm", "post_feedforward_layernorm")
_NORMS = {
    "glm4": (*_BEFORE, "post_self_attn_layernorm", "post_mlp_layernorm"),
    "olmo2": _BEHIND,
    "olmo3": _BEHIND,
    "gemma3": (*_BEFORE, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
}


def write_dense(path: Path, family: str) -> Path:
    """Write a checkpoint whose layers are all alike into a new directory `path` and return it."""
    architecture, options = MODELS[_DENSE[family]]
    config = {**_SIZES, "architectures": [architecture], "model_type": family, **options}
    config["eos_token_id"] = _SIZES["eos_token_id"]
    if family == "olmo3":
        config["layer_types"] = ["sliding_attention"] * 3 + ["full_attention"]
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes: Shapes = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.setdefault("tie_word_embeddings", family in ("smollm3", "gemma3")):
        shapes["lm_head.weight"] = (vocab, hidden)
    parts = _attention(config, family) | _feed_forward(config, family)
    parts |= {f"{norm}.weight": (hidden,) for norm in _NORMS.get(family, _BEFORE)}
    for number in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{number}.{part}": shape for part, shape in parts.items()}
    return write_random(path, config, shapes, seed=3)


def _attention(config: dict[str, Any], family: str) -> Shapes:
    """Names and shapes of a layer's attention."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    size = config.get("head_dim", hidden // heads)
    query, key = heads * size, config["num_key_value_heads"] * size
    shapes: Shapes = {"self_attn.o_proj.weight": (hidden, query)}
    if family == "phi3":
        return shapes | {"self_attn.qkv_proj.weight": (query + 2 * key, hidden)}
    for part, rows in {"q": query, "k": key, "v": key}.items():
        shapes[f"self_attn.{part}_proj.weight"] = (rows, hidden)
        if family in ("qwen2", "glm4"):
            shapes[f"self_attn.{part}_proj.bias"] = (rows,)
    if family in ("qwen3", "gemma3"):
        shapes |= {f"self_attn.{part}_norm.weight": (size,) for part in ("q", "k")}
    elif family.startswith("olmo"):
        shapes |= {"self_attn.q_norm.weight": (query,), "self_attn.k_norm.weight": (key,)}
    return shapes


def _feed_forward(config: dict[str, Any], family: str) -> Shapes:
    """Names and shapes of a layer's feed-forward, or of its experts."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    if "num_local_experts" in config:
        num, shared = config["num_local_experts"], config.get("shared_intermediate_size")
        shapes: Shapes = {
            "block_sparse_moe.router.layer.weight": (num, hidden),
            "block_sparse_moe.input_linear.weight": (num, 2 * ffn, hidden),
            "block_sparse_moe.output_linear.weight": (num, hidden, ffn),
        }
        if shared:
            shapes["shared_mlp.input_linear.weight"] = (2 * shared, hidden)
            shapes["shared_mlp.output_linear.weight"] = (hidden, shared)
        return shapes
    shapes = {"mlp.down_proj.weight": (hidden, ffn)}
    if family in ("phi3", "glm4"):
        return shapes | {"mlp.gate_up_proj.weight": (2 * ffn, hidden)}
    return shapes | {f"mlp.{part}_proj.weight": (ffn, hidden) for part in ("gate", "up")}


def _write_gpt_oss(path: Path, *, packed: bool) -> Path:
    """With a tokenizer that grammars can be used with."""
    tokens = {name: _SIZES[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")}
    write_gpt_oss(path, packed=packed, **tokens)
    shutil.copy(CHECKPOINTS["embedded"] / "tokenizer.json", path)
    return path


_WRITERS: dict[str, Callable[[Path, str], object]] = {
    **dict.fromkeys(_DENSE, write_dense),
    **dict.fromkeys(("lfm2", "qwen3_5"), write_hybrid),
    **dict.fromkeys(("qwen3_moe", "granitemoehybrid", "lfm2_moe", "qwen3_5_moe"), write_mixture),
    **dict.fromkeys(("gemma4", "gemma4_unified"), write_gemma4),
    "gpt_oss": lambda path, _: _write_gpt_oss(path, packed=True),
}
MINIATURES = tuple(_WRITERS)
"""Names of all families."""


def write_miniature(path: Path, family: str) -> Path:
    """Write a checkpoint of any family into a new directory `path` and return it."""
    _WRITERS[family](path, family)
    return path


NOT_IN_GGUF = {"mistral": "a window", "qwen3_moe": "a dense layer beside those with experts"}
"""What a family's checkpoint has that no GGUF file can hold."""


def write_miniature_gguf(path: Path, family: str, checkpoint: Path) -> Path:
    """Write what is in a family's checkpoint as a GGUF file and return its path."""
    if family == "gpt_oss":  # of floats, which are rounded as those of the checkpoint are
        floats = _write_gpt_oss(path.with_suffix(".floats"), packed=False)
        return write_gguf(path, floats, {"_exps.weight": "MXFP4"})
    return write_gguf(path, checkpoint, metadata=IN_GGUF.get(_DENSE.get(family, "")))
