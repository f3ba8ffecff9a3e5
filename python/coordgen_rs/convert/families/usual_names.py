"""Tensors under Llama's names and in its shapes, where a family has others.

In: the tensors of a Hugging Face checkpoint. Out: the same, by the names that `Checkpoint` knows:
LFM2's, whose norms and feed-forward are called otherwise; Granite 4's, whose gate and up are one.
Of recurrent layers, convolutions lose a dimension of 1, and logarithms become what they stand for.
Experts, which checkpoints hold one by one or all together, become the matrices of `experts.py`; a
feed-forward beside them is called as where there are none.
"""

import re
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.convert.containers.tensor import Tensor, stacked
from coordgen_rs.convert.families.config.experts import PARTS, gates_and_ups
from coordgen_rs.errors import CheckpointError

_GATE_UP, _DOWN = "shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight"
"""The feed-forward of Granite 4 beside its experts, and all of it where there are none."""
_PARTS = {
    "model.embedding_norm.": "model.norm.",
    ".operator_norm.": ".input_layernorm.",
    ".ffn_norm.": ".post_attention_layernorm.",
    ".feed_forward.w1.": ".mlp.gate_proj.",
    ".feed_forward.w2.": ".mlp.down_proj.",
    ".feed_forward.w3.": ".mlp.up_proj.",
    ".self_attn.out_proj.": ".self_attn.o_proj.",
    ".self_attn.q_layernorm.": ".self_attn.q_norm.",
    ".self_attn.k_layernorm.": ".self_attn.k_norm.",
    ".feed_forward.gate.": ".mlp.gate.",
    ".feed_forward.expert_bias": ".mlp.expert_bias",
    ".block_sparse_moe.router.layer.": ".mlp.gate.",
    ".block_sparse_moe.router.": ".mlp.gate.",
    ".mlp.shared_expert.": ".mlp.",
}
"""What names have instead of Llama's and Qwen3-MoE's: those of LFM2, Granite 4 and Qwen3.5-MoE."""
_ONE_EXPERT = re.compile(r"(.*\.)(?:mlp|feed_forward)\.experts\.(\d{1,5})\.(\w+)\.weight")
_ALL_EXPERTS = re.compile(
    r"(.*\.)(?:mlp|feed_forward|block_sparse_moe)\.(?:experts\.)?"
    r"(gate_up_proj|down_proj|input_linear|output_linear)(?:\.weight)?"
)
_GATES_AND_UPS = ("gate_up_proj", "input_linear")
_OF_EXPERT = dict(zip(("w1", "w3", "w2", *PARTS), (*PARTS, *PARTS), strict=True))
_CONVOLUTIONS = (".conv.conv.weight", ".conv1d.weight")
_LOGARITHM, _ITSELF = ".A_log", ".A"


def usual_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by their usual names.

    Raises:
        CheckpointError: An expert is missing, or has another shape than others.
    """
    found: dict[str, Tensor] = {}
    experts = defaultdict[str, dict[int, Tensor]](dict)
    for name, tensor in tensors.items():
        one, all_of_them = _ONE_EXPERT.fullmatch(name), _ALL_EXPERTS.fullmatch(name)
        if one is not None and one[3] in _OF_EXPERT:
            experts[f"{one[1]}mlp.experts.{_OF_EXPERT[one[3]]}.weight"][int(one[2])] = tensor
        elif all_of_them is not None and len(tensor.shape) == 3:
            found |= _experts(f"{all_of_them[1]}mlp.experts.", all_of_them[2], tensor)
        elif name.endswith(_GATE_UP):
            prefix, half = name.removesuffix(_GATE_UP), tensor.shape[0] // 2
            found[f"{prefix}mlp.gate_proj.weight"] = tensor.part(0, half)
            found[f"{prefix}mlp.up_proj.weight"] = tensor.part(half, tensor.shape[0])
        elif name.endswith(_DOWN):
            found[f"{name.removesuffix(_DOWN)}mlp.down_proj.weight"] = tensor
        elif name.endswith(_CONVOLUTIONS):
            found[name] = tensor.without_ones()
        elif name.endswith(_LOGARITHM):
            found[name.removesuffix(_LOGARITHM) + _ITSELF] = _decay(tensor)
        else:
            found[_renamed(name)] = tensor
    return found | {name: _one_matrix(name, its) for name, its in experts.items()}


def _experts(prefix: str, part: str, tensor: Tensor) -> dict[str, Tensor]:
    """The matrices of all experts of a layer that are one tensor `(experts, rows, columns)`."""
    matrix = tensor.as_matrix()
    if part not in _GATES_AND_UPS:
        return {f"{prefix}down_proj.weight": matrix}
    gates, ups = gates_and_ups(matrix, tensor.shape[0])
    return {f"{prefix}gate_proj.weight": gates, f"{prefix}up_proj.weight": ups}


def _one_matrix(name: str, experts: dict[int, Tensor]) -> Tensor:
    """The matrices of experts one below the other.

    Raises:
        CheckpointError: One is missing, or has another shape than others.
    """
    numbers = range(len(experts))
    for number in numbers:
        if number not in experts:
            raise CheckpointError(f"{name}: the checkpoint has no expert {number}")
    return stacked(name, [experts[number] for number in numbers])


def _renamed(name: str) -> str:
    for part, usual in _PARTS.items():
        name = name.replace(part, usual)
    return name


def _decay(logarithms: Tensor) -> Tensor:
    """What a state decays by in a step of 1, as its logarithm: -exp of what is stored."""

    def read_rows(start: int, stop: int) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            decays = -np.exp(logarithms.read_rows(start, stop))
        if not np.isfinite(decays).all():
            raise CheckpointError(f"{logarithms.name} holds what is no logarithm of a decay")
        return decays

    return Tensor(logarithms.name, logarithms.shape, read_rows)
