"""What a GGUF file of a shape has, by its family, by llama.cpp's names.

In: a shape of `shapes.toml`: dense (qwen2), with recurrent layers (qwen35, lfm2), or a mixture of
experts (qwen3moe). A mixture's router has random rows, each as long as a log-normal draw of the
shape's `skew`: the longer, the more often its expert is among a row's. Without skew all experts are
chosen alike, which is the worst for whoever keeps some of them.
"""

import numpy as np

SKEW = 0.3
"""Where a mixture has no `skew`: a quarter of the experts gets about half of the rows."""
EMBEDDING_SCALES = {"qwen3moe": 30.0}
"""Of the usual weights of an embedding: the stream of a mixture is to be the token's own, or all
tokens would choose the same experts."""
_DELTA_HEADS, _DELTA_DIM, _DELTA_TAPS = 16, 128, 4
_ATTENTION_EVERY = 4
_LFM2_ATTENTION = {2, 5, 8, 10, 12, 14}
_LFM2_TAPS = 3


def has_attention(shape, layer):
    """Whether a layer has attention; else it is recurrent."""
    if shape["family"] == "lfm2":
        return layer in _LFM2_ATTENTION
    return shape["family"] != "qwen35" or layer % _ATTENTION_EVERY == _ATTENTION_EVERY - 1


def head_dim(shape):
    """Numbers of a head."""
    return shape.get("head_dim", shape["hidden"] // shape["heads"])


def layer_matrices(shape, layer):
    """The matrices of a layer: name, rows, columns, and of how many experts, if of any."""
    hidden, family = shape["hidden"], shape["family"]
    query, key = (shape[heads] * head_dim(shape) for heads in ("heads", "kv_heads"))
    delta = _DELTA_HEADS * _DELTA_DIM
    if has_attention(shape, layer):
        mixing = {
            "attn_q": ((2 if family == "qwen35" else 1) * query, hidden),
            "attn_k": (key, hidden),
            "attn_v": (key, hidden),
            "attn_output": (hidden, query),
        }
    elif family == "lfm2":
        mixing = {"shortconv.in_proj": (3 * hidden, hidden), "shortconv.out_proj": (hidden, hidden)}
    else:
        mixing = {
            "attn_qkv": (3 * delta, hidden),
            "attn_gate": (delta, hidden),
            "ssm_alpha": (_DELTA_HEADS, hidden),
            "ssm_beta": (_DELTA_HEADS, hidden),
            "ssm_out": (hidden, delta),
        }
    exps, more = ("_exps", (shape["experts"],)) if "experts" in shape else ("", ())
    ffn = shape.get("expert_ffn", shape["ffn"])
    feeding = {"ffn_gate": (ffn, hidden), "ffn_up": (ffn, hidden), "ffn_down": (hidden, ffn)}
    feeding = {f"{name}{exps}": (*sizes, *more) for name, sizes in feeding.items()}
    return [(name, *sizes) for name, sizes in (mixing | feeding).items()]


def vectors(shape):
    """What is not multiplied as a matrix, float32, by name."""
    is_lfm2 = shape["family"] == "lfm2"
    random = np.random.default_rng(2 if "experts" in shape else 1)
    norm = "token_embd_norm" if is_lfm2 else "output_norm"
    found = {f"{norm}.weight": _ones(shape["hidden"])}
    for layer in range(shape["layers"]):
        of_layer = _layer_vectors(shape, layer, random)
        found |= {f"blk.{layer}.{name}": values for name, values in of_layer.items()}
    return found


def _layer_vectors(shape, layer, random):
    hidden, family, delta = shape["hidden"], shape["family"], _DELTA_HEADS * _DELTA_DIM
    second = "post_attention_norm" if family == "qwen35" else "ffn_norm"
    found = {"attn_norm.weight": _ones(hidden), f"{second}.weight": _ones(hidden)}
    if not has_attention(shape, layer):
        if family == "lfm2":
            return found | {"shortconv.conv.weight": _normal(random, hidden, _LFM2_TAPS)}
        return found | {
            "ssm_conv1d.weight": _normal(random, 3 * delta, _DELTA_TAPS),
            "ssm_dt.bias": _normal(random, _DELTA_HEADS),
            "ssm_a": -np.abs(_normal(random, _DELTA_HEADS)) - np.float32(0.01),
            "ssm_norm.weight": _ones(_DELTA_DIM),
        }
    if family == "qwen2":
        sizes = {name: rows for name, rows, _ in layer_matrices(shape, layer)[:3]}
        return found | {f"{name}.bias": np.zeros(size, np.float32) for name, size in sizes.items()}
    found |= {f"attn_{kind}_norm.weight": _ones(head_dim(shape)) for kind in ("q", "k")}
    if "experts" in shape:
        lengths = np.exp(shape.get("skew", SKEW) * random.normal(size=(shape["experts"], 1)))
        router = lengths * random.normal(0, hidden**-0.5, (shape["experts"], hidden))
        found["ffn_gate_inp.weight"] = router.astype(np.float32)
    return found


def add_metadata(writer, shape):
    """The keys of the family."""
    family = shape["family"]
    writer.add_head_count_kv(_kv_heads(shape))
    if family == "qwen2":
        return
    writer.add_key_length(head_dim(shape))
    writer.add_value_length(head_dim(shape))
    if family == "lfm2":
        writer.add_uint32(f"{family}.shortconv.l_cache", _LFM2_TAPS)
        writer.add_vocab_size(shape["vocab"])
    elif family == "qwen3moe":
        writer.add_expert_count(shape["experts"])
        writer.add_expert_used_count(shape["chosen"])
        writer.add_expert_feed_forward_length(shape["expert_ffn"])
    else:
        sizes = {
            "full_attention_interval": _ATTENTION_EVERY,
            "rope.dimension_count": head_dim(shape) // 4,
            "ssm.conv_kernel": _DELTA_TAPS,
            "ssm.group_count": _DELTA_HEADS,
            "ssm.inner_size": _DELTA_HEADS * _DELTA_DIM,
            "ssm.state_size": _DELTA_DIM,
            "ssm.time_step_rank": _DELTA_HEADS,
        }
        for name, value in sizes.items():
            writer.add_uint32(f"{family}.{name}", value)
        writer.add_array(f"{family}.rope.dimension_sections", [11, 11, 10, 0])


def _kv_heads(shape):
    """A number, or one for each layer where the file tells so."""
    if shape["family"] != "lfm2":
        return shape["kv_heads"]
    layers = range(shape["layers"])
    return [shape["kv_heads"] if has_attention(shape, layer) else 0 for layer in layers]


def _ones(size):
    return np.ones(size, np.float32)


def _normal(random, *shape):
    return random.normal(0, 0.3, shape).astype(np.float32)
