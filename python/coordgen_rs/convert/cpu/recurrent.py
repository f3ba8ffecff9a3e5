"""Recurrent layers in a graph for CPU: the operators, and what each of them keeps.

In: a layer's kind. Out: nodes from what a row is projected to, to what
is projected back; the sizes of states, which the manifest holds. The operators are of this
package's core (`src/ort/mod.rs`).
"""

from typing import Any

import onnx

from coordgen_rs.bundle.layers import StateSizes
from coordgen_rs.convert.families.config.recurrent import (
    DeltaNet,
    Recurrent,
    SelectiveState,
    ShortConvolution,
)
from coordgen_rs.convert.graph_builder import SEQUENCES, LayerGraph, byte_info

_LANES = 16
_CONVOLUTION = "convolution"


def state_sizes(kind: Recurrent) -> list[StateSizes]:
    """What a layer of this kind keeps, in the order of its operators."""
    channels = _padded(kind.channels)
    convolution = StateSizes(_CONVOLUTION, (kind.taps - 1) * channels, channels)
    if isinstance(kind, ShortConvolution):
        return [convolution]
    if isinstance(kind, DeltaNet):
        keys, heads, value_dim = kind.key_dim, kind.value_heads, _padded(kind.value_dim)
        update = _padded(kind.key_heads * keys + heads * (value_dim + 1))
        return [convolution, StateSizes("delta", heads * keys * value_dim, update)]
    heads, head_dim = kind.heads, _padded(kind.head_dim)
    update = _padded(kind.groups * kind.state_dim + heads * (head_dim + 1))
    return [convolution, StateSizes("selective", heads * kind.state_dim * head_dim, update)]


def _padded(count: int) -> int:
    return -(-count // _LANES) * _LANES


def state_infos(kind: Recurrent, layer: int) -> list[onnx.ValueInfoProto]:
    """The inputs of a layer: of each operator its states, and its updates."""
    infos = []
    for sizes in state_sizes(kind):
        state, updates = sizes.inputs(layer)
        infos.append(byte_info(state, SEQUENCES, 2, sizes.num_bytes))
        infos.append(byte_info(updates, 2, sizes.updates_name))
    return infos


def mixed(graph: LayerGraph, kind: Recurrent, number: int, x: str, epsilon: float) -> str:
    """What a layer gives for rows `x` that are projected, before they are projected back."""
    name, sizes = f"layer_{number}", state_sizes(kind)
    vectors = {part: graph.weight(f"{name}.{part}") for part in (*kind.tensors.vectors, "bias")}

    def operator(which: int, operator: str, output: str, *inputs: str, **attributes: Any) -> str:
        state, updates = sizes[which].inputs(number)
        graph.split(
            operator,
            [*inputs, state, updates, *RECURRENT_PATH],
            [f"{name}.{output}", f"{state}_out", f"{updates}_out"],
            **attributes,
        )
        return f"{name}.{output}"

    convolved = operator(
        0,
        "CausalConvolution",
        "convolved",
        x,
        graph.weight(f"{name}.convolution"),
        vectors["bias"],
        channels=kind.channels,
        taps=kind.taps,
        first=kind.width if isinstance(kind, SelectiveState) else 0,
        activation="" if isinstance(kind, ShortConvolution) else "silu",
        gated=int(isinstance(kind, ShortConvolution)),
    )
    if isinstance(kind, ShortConvolution):
        return convolved
    if isinstance(kind, DeltaNet):
        gates, betas = kind.channels, kind.channels + kind.width
        given = operator(
            1,
            "GatedDelta",
            "mixed",
            convolved,
            x,
            *(vectors[part] for part in ("a", "dt_bias", "norm")),
            key_heads=kind.key_heads,
            value_heads=kind.value_heads,
            key_dim=kind.key_dim,
            value_dim=kind.value_dim,
            columns=[gates, betas, betas + kind.value_heads],
            epsilon=epsilon,
        )
        return _tiled(graph, kind, given) if kind.is_tiled else given
    return operator(
        1,
        "SelectiveUpdate",
        "mixed",
        convolved,
        x,
        *(vectors[part] for part in ("a", "dt_bias", "d", "norm")),
        heads=kind.heads,
        head_dim=kind.head_dim,
        groups=kind.groups,
        state_dim=kind.state_dim,
        columns=[0, kind.width + kind.channels],
        least_step=kind.least_step,
        most_step=kind.most_step,
        epsilon=epsilon,
    )


def _tiled(graph: LayerGraph, kind: DeltaNet, x: str) -> str:
    """Rows with the first value head of every key head first, then the second of each."""
    of_key = kind.value_heads // kind.key_heads
    heads = graph.integers(1, -1, kind.key_heads, of_key, kind.value_dim)
    apart = graph.node("Reshape", [x, heads], f"{x}.heads")
    turned = graph.node("Transpose", [apart], f"{x}.turned", perm=[0, 1, 3, 2, 4])
    return graph.node("Reshape", [turned, graph.integers(1, -1, kind.width)], f"{x}.tiled")


RECURRENT_PATH = ("parents", "sequences", "lengths", "span", "reads", "pending")
"""What these operators read of a step."""
