"""Weights as they stand in a bundle: laid out in one file, referred to by graphs of every width.

In: a `Checkpoint`, or `Tensor`s of one. Out: bytes appended to a weight file, piece by piece, and
`Stored*` records that tell a graph where they are: of a linear layer, a decoder layer, the head.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from coordgen_rs._core import weight_panels
from coordgen_rs.errors import CheckpointError
from coordgen_rs.tools.export.checkpoints.checkpoint import Checkpoint
from coordgen_rs.tools.export.checkpoints.tensor import IntegerFormat, Tensor
from coordgen_rs.tools.export.cpu.quantize import (
    QUANTIZED_TYPES,
    QuantizedRows,
    block_type,
    blocks_of,
    common_format,
    pack_rows,
    quantize_rows,
)
from coordgen_rs.tools.export.writer import HashedFile

Bits = Literal[8, 4, "keep"] | None
"""How a layer is written: integers of so many bits in blocks, as the checkpoint holds it, or
float32."""

PANEL_OUTPUTS = 16
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
class Floats:
    """Weights `(out, in)` in float32."""

    values: StoredTensor


@dataclass(frozen=True)
class Panels:
    """Weights in blocks, as the operator `Product` reads them."""

    segments: tuple[StoredTensor, ...]
    types: tuple[str, ...]
    """Of each segment, as in `_core.weight_panels`."""
    sizes: tuple[int, ...]
    """Outputs of each."""


@dataclass(frozen=True)
class Integers:
    """Weights of 8 bits in blocks, as MatMulNBits reads them."""

    values: StoredTensor
    scales: StoredTensor
    zero_points: StoredTensor | None
    block_size: int
    """Values of a row that share a scale."""


@dataclass(frozen=True)
class StoredLinear:
    """A linear layer, `out_features` rows of `in_features`; several stacked ones count as one."""

    in_features: int
    out_features: int
    weights: Floats | Panels | Integers
    bias: StoredTensor | None = None

    @property
    def files(self) -> set[str]:
        """Where the weights are."""
        held = self.weights
        parts = held.segments if isinstance(held, Panels) else (held.values,)
        return {part.file for part in parts}


@dataclass(frozen=True)
class StoredLayer:
    """One decoder layer."""

    attention_norm: StoredTensor
    qkv: StoredLinear
    attention_out: StoredLinear
    ffn_norm: StoredTensor
    gate_up: StoredLinear
    down: StoredLinear
    query_norm: StoredTensor | None = None
    key_norm: StoredTensor | None = None
    attention_out_norm: StoredTensor | None = None
    ffn_out_norm: StoredTensor | None = None

    @property
    def linears(self) -> tuple[StoredLinear, ...]:
        """Its linear layers."""
        return self.qkv, self.attention_out, self.gate_up, self.down


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
        in_features = weights[0].shape[1]
        out_features = sum(weight.shape[0] for weight in weights)
        bias = self._vector([bias.load() for bias in biases]) if biases else None
        stored = self._weights(weights, bits, (out_features, in_features))
        return StoredLinear(in_features, out_features, stored, bias)

    def _weights(
        self, weights: Sequence[Tensor], bits: Bits, shape: tuple[int, int]
    ) -> Floats | Panels | Integers:
        """Appends the rows of all weights, `shape (out, in)`."""
        stored = [weight.integers for weight in weights if weight.integers is not None]
        if bits == 4 or bits == 8:
            pieces = (
                quantize_rows(it, bits, weight.name)
                for weight in weights
                for it in _finite_pieces(weight)
            )
            return self._panels([(QUANTIZED_TYPES[bits], shape[0], pieces)])
        if bits == "keep" and all(map(kept_type, weights)):
            groups = [(str(kind), list(some)) for kind, some in groupby(weights, kept_type)]
            return self._panels(
                [
                    (kind, sum(it.shape[0] for it in some), chain.from_iterable(map(_kept, some)))
                    for kind, some in groups
                ]
            )
        if bits == "keep" and len(stored) == len(weights):
            self.shifted |= {it.name for it in weights if it.integers and not it.integers.is_exact}
            wanted = common_format([integers.format for integers in stored])
            return self._integers(_packed(weights, wanted), shape, wanted)
        floats = (piece for weight in weights for piece in weight.pieces())
        return Floats(self._append(floats, shape, onnx.TensorProto.FLOAT))

    def _panels(self, segments: Sequence[tuple[str, int, Iterable[NDArray[np.uint8]]]]) -> Panels:
        """Appends segments: the type, the number of outputs, and their blocks."""
        stored = []
        for weight_type, _, pieces in segments:
            panels = (weight_panels(weight_type, rows) for rows in _by_panels(pieces))
            stored.append(self._append(panels, None, onnx.TensorProto.UINT8))
        types, sizes, _ = zip(*segments, strict=True)
        return Panels(tuple(stored), types, sizes)

    def _integers(
        self, pieces: Iterable[QuantizedRows], shape: tuple[int, int], form: IntegerFormat
    ) -> Integers:
        """Appends a layer of `shape (out, in)` in integers."""
        blocks = math.ceil(shape[1] / form.block_size)
        parts: list[QuantizedRows] = []
        stored_shape = (shape[0], blocks, form.block_size)
        values = self._append(_values(pieces, parts), stored_shape, onnx.TensorProto.UINT8)
        scales = self._vector([part.scales for part in parts])
        zero_points = [part.zero_points for part in parts if part.zero_points is not None]
        zeros = self._vector(zero_points) if zero_points else None
        return Integers(values, scales, zeros, form.block_size)

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
    hidden, ffn = config.hidden_size, config.ffn_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    qkv_sizes = {"q_proj": query, "k_proj": key, "v_proj": key}
    gate_up_sizes = {"gate_proj": ffn, "up_proj": ffn}
    if config.is_fused:
        qkv_sizes, gate_up_sizes = {"qkv_proj": query + 2 * key}, {"gate_up_proj": 2 * ffn}

    def tensor(part: str, *shape: int) -> Tensor:
        return source.tensor(f"model.layers.{number}.{part}", *shape)

    qkv = [tensor(f"self_attn.{part}.weight", n, hidden) for part, n in qkv_sizes.items()]
    biases = [
        tensor(f"self_attn.{part}.bias", n) for part, n in qkv_sizes.items() if config.qkv_bias
    ]
    gate_up = [tensor(f"mlp.{part}.weight", n, hidden) for part, n in gate_up_sizes.items()]
    norms = config.norm_names(number)

    def norm(field: str) -> StoredTensor:
        size = config.head_dim if field in ("query_norm", "key_norm") else hidden
        return writer.tensor(source.norm_tensor(norms[field], size))

    return StoredLayer(
        attention_norm=norm("attention_norm"),
        qkv=writer.linear(qkv, bits, biases),
        attention_out=writer.linear([tensor("self_attn.o_proj.weight", hidden, query)], bits),
        ffn_norm=norm("ffn_norm"),
        gate_up=writer.linear(gate_up, bits),
        down=writer.linear([tensor("mlp.down_proj.weight", hidden, ffn)], bits),
        **{field: norm(field) for field in norms if field not in ("attention_norm", "ffn_norm")},
    )


def write_head(
    source: Checkpoint, writer: WeightWriter, bits: Bits, shared: StoredLinear | None
) -> StoredHead:
    """Appends the final norm and the output layer, unless that is `shared` with the embedding.

    Raises CheckpointError and ExportError as `write_layer` does.
    """
    norm = writer.tensor(source.final_norm_tensor(shared is not None))
    if shared is not None:
        return StoredHead(norm, shared)
    return StoredHead(norm, writer.linear([source.output_tensor()], bits))


def kept_type(weight: Tensor) -> str | None:
    """The type in which products read a weight exactly as it is stored; None if in none."""
    if weight.blocks is not None:
        return weight.blocks.weight_type
    return None if weight.integers is None else block_type(weight.integers.format)


def _kept(weight: Tensor) -> Iterable[NDArray[np.uint8]]:
    """The rows of a weight that has a `kept_type`."""
    for start, stop in weight.spans():
        if weight.blocks is not None:
            yield weight.blocks.read_rows(start, stop)
        elif weight.integers is not None:
            rows = weight.integers.read_rows(start, stop)
            yield blocks_of(rows, weight.integers.format.bits, weight.name)


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


def _packed(weights: Sequence[Tensor], wanted: IntegerFormat) -> Iterable[QuantizedRows]:
    """All rows of `weights`, which are stored as integers, in one format."""
    for weight in weights:
        if weight.integers is not None:
            for start, stop in weight.spans():
                rows = weight.integers.read_rows(start, stop)
                yield pack_rows(rows, weight.integers.format, wanted)


def _values(
    pieces: Iterable[QuantizedRows], parts: list[QuantizedRows]
) -> Iterable[NDArray[np.uint8]]:
    """The quantised values of each piece; scales and zero points are kept in `parts`."""
    for part in pieces:
        yield part.values
        parts.append(replace(part, values=part.values[:0]))
