"""Recurrent layers in a graph for CPU: the operators, and what each of them keeps.

In: a layer's kind. Out: nodes from what a row is projected to, to what
is projected back; the sizes of states, which the manifest holds. The operators are of this
package's core (`src/ort/mod.rs`).
"""

from dataclasses import dataclass
from typing import Any

import onnx

from coordgen_rs.bundle.layers import StateSizes
from coordgen_rs.convert.families.model_config import (
    DeltaNet,
    Recurrent,
    SelectiveState,
    ShortConvolution,
)
from coordgen_rs.convert.graph_builder import SEQUENCES, LayerGraph, byte_info

_LANES = 16
_CONVOLUTION = "convolution"


@dataclass(frozen=True)
class _Operator:
    """What mixes tokens behind a convolution."""

    name: str
    sizes: StateSizes
    vectors: tuple[str, ...]
    """Its inputs behind what is convolved and what is projected, by part of the layer's name."""
    attributes: dict[str, Any]


def _operator(kind: Recurrent) -> _Operator | None:
    """The operator of a kind of layer; None for one that is a convolution alone."""
    if isinstance(kind, ShortConvolution):
        return None
    if isinstance(kind, DeltaNet):
        keys, heads, value_dim = kind.key_dim, kind.value_heads, _padded(kind.value_dim)
        update = _padded(kind.key_heads * keys + heads * (value_dim + 1))
        sizes = StateSizes("delta", heads * keys * value_dim, update)
        gates, betas = kind.channels, kind.channels + kind.width
        names: tuple[str, ...] = ("key_heads", "value_heads", "key_dim", "value_dim")
        attributes = {name: getattr(kind, name) for name in names}
        columns = [gates, betas, betas + kind.value_heads]
        vectors: tuple[str, ...] = ("a", "dt_bias", "norm")
        return _Operator("GatedDelta", sizes, vectors, attributes | {"columns": columns})
    heads, head_dim = kind.heads, _padded(kind.head_dim)
    update = _padded(kind.groups * kind.state_dim + heads * (head_dim + 1))
    sizes = StateSizes("selective", heads * kind.state_dim * head_dim, update)
    names = ("heads", "head_dim", "groups", "state_dim", "least_step", "most_step")
    attributes = {name: getattr(kind, name) for name in names}
    columns, vectors = [0, kind.width + kind.channels], ("a", "dt_bias", "d", "norm")
    return _Operator("SelectiveUpdate", sizes, vectors, attributes | {"columns": columns})


def state_sizes(kind: Recurrent) -> list[StateSizes]:
    """What a layer of this kind keeps, in the order of its operators."""
    channels, operator = _padded(kind.channels), _operator(kind)
    convolution = StateSizes(_CONVOLUTION, (kind.taps - 1) * channels, channels)
    return [convolution] if operator is None else [convolution, operator.sizes]


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
    name, sizes, operator = f"layer_{number}", state_sizes(kind), _operator(kind)

    def add(which: int, kind_of_node: str, output: str, *inputs: str, **attributes: Any) -> str:
        state, updates = sizes[which].inputs(number)
        outputs = [f"{name}.{output}", f"{state}_out", f"{updates}_out"]
        given = [*inputs, state, updates, *RECURRENT_PATH]
        graph.split(kind_of_node, given, outputs, **attributes)
        return outputs[0]

    parts = (*(operator.vectors if operator else ()), "bias", "convolution")
    *vectors, bias, convolution = [graph.weight(f"{name}.{part}") for part in parts]
    is_alone = operator is None
    convolved = add(
        0,
        "CausalConvolution",
        "convolved",
        *(x, convolution, bias),
        channels=kind.channels,
        taps=kind.taps,
        first=kind.width if isinstance(kind, SelectiveState) else 0,
        activation="" if is_alone else "silu",
        gated=int(is_alone),
    )
    if operator is None:
        return convolved
    attributes = operator.attributes | {"epsilon": epsilon}
    given = add(1, operator.name, "mixed", convolved, x, *vectors, **attributes)
    return _tiled(graph, kind, given) if isinstance(kind, DeltaNet) and kind.is_tiled else given


def _tiled(graph: LayerGraph, kind: DeltaNet, x: str) -> str:
    """Rows with the first value head of every key head first, then the second of each."""
    of_key = kind.value_heads // kind.key_heads
    heads = graph.integers(1, -1, kind.key_heads, of_key, kind.value_dim)
    apart = graph.node("Reshape", [x, heads], f"{x}.heads")
    turned = graph.node("Transpose", [apart], f"{x}.turned", perm=[0, 1, 3, 2, 4])
    return graph.node("Reshape", [turned, graph.integers(1, -1, kind.width)], f"{x}.tiled")


RECURRENT_PATH = ("parents", "sequences", "lengths", "span", "reads", "pending")
"""What these operators read of a step."""
