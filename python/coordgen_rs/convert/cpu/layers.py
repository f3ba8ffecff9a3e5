"""The layers of a model as they stand in a bundle for CPU.

In: a `Checkpoint`. Out: its tensors appended to weight files, under the names by which the graphs
of `graph.py` know them: those of layer 3 begin with `layer_3.`.
"""

from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.families.model_config import (
    BESIDE_GATE,
    CHOICE_BIAS,
    ROUTER,
    Experts,
    linear_layers,
)
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
