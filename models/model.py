"""The embedded model: its shape, its first weights, its forward pass, its Hugging Face directory.

In: token ids. Out: logits. The architecture is Llama's (RMSNorm, rotate-half RoPE, SwiGLU, tied
embeddings), written in JAX for one use: training on a CPU. Weights are a flat dict under the names
and in the (out, in) layout of the checkpoint, so that saving is writing them down.
It does not tokenize, and it does not know tasks.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file
from safetensors.numpy import save as serialize

Params = dict[str, jax.Array]
Cache = list[tuple[jax.Array, jax.Array]]

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
    return {name: jnp.asarray(array) for name, array in params.items()}


def _rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight


def _rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate-half RoPE: dimension i turns with dimension i + head_dim / 2."""
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def _attend(query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array) -> jax.Array:
    """Softmax attention, divided after the values are summed: fewer passes over the scores."""
    scores = jnp.einsum("brhd,bshd->bhrs", query, key) * query.shape[-1] ** -0.5 + bias
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    mixed = jnp.einsum("bhrs,bshd->bhrd", weights, value) / weights.sum(-1, keepdims=True)
    return mixed.transpose(0, 2, 1, 3)


def forward(
    params: Params,
    shape: Shape,
    token_ids: jax.Array,
    positions: jax.Array,
    cache: Cache | None = None,
) -> tuple[jax.Array, Cache]:
    """Logits `(batch, rows, vocab)` f32 of `(batch, rows)` i32 ids at their absolute positions.

    Without a cache, a row sees itself and the rows before it, and the keys and values come back as
    a new cache. With one, `(batch, capacity, heads, head_dim)` each, rows are written to the slots
    that their positions name, and see all slots up to their own. Slots beyond are never seen.
    """
    batch, rows = token_ids.shape
    frequency = shape.rope_theta ** (-jnp.arange(0, shape.head_dim, 2) / shape.head_dim)
    angle = positions[:, :, None, None] * frequency
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    num_slots = rows if cache is None else cache[0][0].shape[1]
    slots = positions if cache is None else jnp.arange(num_slots)[None]
    hidden_from = slots[:, None, None, :] > positions[:, None, :, None]
    bias = jnp.where(hidden_from, -1e9, 0.0)
    # Without a cache the first half of the rows need not look at the second: a quarter less work.
    ends = (rows,) if cache is not None else (rows // 2, rows)
    split = (batch, rows, shape.num_heads, shape.head_dim)
    filled: Cache = []
    x = params[EMBEDDING][token_ids]
    for index in range(shape.num_layers):
        normed = _rms_norm(x, params[_layer(index, "input_layernorm")], shape.rms_norm_eps)
        query, key, value = (
            (normed @ params[_layer(index, f"self_attn.{part}_proj")].T).reshape(split)
            for part in "qkv"
        )
        query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
        if cache is not None:
            at = (jnp.arange(batch)[:, None], positions)
            key = cache[index][0].at[at].set(key)
            value = cache[index][1].at[at].set(value)
        filled.append((key, value))
        parts, begin = [], 0
        for end in ends:
            seen = num_slots if cache is not None else end
            part, some = slice(begin, end), slice(seen)
            parts.append(
                _attend(query[:, part], key[:, some], value[:, some], bias[:, :, part, some])
            )
            begin = end
        mixed = jnp.concatenate(parts, 1)
        x = x + mixed.reshape(batch, rows, -1) @ params[_layer(index, "self_attn.o_proj")].T
        normed = _rms_norm(x, params[_layer(index, "post_attention_layernorm")], shape.rms_norm_eps)
        gate = jax.nn.silu(normed @ params[_layer(index, "mlp.gate_proj")].T)
        up = normed @ params[_layer(index, "mlp.up_proj")].T
        x = x + (gate * up) @ params[_layer(index, "mlp.down_proj")].T
    x = _rms_norm(x, params[FINAL_NORM], shape.rms_norm_eps)
    return x @ params[EMBEDDING].T, filled


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
    arrays = {name: np.asarray(array, np.float32) for name, array in params.items()}
    weights = directory / "model.safetensors.part"
    weights.write_bytes(serialize(arrays, metadata={"format": "pt"}))
    text = directory / "config.json.part"
    text.write_text(json.dumps(config(shape), indent=2) + "\n")
    weights.replace(directory / "model.safetensors")
    text.replace(directory / "config.json")


def load(directory: Path) -> tuple[Params, Shape]:
    """Reads what `save` wrote."""
    stored = json.loads((directory / "config.json").read_text())
    shape = Shape(
        vocab_size=stored["vocab_size"],
        hidden_size=stored["hidden_size"],
        intermediate_size=stored["intermediate_size"],
        num_layers=stored["num_hidden_layers"],
        num_heads=stored["num_attention_heads"],
        head_dim=stored["head_dim"],
        max_positions=stored["max_position_embeddings"],
        rope_theta=stored["rope_theta"],
        rms_norm_eps=stored["rms_norm_eps"],
    )
    arrays = load_file(directory / "model.safetensors")
    return {name: jnp.asarray(array) for name, array in arrays.items()}, shape
