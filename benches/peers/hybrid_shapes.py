"""Shapes of models with recurrent layers, for `shape_file.py`: matrices, vectors and metadata.

In: a shape. Out: what a GGUF file of it has, by llama.cpp's names.
"""

import numpy as np

SHAPES = {
    "qwen3.5-0.8b": {
        "family": "qwen35",
        "hidden": 1024,
        "ffn": 3584,
        "layers": 24,
        "heads": 8,
        "kv_heads": 2,
        "head_dim": 256,
        "vocab": 248_320,
        "max_positions": 262_144,
    },
    "qwen3.5-2b": {
        "family": "qwen35",
        "hidden": 2048,
        "ffn": 6144,
        "layers": 24,
        "heads": 8,
        "kv_heads": 2,
        "head_dim": 256,
        "vocab": 248_320,
        "max_positions": 262_144,
    },
    "lfm2-1.2b": {
        "family": "lfm2",
        "hidden": 2048,
        "ffn": 8192,
        "layers": 16,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 64,
        "vocab": 65_536,
        "max_positions": 128_000,
    },
}

_DELTA_HEADS, _DELTA_DIM, _DELTA_TAPS = 16, 128, 4
_ATTENTION_EVERY = 4
_LFM2_ATTENTION = {2, 5, 8, 10, 12, 14}
_LFM2_TAPS = 3


def has_attention(shape, layer):
    """Whether a layer has attention; else it is recurrent."""
    if shape["family"] == "lfm2":
        return layer in _LFM2_ATTENTION
    return layer % _ATTENTION_EVERY == _ATTENTION_EVERY - 1


def layer_matrices(shape, layer):
    """The matrices of a layer: name, rows, columns."""
    hidden, ffn = shape["hidden"], shape["ffn"]
    query, key = (shape[heads] * shape["head_dim"] for heads in ("heads", "kv_heads"))
    delta = _DELTA_HEADS * _DELTA_DIM
    if has_attention(shape, layer):
        gates = 2 if shape["family"] == "qwen35" else 1
        found = [
            ("attn_q", gates * query, hidden),
            ("attn_k", key, hidden),
            ("attn_v", key, hidden),
            ("attn_output", hidden, query),
        ]
    elif shape["family"] == "lfm2":
        found = [("shortconv.in_proj", 3 * hidden, hidden), ("shortconv.out_proj", hidden, hidden)]
    else:
        found = [
            ("attn_qkv", 3 * delta, hidden),
            ("attn_gate", delta, hidden),
            ("ssm_alpha", _DELTA_HEADS, hidden),
            ("ssm_beta", _DELTA_HEADS, hidden),
            ("ssm_out", hidden, delta),
        ]
    return [*found, ("ffn_gate", ffn, hidden), ("ffn_up", ffn, hidden), ("ffn_down", hidden, ffn)]


def vectors(shape):
    """What is not multiplied as a matrix, float32, by name."""
    hidden, is_lfm2 = shape["hidden"], shape["family"] == "lfm2"
    found = {("token_embd_norm" if is_lfm2 else "output_norm") + ".weight": _ones(hidden)}
    random = np.random.default_rng(1)
    delta = _DELTA_HEADS * _DELTA_DIM
    for layer in range(shape["layers"]):
        of_layer = {
            "attn_norm.weight": _ones(hidden),
            f"{'ffn_norm' if is_lfm2 else 'post_attention_norm'}.weight": _ones(hidden),
        }
        if has_attention(shape, layer):
            of_layer |= {
                f"attn_{kind}_norm.weight": _ones(shape["head_dim"]) for kind in ("q", "k")
            }
        elif is_lfm2:
            of_layer["shortconv.conv.weight"] = _normal(random, hidden, _LFM2_TAPS)
        else:
            of_layer |= {
                "ssm_conv1d.weight": _normal(random, 3 * delta, _DELTA_TAPS),
                "ssm_dt.bias": _normal(random, _DELTA_HEADS),
                "ssm_a": -np.abs(_normal(random, _DELTA_HEADS)) - np.float32(0.01),
                "ssm_norm.weight": _ones(_DELTA_DIM),
            }
        found |= {f"blk.{layer}.{name}": values for name, values in of_layer.items()}
    return found


def add_metadata(writer, shape):
    """Beside what all files have, the keys of the family."""
    family = shape["family"]
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    if family == "lfm2":
        writer.add_uint32(f"{family}.shortconv.l_cache", _LFM2_TAPS)
        writer.add_vocab_size(shape["vocab"])
        return
    sizes = {
        "full_attention_interval": _ATTENTION_EVERY,
        "rope.dimension_count": shape["head_dim"] // 4,
        "ssm.conv_kernel": _DELTA_TAPS,
        "ssm.group_count": _DELTA_HEADS,
        "ssm.inner_size": _DELTA_HEADS * _DELTA_DIM,
        "ssm.state_size": _DELTA_DIM,
        "ssm.time_step_rank": _DELTA_HEADS,
    }
    for name, value in sizes.items():
        writer.add_uint32(f"{family}.{name}", value)
    writer.add_array(f"{family}.rope.dimension_sections", [11, 11, 10, 0])


def kv_heads(shape):
    """Heads of keys and values: a number, or one for each layer where the file tells so."""
    if shape["family"] != "lfm2":
        return shape["kv_heads"]
    layers = range(shape["layers"])
    return [shape["kv_heads"] if has_attention(shape, layer) else 0 for layer in layers]


def _ones(size):
    return np.ones(size, np.float32)


def _normal(random, *shape):
    return random.normal(0, 0.3, shape).astype(np.float32)
