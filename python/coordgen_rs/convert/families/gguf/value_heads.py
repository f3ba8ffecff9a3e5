"""The heads of delta nets in the order that a GGUF file has them in.

In: the tensors of a file. Out: the same with value heads in the order of their key heads. Of a
model with more value heads than key heads llama.cpp's converter puts the first of every key head
first, then the second of each, so that queries and keys are repeated as a whole. Rows are put back
here. Columns of the projection back stay: some types hold several heads in one block, so a graph
orders what it multiplies.
"""

from dataclasses import replace

from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.config.recurrent import DeltaNet


def grouped(tensors: dict[str, Tensor], kind: DeltaNet) -> tuple[dict[str, Tensor], DeltaNet]:
    """The tensors with the rows of value heads in order, and what is to be known of the columns."""
    if kind.key_heads == kind.value_heads:
        return tensors, kind
    first = 2 * kind.key_heads * kind.key_dim
    rows = {
        "linear_attn.in_proj_qkv.weight": (first, kind.value_dim),
        "linear_attn.conv1d.weight": (first, kind.value_dim),
        "linear_attn.in_proj_z.weight": (0, kind.value_dim),
        "linear_attn.in_proj_b.weight": (0, 1),
        "linear_attn.in_proj_a.weight": (0, 1),
        "linear_attn.A": (0, 1),
        "linear_attn.dt_bias": (0, 1),
    }
    found = dict(tensors)
    for name, tensor in tensors.items():
        _, _, part = name.removeprefix("model.layers.").partition(".")
        if part in rows and tensor.shape[0] == rows[part][0] + kind.value_heads * rows[part][1]:
            found[name] = tensor.joined(_spans(kind, *rows[part]))
    return found, replace(kind, is_tiled=True)


def _spans(kind: DeltaNet, first: int, size: int) -> list[tuple[int, int]]:
    """The rows before the value heads, and those of each head: where they are in the file."""
    of_key = kind.value_heads // kind.key_heads
    heads = [
        number * kind.key_heads + key for key in range(kind.key_heads) for number in range(of_key)
    ]
    spans = [(first + head * size, first + (head + 1) * size) for head in heads]
    return [(0, first), *spans] if first else spans
