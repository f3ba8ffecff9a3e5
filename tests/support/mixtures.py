"""Random checkpoints with mixtures of experts, in the form that Hugging Face directories have.

They need neither PyTorch nor transformers. Experts are one by one or all together, as in published
checkpoints of each family; what is beside them is that of `hybrids.py`.
"""

import json
from pathlib import Path
from typing import Any

from hybrids import LAYERS, Shapes, model_shapes, write_random

_FILE = Path(__file__).with_name("configs.json")
CONFIGS: dict[str, dict[str, Any]] = json.loads(_FILE.read_text("utf-8"))["mixtures"]
"""By the family's name."""
_DENSE = ("mlp.", "feed_forward.")
_BESIDE = {"qwen3_5_moe_text": "qwen3_5_text", "lfm2_moe": "lfm2"}
"""The `model_type` of the same layers without experts."""


def write_mixture(
    path: Path, family: str, *, seed: int = 0, mtp: str | None = None, **options: Any
) -> Path:
    """Write a checkpoint of a family into a new directory `path` and return it.

    With `mtp`, Qwen3.5-MoE's comes with a head for further tokens, as in `write_hybrid`.
    """
    config = CONFIGS[family] | options
    if mtp is not None:
        config |= {"mtp_num_hidden_layers": 1, "tie_word_embeddings": False}
    layers = (_layer(config, number) for number in range(config["num_hidden_layers"]))
    head = _layer(config | {"layer_types": ["full_attention"]}, 0) if mtp is not None else {}
    return write_random(path, config, model_shapes(config, layers, head), seed=seed, mtp=mtp)


def _layer(config: dict[str, Any], number: int) -> Shapes:
    """Names and shapes of a layer's weights."""
    kind = config["model_type"]
    if kind == "qwen3_moe":
        shapes = _attention(config)
        dense = number in config["mlp_only_layers"]
    else:
        shapes = LAYERS[_BESIDE.get(kind, kind)](config, config["layer_types"][number])
        dense = kind == "lfm2_moe" and number < config["num_dense_layers"]
    if dense:
        return shapes
    return {name: it for name, it in shapes.items() if not name.startswith(_DENSE)} | _experts(
        config
    )


def _attention(config: dict[str, Any]) -> Shapes:
    """A layer of Qwen3 with a dense feed-forward."""
    of_gates = LAYERS["qwen3_5_text"](config, "full_attention")
    query = config["num_attention_heads"] * config["head_dim"]
    return of_gates | {"self_attn.q_proj.weight": (query, config["hidden_size"])}


def _experts(config: dict[str, Any]) -> Shapes:
    """What a layer has of experts."""
    hidden, kind = config["hidden_size"], config["model_type"]
    if kind == "granitemoehybrid":
        num, size = config["num_local_experts"], config["intermediate_size"]
        return {
            "block_sparse_moe.router.layer.weight": (num, hidden),
            "block_sparse_moe.input_linear.weight": (num, 2 * size, hidden),
            "block_sparse_moe.output_linear.weight": (num, hidden, size),
        }
    num, size = config["num_experts"], config["moe_intermediate_size"]
    if kind == "qwen3_5_moe_text":
        shared = config["shared_expert_intermediate_size"]
        return {
            "mlp.gate.weight": (num, hidden),
            "mlp.experts.gate_up_proj": (num, 2 * size, hidden),
            "mlp.experts.down_proj": (num, hidden, size),
            "mlp.shared_expert.gate_proj.weight": (shared, hidden),
            "mlp.shared_expert.up_proj.weight": (shared, hidden),
            "mlp.shared_expert.down_proj.weight": (hidden, shared),
            "mlp.shared_expert_gate.weight": (1, hidden),
        }
    prefix, gate, up, down = "mlp", "gate_proj", "up_proj", "down_proj"
    shapes: Shapes = {}
    if kind == "lfm2_moe":
        prefix, gate, up, down = "feed_forward", "w1", "w3", "w2"
        shapes["feed_forward.expert_bias"] = (num,)
    shapes[f"{prefix}.gate.weight"] = (num, hidden)
    for number in range(num):
        part = f"{prefix}.experts.{number}"
        shapes |= {f"{part}.{gate}.weight": (size, hidden), f"{part}.{up}.weight": (size, hidden)}
        shapes[f"{part}.{down}.weight"] = (hidden, size)
    return shapes
