"""The embedded model: its shape, its first weights, its forward pass, its Hugging Face directory.

In: token ids. Out: logits. The architecture is Llama's (RMSNorm, rotate-half RoPE, SwiGLU, tied
embeddings), written in PyTorch for one use: training. Weights are a flat dict under the names and
in the (out, in) layout of the checkpoint, so that saving is writing them down.
It does not tokenize, it does not know tasks, and it does not generate: the engine does.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save as serialize
from torch.nn.functional import linear, rms_norm, silu

Params = dict[str, torch.Tensor]

BOS_ID, EOS_ID = 0, 1


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; the defaults are those of the embedded one."""

    vocab_size: int = 1536
    hidden_size: int = 192
    intermediate_size: int = 384
    num_layers: int = 5
    num_heads: int = 6
    head_dim: int = 32
    max_positions: int = 1024
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-5


DRAFT_SHAPE = Shape(hidden_size=128, intermediate_size=256, num_layers=2, num_heads=4)
"""Its smaller sibling, which drafts for it: no more layers than the hand-made circuit needs."""


def _layer(index: int, part: str) -> str:
    return f"model.layers.{index}.{part}.weight"


EMBEDDING, FINAL_NORM = "model.embed_tokens.weight", "model.norm.weight"
ATTENTION = ("q", "k", "v", "o")


def random_params(shape: Shape, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Small random weights; projections that write to the residual stream are smaller still."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    narrow = 0.02 / np.sqrt(2 * shape.num_layers)

    def normal(rows: int, columns: int, scale: float) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * scale).astype(np.float32)

    params = {
        EMBEDDING: normal(shape.vocab_size, hidden, 0.02),
        FINAL_NORM: np.ones(hidden, np.float32),
    }
    for index in range(shape.num_layers):
        for part in ATTENTION:
            scale = narrow if part == "o" else 0.06
            params[_layer(index, f"self_attn.{part}_proj")] = normal(hidden, hidden, scale)
        params[_layer(index, "mlp.gate_proj")] = normal(inner, hidden, 0.06)
        params[_layer(index, "mlp.up_proj")] = normal(inner, hidden, 0.06)
        params[_layer(index, "mlp.down_proj")] = normal(hidden, inner, narrow)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            params[_layer(index, norm)] = np.ones(hidden, np.float32)
    return params


def mimetic_params(shape: Shape, seed: int) -> Params:
    """First weights that already copy: the two attention layers of an induction circuit, by hand.

    The embedding has an identity half (random directions) and one constant dimension. Layer 0:
    half of the heads attend one token back (the constant gives query and key a fixed vector, RoPE
    puts the peak at offset -1) and move that token's identity to the other half. Layer 1: half of
    the heads look with their own identity for a place whose previous token was the same one, by
    the slow RoPE pairs, which hardly feel distance, and write the identity found there back, which
    the tied head reads as "predict this token". Everything else is small noise, and all of it is
    trained afterwards. Plain initialisation needed more than 10M tokens before copying appeared.
    """
    rng = np.random.default_rng(seed)
    params = random_params(shape, rng)
    hidden, width, pairs = shape.hidden_size, shape.head_dim, shape.head_dim // 2
    num_copies = shape.num_heads // 2
    half = num_copies * width
    constant = hidden - 1
    embedding = params[EMBEDDING]
    embedding[:, :half] = rng.standard_normal((shape.vocab_size, half)) * 0.1
    embedding[:, constant] = 0.6
    spread = np.sqrt((half * 0.1**2 + 0.6**2) / hidden)
    frequency = shape.rope_theta ** (-np.arange(pairs) / pairs)
    fast, slow = np.flatnonzero(frequency > 0.01), np.flatnonzero(frequency < 0.003)
    look_back = np.zeros(width, np.float32)
    look_back[fast] = 10.0
    turned = np.zeros(width, np.float32)
    turned[fast] = 10.0 * np.cos(frequency[fast])
    turned[fast + pairs] = 10.0 * np.sin(frequency[fast])
    still = np.concatenate([slow, slow + pairs])
    for copy in range(num_copies):
        rows = slice(copy * width, (copy + 1) * width)
        beside = slice(half + rows.start, min(half + rows.stop, constant))
        num_beside = beside.stop - beside.start
        for index in (0, 1):
            for part in ("q", "k", "v"):
                params[_layer(index, f"self_attn.{part}_proj")][rows] = 0.0
            params[_layer(index, "self_attn.o_proj")][:, rows] = 0.0
            params[_layer(index, "self_attn.v_proj")][rows, rows] = np.eye(width)
        query, key, out = (params[_layer(0, f"self_attn.{part}_proj")] for part in "qko")
        query[rows, constant] = look_back * spread / 0.6
        key[rows, constant] = turned * spread / 0.6
        out[beside, rows] = np.eye(width)[:num_beside] * spread
        query, key, out = (params[_layer(1, f"self_attn.{part}_proj")] for part in "qko")
        match = np.linalg.qr(rng.standard_normal((half, still.size)))[0].T * 2.5
        query[rows.start + still, :half] = match
        key[rows.start + still, half:constant] = match[:, : constant - half]
        out[rows, rows] = np.eye(width)
    return {name: torch.from_numpy(array) for name, array in params.items()}


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate-half RoPE: dimension i turns with dimension i + head_dim / 2."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Softmax attention, spelt out: on CPU faster than the fused kernel's backward pass."""
    scores = query @ key.transpose(-1, -2) + bias
    return torch.softmax(scores, -1, dtype=torch.float32).to(value.dtype) @ value


def forward(
    params: Params,
    shape: Shape,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    seen: torch.Tensor,
) -> torch.Tensor:
    """Logits `(batch, rows, vocab)` of `(batch, rows)` i64 ids at their absolute positions.

    `seen` `(batch, rows, rows)` bool says which rows a row sees; those behind it are never looked
    at. Logits have the dtype of `params`.
    """
    batch, rows = token_ids.shape
    dtype = params[EMBEDDING].dtype
    frequency = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    angle = positions[:, None, :, None] * frequency
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    bias = torch.where(seen, 0.0, -1e4).to(dtype)[:, None]
    half = rows // 2
    split = (batch, rows, shape.num_heads, shape.head_dim)
    x = params[EMBEDDING][token_ids]
    for index in range(shape.num_layers):
        normed = rms_norm(
            x, x.shape[-1:], params[_layer(index, "input_layernorm")], shape.rms_norm_eps
        )
        query, key, value = (
            linear(normed, params[_layer(index, f"self_attn.{part}_proj")])
            .view(split)
            .transpose(1, 2)
            for part in "qkv"
        )
        query = _rotate(query * shape.head_dim**-0.5, cos, sin)
        key = _rotate(key, cos, sin)
        # The first half of the rows need not look at the second: a quarter less work.
        early = _attend(
            query[:, :, :half], key[:, :, :half], value[:, :, :half], bias[:, :, :half, :half]
        )
        late = _attend(query[:, :, half:], key, value, bias[:, :, half:])
        mixed = torch.cat([early, late], 2).transpose(1, 2).reshape(batch, rows, -1)
        x = x + linear(mixed, params[_layer(index, "self_attn.o_proj")])
        normed = rms_norm(
            x, x.shape[-1:], params[_layer(index, "post_attention_layernorm")], shape.rms_norm_eps
        )
        gate = silu(linear(normed, params[_layer(index, "mlp.gate_proj")]))
        up = linear(normed, params[_layer(index, "mlp.up_proj")])
        x = x + linear(gate * up, params[_layer(index, "mlp.down_proj")])
    x = rms_norm(x, x.shape[-1:], params[FINAL_NORM], shape.rms_norm_eps)
    return linear(x, params[EMBEDDING])


def config(shape: Shape) -> dict[str, object]:
    """The content of config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_positions,
        "mlp_bias": False,
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_heads,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": shape.vocab_size,
    }


def save(directory: Path, params: Params, shape: Shape) -> None:
    """Writes config.json and model.safetensors beside the old ones, then renames each over them."""
    directory.mkdir(parents=True, exist_ok=True)
    arrays = {name: weight.detach().float().numpy() for name, weight in params.items()}
    weights = directory / "model.safetensors.part"
    weights.write_bytes(serialize(arrays, metadata={"format": "pt"}))
    text = directory / "config.json.part"
    text.write_text(json.dumps(config(shape), indent=2) + "\n")
    weights.replace(directory / "model.safetensors")
    text.replace(directory / "config.json")
