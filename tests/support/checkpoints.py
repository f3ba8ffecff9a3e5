"""Checkpoints for tests: random ones, complete with a tokenizer, and the shared trained ones."""

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.convert import export_checkpoint

DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
_SPECIAL = ("<unk>", "<s>", "</s>")
_RANDOM_ELEMENTS = 1 << 20

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("COORDGEN_SHARED", ROOT.parent / "shared"))
STORIES, TINY_STORIES = (SHARED / "models" / name for name in ("stories260K", "TinyStories-656K"))
CHECKPOINTS = {
    "embedded": ROOT / "models" / "embedded",
    "embedded-draft": ROOT / "models" / "embedded-draft",
    "TinyStories-656K": TINY_STORIES,
    "stories260K": STORIES,
}
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="no shared models here")

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def write_checkpoint(
    path: Path,
    *,
    family: str = "llama",
    hidden: int = 64,
    ffn: int = 96,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    vocab: int = 128,
    max_positions: int = 512,
    tied: bool = True,
    dtype: str = "F32",
    shards: int = 1,
    seed: int = 0,
    **options: Any,
) -> Path:
    """Write a checkpoint into a new directory `path` and return it.

    `family` is `llama` or `qwen2` (which has biases); `dtype` one of F32, F16, BF16; with `shards`
    above 1 an index is written. `options` go into config.json as they are (rope_scaling, ...).
    """
    config = {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[family]],
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim or hidden // heads,
        "vocab_size": vocab,
        "max_position_embeddings": max_positions,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **options,
    }
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text(json.dumps(character_tokenizer(vocab)))
    shapes = tensor_shapes(config)
    save_weights(path, random_weights(shapes, seed, DTYPES[dtype]), shards)
    return path


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name to shape of all weights of a model."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    query, key = (
        config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads")
    )
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for number in range(config["num_hidden_layers"]):
        parts: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (query, hidden),
            "self_attn.k_proj.weight": (key, hidden),
            "self_attn.v_proj.weight": (key, hidden),
            "self_attn.o_proj.weight": (hidden, query),
            "mlp.gate_proj.weight": (ffn, hidden),
            "mlp.up_proj.weight": (ffn, hidden),
            "mlp.down_proj.weight": (hidden, ffn),
        }
        if config["model_type"] == "qwen2":
            for part, size in {"q": query, "k": key, "v": key}.items():
                parts[f"self_attn.{part}_proj.bias"] = (size,)
        shapes |= {f"model.layers.{number}.{part}": shape for part, shape in parts.items()}
    return shapes


def random_weights(
    shapes: dict[str, tuple[int, ...]], seed: int, dtype: Any
) -> dict[str, NDArray[Any]]:
    """Normal weights scaled by their row length, norms near 1; large ones repeat random numbers."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        values = rng.standard_normal(min(size, _RANDOM_ELEMENTS), np.float32)
        if "norm" in name:
            values = 1 + values / 8
        elif len(shape) == 2:
            values = values * 2 / np.sqrt(shape[1])
        weights[name] = np.resize(values.astype(dtype), shape)
    return weights


def save_weights(path: Path, weights: dict[str, NDArray[Any]], shards: int = 1) -> None:
    """Write model.safetensors, or an index and that many shards."""
    if shards == 1:
        save_file(weights, path / "model.safetensors")
        return
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(weights.items())[shard::shards])
        save_file(part, path / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def character_tokenizer(vocab: int) -> dict[str, Any]:
    """A tokenizer.json with a token per printable ASCII character, and unused ones to fill up."""
    pieces = [*_SPECIAL, "\n", *map(chr, range(32, 127))]
    pieces += [f"<unused{i}>" for i in range(vocab - len(pieces))]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": piece,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, piece in enumerate(_SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": r"[\s\S]"},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordLevel",
            "vocab": {piece: i for i, piece in enumerate(pieces[:vocab])},
            "unk_token": "<unk>",
        },
    }


def exported(checkpoint: Path, out: Path, **options: Any) -> Bundle:
    """The checked bundle of a checkpoint."""
    export_checkpoint(checkpoint, out, **options)
    bundle = Bundle.open(out)
    bundle.verify()
    return bundle


def sums(bundle: Bundle) -> dict[str, str]:
    """SHA-256 of each file of a bundle."""
    return {name: record.sha256 for name, record in bundle.manifest.files.items()}
