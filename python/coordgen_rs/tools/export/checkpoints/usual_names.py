"""Tensors under Llama's names and in its shapes, where a family has others.

In: the tensors of a Hugging Face checkpoint. Out: the same, by the names that `Checkpoint` knows:
LFM2's, whose norms and feed-forward are called otherwise; Granite 4's, whose gate and up are one.
Of recurrent layers, convolutions lose a dimension of 1, and logarithms become what they stand for.
"""

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import CheckpointError
from coordgen_rs.tools.export.checkpoints.tensor import Tensor

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
}
"""What LFM2's names have instead of Llama's."""
_CONVOLUTIONS = (".conv.conv.weight", ".conv1d.weight")
_LOGARITHM, _ITSELF = ".A_log", ".A"


def usual_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by their usual names."""
    found = {}
    for name, tensor in tensors.items():
        if name.endswith(_GATE_UP):
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
    return found


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
