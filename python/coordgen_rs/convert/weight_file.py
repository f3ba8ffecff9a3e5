"""Weights in a file of a bundle: laid out one after the other, referred to by graphs of any width.

In: `Tensor`s of a checkpoint. Out: bytes appended to the file, piece by piece, and where they are:
of a tensor, of a linear layer, of a layer's experts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from coordgen_rs._core import weight_panels
from coordgen_rs.bundle.experts import PAGE, expert_bytes
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.cpu.quantize import QUANTIZED_TYPES, quantize_rows
from coordgen_rs.convert.writer import HashedFile
from coordgen_rs.errors import CheckpointError

Bits = Literal[8, 4, "keep"] | None
"""How weights are written: rounded to so many bits in blocks, as the checkpoint holds them, or in
float32."""

PANEL_OUTPUTS = 16
_FLOATS = "F32"
_NEAR_BITS = 8
"""Of kept weights whose own type products do not read: they become the nearest integers."""
_ALIGNMENT = PAGE
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
class StoredExperts:
    """The experts of a layer one after the other, each with its gate, up and down in panels.

    Every expert takes the same number of bytes, whole pages.
    """

    place: StoredTensor
    types: tuple[str, str, str]
    """Of gates, ups and downs, as in `_core.weight_panels`."""


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

    def beside(self, *tensors: Tensor) -> StoredTensor:
        """Appends small matrices of as many rows as one, each with the next at its right."""
        joined = np.concatenate([tensor.load() for tensor in tensors], 1)
        return self._append([joined], joined.shape, onnx.TensorProto.FLOAT)

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

    def experts(self, parts: Sequence[Tensor], num: int, *, bits: Bits) -> StoredExperts:
        """Appends the experts of a layer, of each of `num` some rows of all parts.

        Args:
            parts: Gates, ups and downs, each of all experts, one below the other.
            num: Experts.
            bits: How they are written.

        Raises CheckpointError and OSError as `linear` does.
        """
        gate, up, down = (written_type(part, bits) for part in parts)
        place = self._append(_expert_panels(parts, num, bits), None, onnx.TensorProto.UINT8)
        if bits == "keep":
            self.shifted |= {part.name for part in parts if _is_shifted(part)}
        return StoredExperts(place, (gate, up, down))

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


def _expert_panels(parts: Sequence[Tensor], num: int, bits: Bits) -> Iterator[NDArray[np.uint8]]:
    """What `WeightWriter.experts` appends, a piece at a time."""
    types = [written_type(part, bits) for part in parts]
    shapes = [(part.shape[0] // num, part.shape[1]) for part in parts]
    stride = expert_bytes(types, shapes)
    for number in range(num):
        written = 0
        for part, weight_type, (rows, _) in zip(parts, types, shapes, strict=True):
            own = part.part(number * rows, (number + 1) * rows)
            for some in _by_panels(_blocks(own, bits)):
                panels = weight_panels(weight_type, some)
                written += panels.nbytes
                yield panels
        yield np.zeros(stride - written, np.uint8)


def _finite_pieces(weight: Tensor) -> Iterable[NDArray[np.float32]]:
    """The rows as in `Tensor.pieces`, for rounding.

    Raises:
        CheckpointError: A value is NaN or infinite: no step fits it.
    """
    for piece in weight.pieces():
        if not np.isfinite(piece).all():
            raise CheckpointError(f"{weight.name} holds NaN or infinite values")
        yield piece
