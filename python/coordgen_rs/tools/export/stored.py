"""Weights as they stand in a bundle: laid out in one file, referred to by graphs of every width.

In: a `Checkpoint`, or `Tensor`s of one. Out: bytes appended to a weight file, piece by piece, and
`Stored*` records that tell a graph where they are: of a linear layer, a decoder layer, the head.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from coordgen_rs.errors import CheckpointError
from coordgen_rs.tools.export.calibration.rounding import ColumnIntegers
from coordgen_rs.tools.export.checkpoints.checkpoint import Checkpoint
from coordgen_rs.tools.export.checkpoints.tensor import IntegerFormat, StoredIntegers, Tensor
from coordgen_rs.tools.export.cpu.quantize import (
    BLOCK_SIZE,
    QuantizedRows,
    common_format,
    pack_rows,
    quantize_rows,
)
from coordgen_rs.tools.export.cpu.w8a8 import joined_columns, quantize_columns
from coordgen_rs.tools.export.writer import HashedFile

Bits = Literal[8, 4, "w8a8", "keep"] | None
"""How a layer is written: integers of so many bits in blocks, 8 bits with a scale per output for
integer products, as the checkpoint holds it, or float32."""

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
    """A linear layer, `out_features` rows of `in_features`; several stacked ones count as one."""

    in_features: int
    out_features: int
    bits: int | None
    """None for float32, else 8 or 4."""
    weight: StoredTensor
    scales: StoredTensor | None
    zero_points: StoredTensor | None
    bias: StoredTensor | None
    block_size: int = BLOCK_SIZE
    """Values of a row that share a scale."""
    is_w8a8: bool = False
    """Whether it has the form of `cpu/w8a8.py`: int8, `(in, out)`, with a scale per output."""


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
            CheckpointError: Weights cannot be read, or those to round are NaN or infinite.
            OSError: The file cannot be written.
        """
        in_features = weights[0].shape[1]
        out_features = sum(weight.shape[0] for weight in weights)
        read = Tensor.pieces if bits in (None, "keep") else _finite_pieces
        rows = (piece for weight in weights for piece in read(weight))
        bias = self._vector([bias.load() for bias in biases]) if biases else None
        stored = [weight.integers for weight in weights if weight.integers is not None]
        if bits == "w8a8":
            if len(stored) == len(weights) and all(_is_by_row(it, in_features) for it in stored):
                held = [
                    it.read_rows(0, weight.shape[0])
                    for it, weight in zip(stored, weights, strict=True)
                ]
                return self._by_column(joined_columns(held), bias)
            return self._by_column(quantize_columns(rows, (out_features, in_features)), bias)
        if bits == "keep" and len(stored) == len(weights):
            wanted = common_format([integers.format for integers in stored])
            kept = _kept(weights, wanted)
            return self._integers(kept, (out_features, in_features), wanted, bias)
        if bits is None or bits == "keep":
            weight = self._append(rows, (out_features, in_features), onnx.TensorProto.FLOAT)
            return StoredLinear(in_features, out_features, None, weight, None, None, bias)
        quantized = (quantize_rows(piece, bits) for piece in rows)
        form = IntegerFormat(bits, BLOCK_SIZE, has_zero_points=bits == 4)
        return self._integers(quantized, (out_features, in_features), form, bias)

    def _integers(
        self,
        pieces: Iterable[QuantizedRows],
        shape: tuple[int, int],
        form: IntegerFormat,
        bias: StoredTensor | None,
    ) -> StoredLinear:
        """Appends a layer of `shape (out, in)` in integers."""
        out_features, in_features = shape
        blocks = math.ceil(in_features / form.block_size)
        stored_shape = (out_features, blocks, form.block_size * form.bits // 8)
        parts: list[QuantizedRows] = []
        weight = self._append(_values(pieces, parts), stored_shape, onnx.TensorProto.UINT8)
        scales = self._vector([part.scales for part in parts])
        zero_points = [part.zero_points for part in parts if part.zero_points is not None]
        zeros = self._vector(zero_points) if zero_points else None
        return StoredLinear(
            in_features, out_features, form.bits, weight, scales, zeros, bias, form.block_size
        )

    def _by_column(self, columns: ColumnIntegers, bias: StoredTensor | None) -> StoredLinear:
        """Appends a layer for integer products."""
        in_features, out_features = columns.values.shape
        weight = self._append([columns.values], columns.values.shape, onnx.TensorProto.INT8)
        scales = self._vector([columns.steps])
        return StoredLinear(in_features, out_features, 8, weight, scales, None, bias, is_w8a8=True)

    def _vector(self, parts: Sequence[NDArray[Any]]) -> StoredTensor:
        """Appends arrays one after the other as a vector of their type."""
        length = sum(part.size for part in parts)
        onnx_type = helper.np_dtype_to_tensor_dtype(parts[0].dtype)
        return self._append(parts, (length,), onnx_type)

    def _append(
        self, pieces: Iterable[NDArray[Any]], shape: tuple[int, ...], onnx_type: int
    ) -> StoredTensor:
        self._file.align(_ALIGNMENT)
        offset = self._file.num_bytes
        for piece in pieces:
            self._file.write(np.ascontiguousarray(piece))
        return StoredTensor(self._name, offset, self._file.num_bytes - offset, shape, onnx_type)


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


def _is_by_row(integers: StoredIntegers, in_features: int) -> bool:
    """Whether the weights have 8 bits, with one step for each row."""
    form = integers.format
    return (form.bits, form.block_size, form.has_zero_points) == (8, in_features, False)


def _finite_pieces(weight: Tensor) -> Iterable[NDArray[np.float32]]:
    """The rows as in `Tensor.pieces`, for rounding.

    Raises:
        CheckpointError: A value is NaN or infinite: no step fits it.
    """
    for piece in weight.pieces():
        if not np.isfinite(piece).all():
            raise CheckpointError(f"{weight.name} holds NaN or infinite values")
        yield piece


def _kept(weights: Sequence[Tensor], wanted: IntegerFormat) -> Iterable[QuantizedRows]:
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
