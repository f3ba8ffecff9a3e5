"""Shapes of mixtures of experts, for `shape_file.py`: matrices, vectors and metadata.

In: a shape. Out: what a GGUF file of it has, by llama.cpp's names. A router's rows are random, each
as long as a log-normal draw of `skew`: the longer, the more often its expert is among a row's.
Without skew all experts are chosen alike, which is the worst for whoever keeps some of them.
"""

import numpy as np

SHAPES = {
    "qwen3-30b-a3b": {
        "family": "qwen3moe",
        "hidden": 2048,
        "ffn": 6144,
        "layers": 48,
        "heads": 32,
        "kv_heads": 4,
        "head_dim": 128,
        "vocab": 151_936,
        "max_positions": 40_960,
        "experts": 128,
        "chosen": 8,
        "expert_ffn": 768,
    },
}
EMBEDDING_SCALE = 30.0
"""Of the usual weights of an embedding."""
SKEW = 0.3
"""Where a shape has no `skew`: a quarter of the experts gets about half of the rows."""


def layer_matrices(shape, _layer):
    """The matrices of a layer: name, rows, columns, and of how many experts."""
    hidden, ffn, experts = shape["hidden"], shape["expert_ffn"], shape["experts"]
    query, key = (shape[heads] * shape["head_dim"] for heads in ("heads", "kv_heads"))
    return [
        ("attn_q", query, hidden),
        ("attn_k", key, hidden),
        ("attn_v", key, hidden),
        ("attn_output", hidden, query),
        ("ffn_gate_exps", ffn, hidden, experts),
        ("ffn_up_exps", ffn, hidden, experts),
        ("ffn_down_exps", hidden, ffn, experts),
    ]


def vectors(shape):
    """What is stored as float32, by name: norms and routers."""
    hidden, experts = shape["hidden"], shape["experts"]
    found = {"output_norm.weight": np.ones(hidden, np.float32)}
    random = np.random.default_rng(2)
    for layer in range(shape["layers"]):
        lengths = np.exp(shape.get("skew", SKEW) * random.normal(size=(experts, 1)))
        router = lengths * random.normal(0, hidden**-0.5, (experts, hidden))
        of_layer = {
            "attn_norm.weight": np.ones(hidden, np.float32),
            "ffn_norm.weight": np.ones(hidden, np.float32),
            "attn_q_norm.weight": np.ones(shape["head_dim"], np.float32),
            "attn_k_norm.weight": np.ones(shape["head_dim"], np.float32),
            "ffn_gate_inp.weight": router.astype(np.float32),
        }
        found |= {f"blk.{layer}.{name}": values for name, values in of_layer.items()}
    return found


def add_metadata(writer, shape):
    """Beside what all files have, the keys of the family."""
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    writer.add_expert_count(shape["experts"])
    writer.add_expert_used_count(shape["chosen"])
    writer.add_expert_feed_forward_length(shape["expert_ffn"])


def kv_heads(shape):
    """Heads of keys and values."""
    return shape["kv_heads"]
