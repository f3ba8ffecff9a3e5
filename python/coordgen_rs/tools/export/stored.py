"""Weights as they stand in a bundle: laid out in one file, referred to by graphs of every width.

In: a `Checkpoint`, or `Tensor`s of one. Out: bytes appended to a weight file, piece by piece, and
`Stored*` records that tell a graph where they are: of a linear layer, a decoder layer, the head.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from coordgen_rs._core import weight_panels
from coordgen_rs.errors import CheckpointError
from coordgen_rs.tools.export.checkpoints.checkpoint import Checkpoint
from coordgen_rs.tools.export.checkpoints.config import ModelConfig
from coordgen_rs.tools.export.checkpoints.recurrent import Recurrent
from coordgen_rs.tools.export.checkpoints.tensor import Tensor
from coordgen_rs.tools.export.cpu.quantize import QUANTIZED_TYPES, quantize_rows
from coordgen_rs.tools.export.writer import HashedFile

Bits = Literal[8, 4, "keep"] | None
"""How weights are written: rounded to so many bits in blocks, as the checkpoint holds them, or in
float32."""

PANEL_OUTPUTS = 16
_FLOATS = "F32"
_NEAR_BITS = 8
"""Of kept weights whose own type products do not read: they become the nearest integers."""
PER_LAYER_SHARE = 2**-0.5
"""What both parts of a layer's embedding are multiplied by, that of the table and the other."""
_ALIGNMENT = 4096
"""Each tensor starts at a page, so that ONNX Runtime can map it."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a weight file."""

    file: str
    offset: int
    num_bytes: int
    shape: tuple[int, ...]
    onnx_type: int

    def refer(self, tensor: onnx.TensorProto) -> None:
        """Makes `tensor` read its content from the weight file."""
        tensor.data_location = onnx.TensorProto.EXTERNAL
        fields = {"location": self.file, "offset": self.offset, "length": self.num_bytes}
        for key, value in fields.items():
            tensor.external_data.add(key=key, value=str(value))


@dataclass(frozen=True)
class StoredLinear:
    """A linear layer, `(out, in)` of which some rows after others make segments of one type.

    They are in panels, as the operator `Product` reads them.
    """

    in_features: int
    segments: tuple[StoredTensor, ...]
    types: tuple[str, ...]
    """Of each segment, as in `_core.weight_panels`."""
    sizes: tuple[int, ...]
    """Outputs of each."""
    bias: StoredTensor | None = None


@dataclass(frozen=True)
class StoredMixer:
    """What a recurrent layer has between its projections."""

    convolution: StoredTensor
    """`(taps, channels)`."""
    vectors: Mapping[str, StoredTensor]
    """By the operator's input."""


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
    gate_up: StoredLinear
    down: StoredLinear
    attention_norm: StoredTensor | None = None
    ffn_norm: StoredTensor | None = None
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


class WeightWriter:
    """Appends weights to a file of a bundle."""

    def __init__(self, name: str, file: HashedFile) -> None:
        self._name = name
        self._file = file
        self.shifted: set[str] = set()
        """Names of kept weights whose values are those nearest to the stored ones."""

    def tensor(self, tensor: Tensor) -> StoredTensor:
        """Appends a tensor as float32."""
        return self._append(tensor.pieces(), tensor.shape, onnx.TensorProto.FLOAT)

    def turned(self, tensor: Tensor) -> StoredTensor:
        """Appends the columns of a small matrix as rows, in float32."""
        turned = np.ascontiguousarray(tensor.load().T)
        return self._append([turned], turned.shape, onnx.TensorProto.FLOAT)

    def raw(self, tensor: onnx.TensorProto) -> StoredTensor:
        """Appends the raw bytes of an initializer of any type."""
        content = np.frombuffer(tensor.raw_data, np.uint8)
        return self._append([content], tuple(tensor.dims), tensor.data_type)

    def linear(
        self, weights: Sequence[Tensor], bits: Bits, biases: Sequence[Tensor] = ()
    ) -> StoredLinear:
        """Appends the rows of `weights` one after the other as one layer, with their biases.

        Raises:
            CheckpointError: Weights cannot be read, or those to round are not finite or too large.
            OSError: The file cannot be written.
        """
        bias = self._vector([bias.load() for bias in biases]) if biases else None
        groups = groupby(weights, lambda weight: written_type(weight, bits))
        segments, types, sizes = [], [], []
        for weight_type, group in groups:
            some = list(group)
            pieces = chain.from_iterable(_blocks(weight, bits) for weight in some)
            panels = (weight_panels(weight_type, rows) for rows in _by_panels(pieces))
            segments.append(self._append(panels, None, onnx.TensorProto.UINT8))
            types.append(weight_type)
            sizes.append(sum(weight.shape[0] for weight in some))
        if bits == "keep":
            self.shifted |= {weight.name for weight in weights if _is_shifted(weight)}
        in_features = weights[0].shape[1]
        return StoredLinear(in_features, tuple(segments), tuple(types), tuple(sizes), bias)

    def _vector(self, parts: Sequence[NDArray[Any]]) -> StoredTensor:
        """Appends arrays one after the other as a vector of their type."""
        length = sum(part.size for part in parts)
        onnx_type = helper.np_dtype_to_tensor_dtype(parts[0].dtype)
        return self._append(parts, (length,), onnx_type)

    def _append(
        self, pieces: Iterable[NDArray[Any]], shape: tuple[int, ...] | None, onnx_type: int
    ) -> StoredTensor:
        """Appends pieces one after the other; without a shape they are a vector of bytes."""
        self._file.align(_ALIGNMENT)
        offset = self._file.num_bytes
        for piece in pieces:
            self._file.write(np.ascontiguousarray(piece))
        num_bytes = self._file.num_bytes - offset
        return StoredTensor(self._name, offset, num_bytes, shape or (num_bytes,), onnx_type)


def write_layer(source: Checkpoint, writer: WeightWriter, number: int, bits: Bits) -> StoredLayer:
    """Appends layer `number`.

    Raises CheckpointError for a tensor that is missing, misshaped or damaged, and ExportError if
    the disk is full.
    """
    config = source.config
    hidden, ffn = config.hidden_size, config.ffn_size_of(number)
    gate_up_sizes = {"gate_up_proj": 2 * ffn} if config.is_fused else _gate_up_sizes(ffn)

    def tensor(part: str, *shape: int) -> Tensor:
        return source.tensor(f"model.layers.{number}.{part}", *shape)

    def stored_mixer() -> tuple[StoredLinear, StoredLinear, StoredMixer | None]:
        if config.recurrent is None or number not in config.recurrent_layers:
            return *_write_attention(config, number, writer, tensor, bits), None
        return _write_recurrent(config.recurrent, hidden, writer, tensor, bits)

    gate_up = [tensor(f"mlp.{part}.weight", n, hidden) for part, n in gate_up_sizes.items()]
    norms = config.norm_names(number)

    def norm(field: str) -> StoredTensor | None:
        name = norms.pop(field, None)
        if name is None:
            return None
        return writer.tensor(source.norm_tensor(name, config.norm_size(field, number)))

    attention_norm = norm("attention_norm")
    mixer_in, mixer_out, recurrent = stored_mixer()
    return StoredLayer(
        attention_norm=attention_norm,
        mixer_in=mixer_in,
        mixer_out=mixer_out,
        recurrent=recurrent,
        ffn_norm=norm("ffn_norm"),
        gate_up=writer.linear(gate_up, bits),
        down=writer.linear([tensor("mlp.down_proj.weight", hidden, ffn)], bits),
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
    return writer.linear(weights, bits, biases), writer.linear([back], bits)


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


def write_head(source: Checkpoint, writer: WeightWriter, bits: Bits) -> StoredHead:
    """Appends the final norm and the output layer.

    Raises CheckpointError and ExportError as `write_layer` does.
    """
    norm = writer.tensor(source.final_norm_tensor())
    return StoredHead(norm, writer.linear([source.output_tensor()], bits))


def written_type(weight: Tensor, bits: Bits) -> str:
    """The type of a weight's panels, as in `_core.weight_panels`."""
    if bits is None:
        return _FLOATS
    if bits != "keep":
        return QUANTIZED_TYPES[bits]
    if weight.blocks is not None:
        return weight.blocks.weight_type
    return QUANTIZED_TYPES[_NEAR_BITS] if _is_shifted(weight) else _FLOATS


def _is_shifted(weight: Tensor) -> bool:
    """Whether a weight's own type is one that products do not read."""
    return weight.blocks is None and weight.stored_type not in (None, _FLOATS)


def _blocks(weight: Tensor, bits: Bits) -> Iterable[NDArray[np.uint8]]:
    """The rows of a weight in its `written_type`, a piece at a time."""
    if bits == "keep" and weight.blocks is not None:
        for start, stop in weight.spans():
            yield weight.blocks.read_rows(start, stop)
    elif written_type(weight, bits) == _FLOATS:
        for piece in weight.pieces():
            floats = np.ascontiguousarray(piece, "<f4")
            yield floats.view(np.uint8).reshape(*piece.shape, floats.itemsize)
    else:
        for piece in _finite_pieces(weight):
            yield quantize_rows(piece, 4 if bits == 4 else _NEAR_BITS, weight.name)


def _by_panels(pieces: Iterable[NDArray[np.uint8]]) -> Iterable[NDArray[np.uint8]]:
    """The same rows, in pieces of whole panels but for the last."""
    rest: NDArray[np.uint8] | None = None
    for piece in pieces:
        rows = piece if rest is None else np.concatenate([rest, piece])
        whole = len(rows) // PANEL_OUTPUTS * PANEL_OUTPUTS
        if whole:
            yield np.ascontiguousarray(rows[:whole])
        rest = rows[whole:]
    if rest is not None and len(rest):
        yield np.ascontiguousarray(rest)


def _finite_pieces(weight: Tensor) -> Iterable[NDArray[np.float32]]:
    """The rows as in `Tensor.pieces`, for rounding.

    Raises:
        CheckpointError: A value is NaN or infinite: no step fits it.
    """
    for piece in weight.pieces():
        if not np.isfinite(piece).all():
            raise CheckpointError(f"{weight.name} holds NaN or infinite values")
        yield piece
