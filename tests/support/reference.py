"""A numpy forward pass of the Llama and Qwen2 families: the naive twin of the exported graphs."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[np.float32]


def load_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """config.json and all weights, float32, of a Hugging Face directory."""
    weights: dict[str, Array] = {}
    for file in path.glob("*.safetensors"):
        weights |= {name: tensor.astype(np.float32) for name, tensor in load_file(file).items()}
    config = json.loads((path / "config.json").read_text())
    if config["tie_word_embeddings"]:
        embedding = weights.get("model.embed_tokens.weight", weights.get("lm_head.weight"))
        weights |= {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding}
    return config, weights


def inverse_frequencies(config: Mapping[str, Any], head_dim: int) -> Array:
    """Rotation per position, with Llama 3's scaling as the reference code writes it."""
    inv_freq = config["rope_theta"] ** -(np.arange(0, head_dim, 2) / head_dim)
    scaling = config.get("rope_scaling")
    if scaling:
        wavelength = 2 * np.pi / inv_freq
        old_context = scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        smooth = (old_context / wavelength - low) / (high - low)
        blended = (1 - smooth) * inv_freq / scaling["factor"] + smooth * inv_freq
        inv_freq = np.where(
            wavelength > old_context / low,
            inv_freq / scaling["factor"],
            np.where(wavelength < old_context / high, inv_freq, blended),
        )
    return inv_freq.astype(np.float32)


def forward(
    config: Mapping[str, Any],
    weights: Mapping[str, Array],
    token_ids: Any,
    round_inputs: Callable[[Array, str], Array] = lambda x, _: x,
) -> Array:
    """The logits `(tokens, vocab)` of a whole sequence.

    `round_inputs` is applied to what goes into each linear layer, and its name.
    """
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    n = len(token_ids)
    angles = np.arange(n, dtype=np.float32)[:, None] * inverse_frequencies(config, size)
    cos, sin = np.cos(angles), np.sin(angles)
    mask = np.where(np.tri(n, dtype=bool), np.float32(0), np.float32(-np.inf))

    def linear(x: Array, name: str) -> Array:
        return round_inputs(x, name) @ weights[f"{name}.weight"].T + weights.get(
            f"{name}.bias", np.float32(0)
        )

    def norm(x: Array, name: str) -> Array:
        mean_square = (x * x).mean(-1, keepdims=True)
        return x / np.sqrt(mean_square + config["rms_norm_eps"]) * weights[f"{name}.weight"]

    def split(x: Array, rotated: bool = True) -> Array:
        x = x.reshape(n, -1, size).swapaxes(0, 1)
        a, b = x[..., : size // 2], x[..., size // 2 :]
        x = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1) if rotated else x
        return x.repeat(heads // x.shape[0], 0)

    x = weights["model.embed_tokens.weight"][np.asarray(token_ids)]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        y = norm(x, f"{layer}.input_layernorm")
        q, k = (split(linear(y, f"{layer}.self_attn.{part}_proj")) for part in "qk")
        v = split(linear(y, f"{layer}.self_attn.v_proj"), rotated=False)
        scores = q @ k.swapaxes(1, 2) / np.float32(size**0.5) + mask
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        y = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(n, -1)
        x = x + linear(y, f"{layer}.self_attn.o_proj")
        y = norm(x, f"{layer}.post_attention_layernorm")
        gate = linear(y, f"{layer}.mlp.gate_proj")
        y = gate / (1 + np.exp(-gate)) * linear(y, f"{layer}.mlp.up_proj")
        x = x + linear(y, f"{layer}.mlp.down_proj")
    return linear(norm(x, "model.norm"), "lm_head")
