"""The layers of a model as they stand in a bundle.

In: a `Checkpoint`. Out: its tensors appended to weight files, and `Stored*` records that tell a
graph where they are: of a decoder layer, the head.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.families.config.experts import (
    BESIDE_GATE,
    CHOICE_BIAS,
    ROUTER,
    Experts,
)
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.families.config.recurrent import Recurrent
from coordgen_rs.convert.weight_file import (
    Bits,
    StoredExperts,
    StoredLinear,
    StoredTensor,
    WeightWriter,
)

WriteExperts = Callable[[Sequence[Tensor], int], StoredExperts]
"""Appends the experts of a layer, given as `WeightWriter.experts` is."""
PER_LAYER_SHARE = 2**-0.5
"""What both parts of a layer's embedding are multiplied by, that of the table and the other."""


@dataclass(frozen=True)
class StoredMixer:
    """What a recurrent layer has between its projections."""

    convolution: StoredTensor
    """`(taps, channels)`."""
    vectors: Mapping[str, StoredTensor]
    """By the operator's input."""


@dataclass(frozen=True)
class StoredMixture:
    """A mixture of experts; what the family does not have is None."""

    experts: StoredExperts
    router: StoredLinear
    choice_bias: StoredTensor | None = None
    up_bias: StoredTensor | None = None
    down_bias: StoredTensor | None = None
    beside_gate: StoredLinear | None = None
    """The gate of the feed-forward beside them."""


@dataclass(frozen=True)
class StoredPerLayer:
    """What a layer does with its part of an embedded token."""

    gate: StoredLinear
    """From the stream to as many numbers as it has."""
    projection: StoredLinear
    """Back to the stream."""
    norm: StoredTensor
    """Behind it."""


@dataclass(frozen=True)
class StoredPerLayerInputs:
    """What embeddings of layers get from the embedded token itself, for consecutive layers."""

    projection: StoredLinear
    """To the numbers of each layer, one after the other."""
    norm: StoredTensor
    """Of those of a layer."""


@dataclass(frozen=True)
class StoredLayer:
    """One decoder layer; norms that the family does not have are None."""

    mixer_in: StoredLinear
    """To queries, keys and values, one after the other, and then gates where attention has them; or
    to what a recurrent layer reads."""
    mixer_out: StoredLinear
    """What attention gives, or a recurrent layer, back to the stream."""
    gate_up: StoredLinear | None = None
    """The dense feed-forward, or that beside experts; None where there are experts alone."""
    down: StoredLinear | None = None
    mixture: StoredMixture | None = None
    attention_norm: StoredTensor | None = None
    ffn_norm: StoredTensor | None = None
    sinks: StoredTensor | None = None
    """`(num_heads,)`: a score of each head that no value stands behind."""
    query_norm: StoredTensor | None = None
    key_norm: StoredTensor | None = None
    attention_out_norm: StoredTensor | None = None
    ffn_out_norm: StoredTensor | None = None
    recurrent: StoredMixer | None = None
    """None for attention."""
    per_layer: StoredPerLayer | None = None
    """None where layers have no embeddings."""
    scalar: float = 1.0
    """What all that the layer gives is multiplied by."""


@dataclass(frozen=True)
class StoredHead:
    """Final norm and output layer."""

    norm: StoredTensor
    output: StoredLinear


def write_layer(
    source: Checkpoint,
    writer: WeightWriter,
    number: int,
    bits: Bits,
    write_experts: WriteExperts,
) -> StoredLayer:
    """Appends layer `number`; where it has experts, `write_experts` appends these elsewhere.

    Raises CheckpointError for a tensor that is missing, misshaped or damaged, and ExportError if
    the disk is full.
    """
    config = source.config
    hidden, ffn = config.hidden_size, config.dense_size(number)
    gate_up_sizes = {"gate_up_proj": 2 * ffn} if config.is_fused else _gate_up_sizes(ffn)

    def tensor(part: str, *shape: int) -> Tensor:
        return source.tensor(f"model.layers.{number}.{part}", *shape)

    def stored_mixer() -> tuple[StoredLinear, StoredLinear, StoredMixer | None]:
        if config.recurrent is None or number not in config.recurrent_layers:
            return *_write_attention(config, number, writer, tensor, bits), None
        return _write_recurrent(config.recurrent, hidden, writer, tensor, bits)

    def dense() -> tuple[StoredLinear | None, StoredLinear | None]:
        if not ffn:
            return None, None
        gate_up = [tensor(f"mlp.{part}.weight", n, hidden) for part, n in gate_up_sizes.items()]
        down = tensor("mlp.down_proj.weight", hidden, ffn)
        return writer.linear(gate_up, bits), writer.linear([down], bits)

    def mixture() -> StoredMixture | None:
        if config.experts is None or not config.has_experts(number):
            return None
        return _write_mixture(config.experts, hidden, writer, write_experts, tensor, bits)

    norms = config.norm_names(number)

    def norm(field: str) -> StoredTensor | None:
        name = norms.pop(field, None)
        if name is None:
            return None
        return writer.tensor(source.norm_tensor(name, config.norm_size(field, number)))

    attention_norm = norm("attention_norm")
    mixer_in, mixer_out, recurrent = stored_mixer()
    sinks = None
    if config.has_sinks and number not in config.recurrent_layers:
        sinks = writer.tensor(tensor("self_attn.sinks", config.num_heads))
    ffn_norm = norm("ffn_norm")
    gate_up, down = dense()
    return StoredLayer(
        attention_norm=attention_norm,
        mixer_in=mixer_in,
        mixer_out=mixer_out,
        recurrent=recurrent,
        sinks=sinks,
        ffn_norm=ffn_norm,
        gate_up=gate_up,
        down=down,
        mixture=mixture(),
        **{field: norm(field) for field in list(norms)},
        per_layer=_write_per_layer(source, writer, number, bits),
        scalar=float(tensor("layer_scalar", 1).load()[0]) if config.layer_scalars else 1.0,
    )


_OfLayer = Callable[..., Tensor]
"""The tensor of a layer by its name in it and its shape."""


def _write_per_layer(
    source: Checkpoint, writer: WeightWriter, number: int, bits: Bits
) -> StoredPerLayer | None:
    """Appends what layer `number` does with its embedding, if there are such."""
    hidden, size = source.config.hidden_size, source.config.per_layer_size
    if not size:
        return None
    prefix = f"model.layers.{number}"
    gate = source.tensor(f"{prefix}.per_layer_input_gate.weight", size, hidden)
    projection = source.tensor(f"{prefix}.per_layer_projection.weight", hidden, size)
    norm = source.norm_tensor(f"{prefix}.post_per_layer_input_norm", hidden)
    return StoredPerLayer(
        writer.linear([gate], bits), writer.linear([projection], bits), writer.tensor(norm)
    )


def write_per_layer_inputs(
    source: Checkpoint, writer: WeightWriter, layers: range, bits: Bits
) -> StoredPerLayerInputs | None:
    """Appends what embeddings of some layers get from the embedded token, if there are such.

    Raises CheckpointError and ExportError as `write_layer` does.
    """
    config, size = source.config, source.config.per_layer_size
    if not size:
        return None
    rows = config.num_layers * size
    whole = source.tensor("model.per_layer_model_projection.weight", rows, config.hidden_size)
    part = whole.part(layers.start * size, layers.stop * size)
    norm = source.norm_tensor("model.per_layer_projection_norm", size).times(PER_LAYER_SHARE)
    return StoredPerLayerInputs(writer.linear([part], bits), writer.tensor(norm))


def _gate_up_sizes(ffn: int) -> dict[str, int]:
    return {"gate_proj": ffn, "up_proj": ffn}


def _write_attention(
    config: ModelConfig, number: int, writer: WeightWriter, tensor: _OfLayer, bits: Bits
) -> tuple[StoredLinear, StoredLinear]:
    """Appends the projections of attention: queries, keys and values, perhaps gates; and back."""
    hidden, cache = config.hidden_size, config.cache_of(number)
    size = cache.head_dim
    query, key = config.num_heads * size, cache.num_kv_heads * size
    sizes = {"q_proj": query}
    if not config.shares_keys(number):
        sizes["k_proj"] = key
        if number not in config.keys_are_values:
            sizes["v_proj"] = key
    if config.is_fused:
        sizes = {"qkv_proj": query + 2 * key}
    if config.gated_attention:
        sizes["q_proj"] = 2 * query
    into = {part: tensor(f"self_attn.{part}.weight", n, hidden) for part, n in sizes.items()}
    biases = [tensor(f"self_attn.{part}.bias", n) for part, n in sizes.items() if config.qkv_bias]
    weights = list(into.values())
    if config.gated_attention:
        of_heads = into.pop("q_proj")
        firsts = range(0, 2 * query, 2 * size)
        queries = [of_heads.part(first, first + size) for first in firsts]
        gates = [of_heads.part(first + size, first + 2 * size) for first in firsts]
        weights = [*queries, *into.values(), *gates]
    back = tensor("self_attn.o_proj.weight", hidden, query)
    back_biases = [tensor("self_attn.o_proj.bias", hidden)] if config.out_bias else []
    return writer.linear(weights, bits, biases), writer.linear([back], bits, back_biases)


def _write_recurrent(
    kind: Recurrent, hidden: int, writer: WeightWriter, tensor: _OfLayer, bits: Bits
) -> tuple[StoredLinear, StoredLinear, StoredMixer]:
    """Appends what a recurrent layer has in place of attention."""
    tensors = kind.tensors
    into = [tensor(name, size, hidden) for name, size in tensors.into.items()]
    convolution = tensor(f"{tensors.convolution}.weight", kind.channels, kind.taps)
    vectors = dict(tensors.vectors)
    if tensors.has_bias:
        vectors["bias"] = f"{tensors.convolution}.bias", kind.channels
    return (
        writer.linear(into, bits),
        writer.linear([tensor(tensors.out, hidden, kind.width)], bits),
        StoredMixer(
            writer.turned(convolution),
            {part: writer.tensor(tensor(name, size)) for part, (name, size) in vectors.items()},
        ),
    )


def _write_mixture(
    sizes: Experts,
    hidden: int,
    writer: WeightWriter,
    write_experts: WriteExperts,
    tensor: _OfLayer,
    bits: Bits,
) -> StoredMixture:
    """Appends the experts of a layer, and to `writer` what chooses them."""
    # What decides is not rounded: an expert more or less changes more than all of its weights do.
    kept: Bits = "keep" if bits == "keep" else None

    def linear(name: str, rows: int, *, has_bias: bool = False) -> StoredLinear:
        biases = [tensor(f"{name}.bias", rows)] if has_bias else []
        return writer.linear([tensor(f"{name}.weight", rows, hidden)], kept, biases)

    parts = sizes.shapes(hidden)
    matrices = [tensor(f"mlp.experts.{part}.weight", *shape) for part, shape in parts.items()]
    up_bias = down_bias = None
    if sizes.has_biases:
        gate, up, down = (
            tensor(f"mlp.experts.{part}.bias", sizes.num, rows // sizes.num)
            for part, (rows, _) in parts.items()
        )
        up_bias, down_bias = writer.beside(gate, up), writer.tensor(down)
    return StoredMixture(
        write_experts(matrices, sizes.num),
        linear(ROUTER, sizes.num, has_bias=sizes.has_biases),
        writer.tensor(tensor(CHOICE_BIAS, sizes.num)) if sizes.has_choice_bias else None,
        up_bias,
        down_bias,
        beside_gate=linear(BESIDE_GATE, 1) if sizes.gates_shared else None,
    )


def write_head(source: Checkpoint, writer: WeightWriter, bits: Bits) -> StoredHead:
    """Appends the final norm and the output layer.

    Raises CheckpointError and ExportError as `write_layer` does.
    """
    norm = writer.tensor(source.final_norm_tensor())
    return StoredHead(norm, writer.linear([source.output_tensor()], bits))
