"""The layers of a model as they stand in a bundle for CPU, and the operators of recurrent ones.

In: a `Checkpoint`. Out: its tensors appended to weight files, under the names by which the graphs
of `graph.py` know them: those of layer 3 begin with `layer_3.`.
"""

from dataclasses import dataclass
from typing import Any

import onnx

from coordgen_rs.bundle.layers import StateSizes
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.families.model_config import (
    BESIDE_GATE,
    CHOICE_BIAS,
    ROUTER,
    DeltaNet,
    Experts,
    Recurrent,
    SelectiveState,
    ShortConvolution,
    linear_layers,
)
from coordgen_rs.convert.graph_builder import SEQUENCES, LayerGraph, byte_info
from coordgen_rs.convert.weight_file import WeightWriter

PER_LAYER_SHARE = 2**-0.5
"""What both parts of a layer's embedding are multiplied by, that of the table and the other."""
_OUT_NORMS = {"attention_out_norm": "attention_out.norm", "ffn_out_norm": "down.norm"}
"""What norms behind a linear layer are called, by their field in `ModelConfig.norm_names`."""


def write_layer(source: Checkpoint, writer: WeightWriter, number: int) -> None:
    """Appends layer `number`.

    Raises CheckpointError for a tensor that is missing, misshaped or damaged, and ExportError if
    the disk is full.
    """
    config, name, prefix = source.config, f"layer_{number}", f"model.layers.{number}"
    linears, norms = linear_layers(config, number), config.norm_names(number)

    def tensor(part: str, *shape: int) -> Tensor:
        return source.tensor(f"{prefix}.{part}", *shape)

    def write_norm(field: str) -> None:
        if field in norms:
            found = source.norm_tensor(norms.pop(field), config.norm_size(field, number))
            writer.tensor(f"{name}.{_OUT_NORMS.get(field, field)}.weight", found)

    def write_linear(part: str, has_bias: bool = False) -> None:
        if part in linears:
            shapes = linears[part]
            weights = [tensor(f"{it}.weight", *shape) for it, shape in shapes.items()]
            biases = [tensor(f"{it}.bias", rows) for it, (rows, _) in shapes.items() if has_bias]
            if part == "qkv" and config.gated_attention:
                weights = _gates_last(weights, config.cache_of(number).head_dim)
            writer.linear(f"{name}.{part}", weights, biases)

    write_norm("attention_norm")
    if config.recurrent is not None and number in config.recurrent_layers:
        write_linear("projected")
        write_linear("attention_out")
        kind, tensors = config.recurrent, config.recurrent.tensors
        convolution = tensor(f"{tensors.convolution}.weight", kind.channels, kind.taps)
        writer.turned(f"{name}.convolution", convolution)
        vectors = dict(tensors.vectors)
        if tensors.has_bias:
            vectors["bias"] = f"{tensors.convolution}.bias", kind.channels
        for part, (its, size) in vectors.items():
            writer.tensor(f"{name}.{part}", tensor(its, size))
    else:
        write_linear("qkv", config.qkv_bias)
        write_linear("attention_out", config.out_bias)
        if config.has_sinks:
            writer.tensor(f"{name}.sinks", tensor("self_attn.sinks", config.num_heads))
    write_norm("ffn_norm")
    write_linear("gate_up")
    write_linear("down")
    if config.experts is not None and config.has_experts(number):
        _write_mixture(source, config.experts, writer, number)
    for field in list(norms):
        write_norm(field)
    if size := config.per_layer_size:
        hidden = config.hidden_size
        gate = tensor("per_layer_input_gate.weight", size, hidden)
        writer.linear(f"{name}.per_layer_gate", [gate])
        added = tensor("per_layer_projection.weight", hidden, size)
        writer.linear(f"{name}.per_layer_added", [added])
        norm = source.norm_tensor(f"{prefix}.post_per_layer_input_norm", hidden)
        writer.tensor(f"{name}.per_layer_norm.weight", norm)
    if config.layer_scalars:
        writer.weights.scalars[number] = float(tensor("layer_scalar", 1).load()[0])


def _gates_last(weights: list[Tensor], head_dim: int) -> list[Tensor]:
    """Projections of which the first has the query of each head, then its gate, in other order."""
    of_heads, *others = weights
    firsts = range(0, of_heads.shape[0], 2 * head_dim)
    queries = [of_heads.part(first, first + head_dim) for first in firsts]
    gates = [of_heads.part(first + head_dim, first + 2 * head_dim) for first in firsts]
    return [*queries, *others, *gates]


def _write_mixture(source: Checkpoint, sizes: Experts, writer: WeightWriter, number: int) -> None:
    """Appends the experts of layer `number`, and what chooses them.

    That is not rounded: an expert more or less changes more than all of its weights do.
    """
    hidden, name = source.config.hidden_size, f"layer_{number}"

    def tensor(part: str, *shape: int) -> Tensor:
        return source.tensor(f"model.layers.{number}.{part}", *shape)

    def write_chooser(part: str, its: str, rows: int, has_bias: bool = False) -> None:
        biases = [tensor(f"{its}.bias", rows)] if has_bias else []
        weight = tensor(f"{its}.weight", rows, hidden)
        writer.linear(f"{name}.{part}", [weight], biases, is_rounded=False)

    shapes = sizes.shapes(hidden)
    matrices = [tensor(f"mlp.experts.{part}.weight", *shape) for part, shape in shapes.items()]
    if sizes.has_biases:
        gate, up, down = (
            tensor(f"mlp.experts.{part}.bias", sizes.num, rows // sizes.num)
            for part, (rows, _) in shapes.items()
        )
        writer.beside(f"{name}.up_bias", gate, up)
        writer.tensor(f"{name}.down_bias", down)
    writer.experts(number, matrices, sizes.num)
    write_chooser("router", ROUTER, sizes.num, sizes.has_biases)
    if sizes.has_choice_bias:
        writer.tensor(f"{name}.choice_bias", tensor(CHOICE_BIAS, sizes.num))
    if sizes.gates_shared:
        write_chooser("beside_gate", BESIDE_GATE, 1)


def write_per_layer_inputs(source: Checkpoint, writer: WeightWriter, layers: range) -> None:
    """Appends what embeddings of some layers get from the embedded token, if there are such.

    Raises CheckpointError and ExportError as `write_layer` does.
    """
    config, size = source.config, source.config.per_layer_size
    if size:
        rows = config.num_layers * size
        whole = source.tensor("model.per_layer_model_projection.weight", rows, config.hidden_size)
        part = whole.part(layers.start * size, layers.stop * size)
        writer.linear("per_layer.projected", [part])
        norm = source.norm_tensor("model.per_layer_projection_norm", size).times(PER_LAYER_SHARE)
        writer.tensor("per_layer.norm.weight", norm)


def write_head(source: Checkpoint, writer: WeightWriter) -> None:
    """Appends the final norm and the output layer.

    Raises CheckpointError and ExportError as `write_layer` does.
    """
    writer.tensor("norm.weight", source.final_norm_tensor())
    writer.linear("output", [source.output_tensor()])


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
