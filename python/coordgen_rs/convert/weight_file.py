"""Weights in a file of a bundle: laid out one after the other, referred to by graphs of any width.

In: `Tensor`s of a checkpoint. Out: bytes appended to the file, piece by piece, and a `Weights` that
tells where they are.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, Literal, cast

import numpy as np
import onnx
from numpy.typing import NDArray

from coordgen_rs._core import weight_panels
from coordgen_rs.bundle.layers import OUTPUTS, PAGE, ExpertRegion, WeightType, expert_bytes
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.quantize import QUANTIZED_TYPES, quantize_rows
from coordgen_rs.convert.writer import HashedFile
from coordgen_rs.errors import CheckpointError

Bits = Literal[8, 4, "keep"] | None
"""How weights are written: rounded to so many bits in blocks, as the checkpoint holds them, or in
float32."""

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
    types: tuple[WeightType, ...]
    """Of each segment, as in `_core.weight_panels`."""
    sizes: tuple[int, ...]
    """Outputs of each."""


@dataclass
class Weights:
    """What stands in weight files, by the names that graphs know it by.

    Attributes:
        tensors: Norms, biases and the like.
        linears: Linear layers.
        experts: The experts of layers, by number: one after the other, each with its gate, up and
            down in panels, and whole pages.
        scalars: What all that a layer gives is multiplied by, by number, where it has such a thing.
        shifted: Names of kept weights of the checkpoint whose values are those nearest to the
            stored ones.
    """

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    linears: dict[str, StoredLinear] = field(default_factory=dict)
    experts: dict[int, ExpertRegion] = field(default_factory=dict)
    scalars: dict[int, float] = field(default_factory=dict)
    shifted: set[str] = field(default_factory=set)


@dataclass
class WeightWriter:
    """Appends weights to a file of a bundle.

    Attributes:
        name: What the file is called.
        file: The file.
        bits: How linear layers are written.
        weights: Gets where everything is.
        writer_of_experts: Gives what writes the experts of layers, when the first of them comes.
    """

    name: str
    file: HashedFile
    bits: Bits
    weights: Weights = field(default_factory=Weights)
    writer_of_experts: Callable[[], "WeightWriter"] | None = None

    def tensor(self, name: str, tensor: Tensor) -> None:
        """Appends a tensor as float32."""
        self._floats(name, tensor.pieces(), tensor.shape)

    def turned(self, name: str, tensor: Tensor) -> None:
        """Appends the columns of a small matrix as rows, in float32."""
        turned = np.ascontiguousarray(tensor.load().T)
        self._floats(name, [turned], turned.shape)

    def beside(self, name: str, *tensors: Tensor) -> None:
        """Appends small matrices of as many rows as one, each with the next at its right."""
        joined = np.concatenate([tensor.load() for tensor in tensors], 1)
        self._floats(name, [joined], joined.shape)

    def raw(self, tensor: onnx.TensorProto) -> StoredTensor:
        """Appends the raw bytes of an initializer of any type."""
        content = np.frombuffer(tensor.raw_data, np.uint8)
        return self._append([content], tuple(tensor.dims), tensor.data_type)

    def linear(
        self,
        name: str,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor] = (),
        *,
        is_rounded: bool = True,
    ) -> StoredLinear:
        """Appends the rows of `weights` one after the other as one layer, with their biases.

        Args:
            name: The layer's.
            weights: Matrices of as many columns.
            biases: None, or one for each of them.
            is_rounded: Whether it may have fewer bits than the checkpoint holds.

        Raises:
            CheckpointError: Weights cannot be read, or those to round are not finite or too large.
            OSError: The file cannot be written.
        """
        bits = self.bits if is_rounded or self.bits == "keep" else None
        if biases:
            floats = [bias.load() for bias in biases]
            self._floats(f"{name}.bias", floats, (sum(it.size for it in floats),))
        segments, types, sizes = [], [], []
        for weight_type, group in groupby(weights, lambda weight: written_type(weight, bits)):
            some = list(group)
            pieces = chain.from_iterable(_blocks(weight, bits) for weight in some)
            panels = (weight_panels(weight_type, rows) for rows in _by_panels(pieces))
            segments.append(self._append(panels, None, onnx.TensorProto.UINT8))
            types.append(weight_type)
            sizes.append(sum(weight.shape[0] for weight in some))
        self._note_shifted(weights)
        in_features = weights[0].shape[1]
        layer = StoredLinear(in_features, tuple(segments), tuple(types), tuple(sizes))
        self.weights.linears[name] = layer
        return layer

    def experts(self, number: int, parts: Sequence[Tensor], num: int) -> None:
        """Appends the experts of layer `number`, of each some rows of all parts, to their own file.

        Args:
            number: The layer's.
            parts: Gates, ups and downs, each of all experts, one below the other.
            num: Experts.

        Raises CheckpointError and OSError as `linear` does.
        """
        if self.writer_of_experts is not None:
            self.writer_of_experts().experts(number, parts, num)
            return
        types = [written_type(part, self.bits) for part in parts]
        panels = _expert_panels(parts, num, self.bits)
        place = self._append(panels, None, onnx.TensorProto.UINT8)
        self._note_shifted(parts)
        self.weights.experts[number] = ExpertRegion(
            number, place.file, place.offset, place.num_bytes, types
        )

    def _note_shifted(self, weights: Sequence[Tensor]) -> None:
        if self.bits == "keep":
            self.weights.shifted |= {weight.name for weight in weights if _is_shifted(weight)}

    def _floats(
        self, name: str, pieces: Iterable[NDArray[np.float32]], shape: tuple[int, ...]
    ) -> None:
        self.weights.tensors[name] = self._append(pieces, shape, onnx.TensorProto.FLOAT)

    def _append(
        self, pieces: Iterable[NDArray[Any]], shape: tuple[int, ...] | None, onnx_type: int
    ) -> StoredTensor:
        """Appends pieces one after the other; without a shape they are a vector of bytes."""
        self.file.align(_ALIGNMENT)
        offset = self.file.num_bytes
        for piece in pieces:
            self.file.write(np.ascontiguousarray(piece))
        num_bytes = self.file.num_bytes - offset
        return StoredTensor(self.name, offset, num_bytes, shape or (num_bytes,), onnx_type)


def written_type(weight: Tensor, bits: Bits) -> WeightType:
    """The type of a weight's panels, as in `_core.weight_panels`."""
    found: str = _FLOATS
    if bits == "keep" and weight.blocks is not None:
        found = weight.blocks.weight_type
    elif bits == "keep" and _is_shifted(weight):
        found = QUANTIZED_TYPES[_NEAR_BITS]
    elif bits in QUANTIZED_TYPES:
        found = QUANTIZED_TYPES[bits]
    return cast("WeightType", found)


def _is_shifted(weight: Tensor) -> bool:
    """Whether a weight's own type is one that products do not read."""
    return weight.blocks is None and weight.stored_type not in (None, _FLOATS)


def _blocks(weight: Tensor, bits: Bits) -> Iterable[NDArray[np.uint8]]:
    """The rows of a weight in its `written_type`, a piece at a time.

    Raises:
        CheckpointError: A value to round is NaN or infinite, or too large.
    """
    if bits == "keep" and weight.blocks is not None:
        for start, stop in weight.spans():
            yield weight.blocks.read_rows(start, stop)
    elif written_type(weight, bits) == _FLOATS:
        for piece in weight.pieces():
            floats = np.ascontiguousarray(piece, "<f4")
            yield floats.view(np.uint8).reshape(*piece.shape, floats.itemsize)
    else:
        for piece in weight.pieces():
            if not np.isfinite(piece).all():  # no step fits it
                raise CheckpointError(f"{weight.name} holds NaN or infinite values")
            yield quantize_rows(piece, 4 if bits == 4 else _NEAR_BITS, weight.name)


def _by_panels(pieces: Iterable[NDArray[np.uint8]]) -> Iterable[NDArray[np.uint8]]:
    """The same rows, in pieces of whole panels but for the last."""
    rest: NDArray[np.uint8] | None = None
    for piece in pieces:
        rows = piece if rest is None else np.concatenate([rest, piece])
        whole = len(rows) // OUTPUTS * OUTPUTS
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
