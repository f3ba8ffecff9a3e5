"""Random checkpoints with recurrent layers, in the form that Hugging Face directories have.

They need neither PyTorch nor transformers. Sizes are small, and odd where a model may have them;
the tokenizer is that of the embedded model.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpoints import CHECKPOINTS, random_weights, save_weights

Shapes = dict[str, tuple[int, ...]]

_FILE = Path(__file__).with_name("configs.json")
CONFIGS: dict[str, dict[str, Any]] = json.loads(_FILE.read_text("utf-8"))["hybrids"]
"""By the family's name."""


def write_hybrid(
    path: Path, family: str, *, seed: int = 0, mtp: str | None = None, **options: Any
) -> Path:
    """Write a checkpoint of a family into a new directory `path` and return it.

    With `mtp`, Qwen3.5's comes with a head for further tokens: "random"; one that is "fitted" to a
    target whose layers hardly change what a token's embedding says of the next one; or "echo", to
    the same target, which says again what the state before a token says.
    """
    config = CONFIGS[family] | options
    if mtp is not None:
        config |= {"mtp_num_hidden_layers": 1, "tie_word_embeddings": False}
    of_kind = LAYERS[config["model_type"]]
    layers = (of_kind(config, kind) for kind in config["layer_types"])
    head = _qwen(config, "full_attention") if mtp is not None else {}
    return write_random(path, config, model_shapes(config, layers, head), seed=seed, mtp=mtp)


def write_random(
    path: Path,
    config: dict[str, Any],
    shapes: Shapes,
    *,
    seed: int,
    mtp: str | None = None,
    order: tuple[str, int] | None = None,
) -> Path:
    """Write random weights of some shapes, by name, and what else a checkpoint is.

    With `order`, a tensor of that name holds so many token ids, each once.
    """
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    shutil.copy(CHECKPOINTS["embedded"] / "tokenizer.json", path)
    weights = random_weights(shapes, seed, np.float32)
    random = np.random.default_rng(seed)
    is_offset, is_gemma4 = map(config["model_type"].startswith, ("qwen3_5", "gemma4"))
    for name, values in weights.items():
        if values.ndim == 3 and values.shape[1] > 1:  # of all experts of a layer
            values *= np.float32(2 / np.sqrt(values.shape[2]))
        if name.endswith("A_log"):
            weights[name] = np.log(random.uniform(0.05, 2, values.shape)).astype(np.float32)
        elif name.endswith("layer_scalar"):
            weights[name] = random.uniform(0.5, 1.5, 1).astype(np.float32)
        elif is_gemma4 and name.endswith(("q_norm.weight", "k_norm.weight")):
            weights[name] = values * np.float32(len(values) ** -0.25)
        elif name.endswith("expert_bias"):
            weights[name] = values / np.float32(8)
        elif is_offset and "norm" in name and ".linear_attn." not in name:
            weights[name] = values - 1  # one is added to these
        elif mtp in ("fitted", "echo") and name.endswith(_BACK):
            values *= np.float32(0 if name.startswith("mtp.") else 0.004)
    if mtp in ("fitted", "echo"):
        _fit_head(weights, reads_state=mtp == "echo")
    if order is not None:
        weights[order[0]] = random.permutation(order[1])
    save_weights(path, weights)
    return path


_BACK = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj")


def _fit_head(weights: dict[str, NDArray[Any]], *, reads_state: bool) -> None:
    """Let the head say what the output layer says of a token's embedding, or of a state."""
    joined = weights["mtp.fc.weight"]
    hidden = len(joined)
    joined[:] = np.eye(hidden, 2 * hidden, hidden if reads_state else 0, dtype=np.float32)
    weights["mtp.pre_fc_norm_embedding.weight"][:] = 0
    weights["mtp.pre_fc_norm_hidden.weight"][:] = 0
    if reads_state:
        weights["model.norm.weight"][:] = 0  # so that a state that is normed twice stays the same
    weights["mtp.norm.weight"][:] = weights["model.norm.weight"]
    weights["lm_head.weight"] *= np.float32(4)  # so that some tokens are likely


def model_shapes(config: dict[str, Any], layers: Iterable[Shapes], head: Shapes) -> Shapes:
    """Name to shape of all weights, of those of layers and of a head for further tokens."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    model_norm = "embedding_norm" if config["model_type"].startswith("lfm2") else "norm"
    shapes: Shapes = {
        "model.embed_tokens.weight": (vocab, hidden),
        f"model.{model_norm}.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    for number, parts in enumerate(layers):
        shapes |= {f"model.layers.{number}.{part}": shape for part, shape in parts.items()}
    if config.get("mtp_num_hidden_layers"):
        shapes |= {f"mtp.layers.0.{part}": shape for part, shape in head.items()}
        shapes["mtp.fc.weight"] = (hidden, 2 * hidden)
        norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        shapes |= {f"mtp.{norm}.weight": (hidden,) for norm in norms}
    return shapes


def _attention(config: dict[str, Any], *, out: str, gates: int = 1) -> Shapes:
    hidden = config["hidden_size"]
    size = config.get("head_dim", hidden // config["num_attention_heads"])
    query, key = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    return {
        "self_attn.q_proj.weight": (gates * query, hidden),
        "self_attn.k_proj.weight": (key, hidden),
        "self_attn.v_proj.weight": (key, hidden),
        f"self_attn.{out}.weight": (hidden, query),
    }


def _lfm2(config: dict[str, Any], kind: str) -> Shapes:
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    size = hidden // config["num_attention_heads"]
    shapes: Shapes = {
        "operator_norm.weight": (hidden,),
        "ffn_norm.weight": (hidden,),
        "feed_forward.w1.weight": (ffn, hidden),
        "feed_forward.w3.weight": (ffn, hidden),
        "feed_forward.w2.weight": (hidden, ffn),
    }
    if kind == "conv":
        taps = config["conv_L_cache"]
        return shapes | {
            "conv.in_proj.weight": (3 * hidden, hidden),
            "conv.conv.weight": (hidden, 1, taps),
            "conv.out_proj.weight": (hidden, hidden),
        }
    norms: Shapes = {f"self_attn.{name}_layernorm.weight": (size,) for name in ("q", "k")}
    return shapes | norms | _attention(config, out="out_proj")


def _qwen(config: dict[str, Any], kind: str) -> Shapes:
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    shapes: Shapes = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }
    if kind == "full_attention":
        size = config["head_dim"]
        norms: Shapes = {f"self_attn.{name}_norm.weight": (size,) for name in ("q", "k")}
        return shapes | norms | _attention(config, out="o_proj", gates=2)
    heads, value_dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    width = heads * value_dim
    channels = 2 * keys + width
    return shapes | {
        "linear_attn.in_proj_qkv.weight": (channels, hidden),
        "linear_attn.in_proj_z.weight": (width, hidden),
        "linear_attn.in_proj_b.weight": (heads, hidden),
        "linear_attn.in_proj_a.weight": (heads, hidden),
        "linear_attn.conv1d.weight": (channels, 1, config["linear_conv_kernel_dim"]),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.A_log": (heads,),
        "linear_attn.norm.weight": (value_dim,),
        "linear_attn.out_proj.weight": (hidden, width),
    }


def _granite(config: dict[str, Any], kind: str) -> Shapes:
    hidden, ffn = config["hidden_size"], config["shared_intermediate_size"]
    shapes: Shapes = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "shared_mlp.input_linear.weight": (2 * ffn, hidden),
        "shared_mlp.output_linear.weight": (hidden, ffn),
    }
    if kind == "attention":
        return shapes | _attention(config, out="o_proj")
    heads = config["mamba_n_heads"]
    width = heads * config["mamba_d_head"]
    channels = width + 2 * config["mamba_n_groups"] * config["mamba_d_state"]
    return shapes | {
        "mamba.in_proj.weight": (width + channels + heads, hidden),
        "mamba.conv1d.weight": (channels, 1, config["mamba_d_conv"]),
        "mamba.conv1d.bias": (channels,),
        "mamba.dt_bias": (heads,),
        "mamba.A_log": (heads,),
        "mamba.D": (heads,),
        "mamba.norm.weight": (width,),
        "mamba.out_proj.weight": (hidden, width),
    }


LAYERS = {"lfm2": _lfm2, "qwen3_5_text": _qwen, "granitemoehybrid": _granite}
"""Names and shapes of a layer's weights, by `model_type`, from a config.json and its kind."""
