"""A GGUF file: its metadata, where each tensor stands, and their rows; of one in parts, of all.

In: a path, perhaps that of the first part, as llama.cpp's gguf-split and converter write them: it
holds all metadata, the others which part they are. Out: a `GgufHeader`, everything in it checked
against the length of the file before memory is taken for it. The reader of the gguf package is not
used: it trusts every count and length, maps the file, which counts the whole of it as this
process's memory, and takes seconds for a vocabulary. Format: https://github.com/ggml-
org/ggml/blob/master/docs/gguf.md, versions 2 and 3.

Then, of a tensor there, a `Tensor` that reads from the file: float32, which the gguf package makes
of any type, and the stored blocks where products read these; Q4_0 for the ternary types, whose
weights it holds exactly. Of tensors with more dimensions than two, all but the last are rows.
"""

import math
import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from coordgen_rs._core import weight_types
from coordgen_rs.convert.containers.tensor import StoredBlocks, Tensor, read_numbers
from coordgen_rs.errors import CheckpointError, UnsupportedModelError
from coordgen_rs.errors.file_names import PartName
from coordgen_rs.errors.json_text import file_errors_as, open_regular

MAGIC = b"GGUF"
_VERSIONS = (2, 3)

_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_NUMBERS |= {12: "d"}
"""Codes of the struct module by type of a metadata value."""

_MOST_KEYS, _MOST_TENSORS, _MOST_ELEMENTS = 1 << 16, 1 << 20, 1 << 24
_MOST_NAME_BYTES, _MOST_STRING_BYTES = 1 << 16, 1 << 26
_MOST_DIMENSIONS = 4
_MOST_ALIGNMENT = 1 << 20


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor stands, and what it is stored as."""

    name: str
    shape: tuple[int, ...]
    """Slowest dimension first, as numpy has it."""
    type: GGMLQuantizationType
    path: Path
    """The file that holds its data."""
    offset: int
    """Byte at which its data begins, from the start of the file."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        block, block_bytes = GGML_QUANT_SIZES[self.type]
        return self.shape[-1] // block * int(block_bytes)

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return math.prod(self.shape[:-1]) * self.row_bytes


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says before its tensors; of one in parts, what all of them say.

    Attributes:
        path: The file, or the first of its parts.
        metadata: Numbers, booleans, texts, and lists of one of them.
        tensors: Where each tensor stands, by its name.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_header(path: Path) -> GgufHeader:
    """Reads and checks the header of a GGUF file.

    Raises:
        CheckpointError: It cannot be read, is no GGUF of a known version, or is damaged.
    """
    with file_errors_as(CheckpointError, path), open_regular(path) as stream:
        return _Reader(path, stream).header()


class _Reader:
    """Reads a header from front to back."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self._path, self._stream = path, stream
        self._left = self._num_bytes = os.fstat(stream.fileno()).st_size

    def header(self) -> GgufHeader:
        """The whole header.

        Raises:
            CheckpointError: It is damaged.
        """
        self._check_version()
        num_tensors = self._count("tensors", _MOST_TENSORS, least_bytes=24)
        num_keys = self._count("metadata keys", _MOST_KEYS, least_bytes=13)
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._text("a metadata key", _MOST_NAME_BYTES)
            if key in metadata:
                raise self._damaged(f"the key {key!r:.80} occurs twice")
            metadata[key] = self._value(key, self._number("I"))
        infos = [self._tensor_info() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= _MOST_ALIGNMENT:
            raise self._damaged(f"general.alignment is {alignment!r:.80}")
        return GgufHeader(self._path, metadata, self._placed(infos, alignment))

    def _check_version(self) -> None:
        magic = self._bytes(4, "its first four bytes")
        if magic != MAGIC:
            raise CheckpointError(f"{self._path} is not a GGUF file: it begins with {magic!r}")
        version = int(self._number("I"))
        if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
            raise CheckpointError(
                f"{self._path} is a big-endian GGUF, which is not supported: "
                "convert it with gguf-convert-endian"
            )
        if version not in _VERSIONS:
            raise CheckpointError(f"{self._path} has GGUF version {version}, expected 2 or 3")

    def _value(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            return self._text(key, _MOST_STRING_BYTES)
        if kind != _ARRAY:
            return self._number(self._code(key, kind))
        item = int(self._number("I"))
        if item == _STRING:
            count = self._count(f"texts of {key}", _MOST_ELEMENTS, least_bytes=8)
            return [self._text(key, _MOST_STRING_BYTES) for _ in range(count)]
        code = self._code(key, item)
        size = struct.calcsize(f"<{code}")
        count = self._count(f"numbers of {key}", _MOST_ELEMENTS, least_bytes=size)
        return list(struct.unpack(f"<{count}{code}", self._bytes(count * size, key)))

    def _code(self, key: str, kind: int) -> str:
        code = _NUMBERS.get(kind)
        if code is None:
            raise self._damaged(f"{key!r:.80} has the unknown type {kind}")
        return code

    def _tensor_info(self) -> GgufTensor:
        name = self._text("a tensor's name", _MOST_NAME_BYTES)
        num_dimensions = int(self._number("I"))
        if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
            raise self._damaged(f"{name!r:.80} has {num_dimensions} dimensions")
        shape = tuple(int(self._number("Q")) for _ in range(num_dimensions))[::-1]
        number = int(self._number("I"))
        try:
            kind = GGMLQuantizationType(number)
        except ValueError as error:
            raise CheckpointError(
                f"{self._path}: {name} has the type {number}, which is not known"
            ) from error
        block, _ = GGML_QUANT_SIZES[kind]
        if min(shape) < 1 or math.prod(shape) > 8 * self._num_bytes or shape[-1] % block:
            raise self._damaged(f"{name!r:.80} has the shape {shape} of {kind.name}")
        return GgufTensor(name, shape, kind, self._path, int(self._number("Q")))

    def _placed(self, infos: list[GgufTensor], alignment: int) -> dict[str, GgufTensor]:
        """The tensors by name, at their offsets in the file.

        Raises:
            CheckpointError: Two have one name or overlap, or one ends behind the file.
        """
        start = self._num_bytes - self._left
        start += -start % alignment
        end, tensors = 0, {}
        for info in sorted(infos, key=lambda info: info.offset):
            if info.offset < end or info.offset % alignment or info.name in tensors:
                raise self._damaged(f"{info.name!r:.80} overlaps another tensor, or is out of line")
            end = info.offset + info.num_bytes
            if start + end > self._num_bytes:
                raise CheckpointError(f"{self._path} is truncated: it ends before {info.name} does")
            tensors[info.name] = replace(info, offset=start + info.offset)
        return tensors

    def _count(self, what: str, most: int, *, least_bytes: int) -> int:
        """A number of things that take so many bytes each; more than the file holds is refused."""
        count = int(self._number("Q"))
        if count > most or count * least_bytes > self._left:
            why = "" if count > most else ", or the file is truncated"
            raise self._damaged(f"it holds {count} {what:.80}{why}")
        return count

    def _text(self, what: str, most_bytes: int) -> str:
        length = int.from_bytes(self._bytes(8, what), "little")
        if length > most_bytes:
            raise self._damaged(f"{what:.80} has {length} bytes")
        try:
            return self._bytes(length, what).decode()
        except UnicodeDecodeError as error:
            raise self._damaged(f"{what:.80} is not UTF-8") from error

    def _number(self, code: str) -> Any:
        size = struct.calcsize(f"<{code}")
        return struct.unpack(f"<{code}", self._bytes(size, "its header"))[0]

    def _bytes(self, count: int, what: str) -> bytes:
        content = self._stream.read(count) if count <= self._left else b""
        if len(content) != count:
            raise CheckpointError(f"{self._path} is truncated: it ends inside {what:.80}")
        self._left -= count
        return content

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path} has a damaged header: {what}")


_NUMBER, _COUNT, _NUM_TENSORS = "split.no", "split.count", "split.tensors.count"


def read_parts(path: Path) -> GgufHeader:
    """Reads the header of a GGUF file and, where it is the first of several parts, of the others.

    Raises:
        CheckpointError: A part is missing, damaged or another model's; or the path is not that of
            the first part. The message names the part's file.
    """
    header = read_header(path)
    count = header.metadata.get(_COUNT, 0)
    if count in (0, 1):
        return header
    if type(count) is not int or count < 0:
        raise CheckpointError(f"{path}: {_COUNT} is {count!r:.60}, expected a number of parts")
    name = _name_of_first(header, count)
    headers = [header]
    for other in name.others():
        headers.append(_read_part(path, path.with_name(str(other)), other.number, header.metadata))
    return GgufHeader(path, header.metadata, _tensors_of(headers))


def _name_of_first(header: GgufHeader, count: int) -> PartName:
    """The name of the first part, which tells those of the others.

    Raises:
        CheckpointError: The file is another part, or its name does not tell.
    """
    path, name, number = header.path, PartName.of(header.path.name), header.metadata.get(_NUMBER)
    is_named = name is not None and name.count == count
    if number != 0 and name is not None and is_named and type(number) is int and number < count:
        first = path.with_name(str(name.part(1)))
        raise CheckpointError(
            f"{path} is part {number + 1} of {count}: give the first part, {first}"
        )
    if number != 0:
        raise CheckpointError(f"{path} is not the first of its {count} parts: give that")
    if name is None or not is_named or name.number != 1:
        raise CheckpointError(
            f"{path} is the first of {count} parts, which are found by their names: call it "
            f"NAME-00001-of-{count:05}.gguf, as llama-gguf-split does"
        )
    return name


def _read_part(first: Path, path: Path, number: int, expected: dict[str, Any]) -> GgufHeader:
    """The header of a part behind the first.

    Args:
        first: The path of the first part.
        path: The part's own path.
        number: Which part it must be, from 2 on.
        expected: The metadata of the first part.

    Raises:
        CheckpointError: It is missing, damaged or another one.
    """
    if not path.exists():
        count = expected[_COUNT]
        raise CheckpointError(f"{path} is missing: {first} is the first of {count} parts")
    header = read_header(path)
    should_be = {_NUMBER: number - 1, _COUNT: expected[_COUNT]}
    should_be[_NUM_TENSORS] = expected.get(_NUM_TENSORS)
    for key, value in should_be.items():
        found = header.metadata.get(key)
        if found != value:
            raise CheckpointError(
                f"{path} is not part {number} of {first}: {key} is {found!r:.60}, expected "
                f"{value!r:.60}"
            )
    return header


def _tensors_of(headers: list[GgufHeader]) -> dict[str, GgufTensor]:
    """The tensors of all parts.

    Raises:
        CheckpointError: Two parts hold the same one, or there are not as many as they say.
    """
    tensors: dict[str, GgufTensor] = {}
    for header in headers:
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise CheckpointError(
                    f"{header.path} holds the tensor {name}, and so does {tensors[name].path}"
                )
            tensors[name] = tensor
    first = headers[0]
    expected = first.metadata.get(_NUM_TENSORS)
    if len(tensors) != expected:
        raise CheckpointError(
            f"{first.path}: its {len(headers)} parts hold {len(tensors)} tensors, but "
            f"{_NUM_TENSORS} is {expected!r:.60}"
        )
    return tensors


FLOATS = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)
"""Types that are floats, not integers in blocks."""
TERNARY = ("TQ1_0", "TQ2_0")
"""Types whose weights are -1, 0 or 1 times the scale of 256."""
MOST_EXPONENT = 252
"""Of MXFP4: with a larger one some weight is no float32."""

_BYTES = np.dtype(np.uint8)
_BLOCK = 32
_MIDDLE = 8
"""Of the integers of Q4_0."""
_HALVES: dict[str, tuple[int, ...]]
_HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}
_HALVES |= {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": (), "BF16": (), "F32": ()}
"""Where numbers in float16 stand in a block of a type that products read as it is, if not only at
its start."""


def open_tensor(stored: GgufTensor) -> Tensor:
    """The tensor at a place of a file.

    Raises:
        CheckpointError: It is a vector, but not of floats.
    """
    rows, name_of_type, blocks = _Rows(stored), stored.type.name, None
    *outer, last = stored.shape
    if not outer and stored.type not in FLOATS:
        raise CheckpointError(
            f"{stored.path}: {stored.name} has the shape {stored.shape} of {name_of_type}"
        )
    if name_of_type in weight_types():
        blocks = StoredBlocks(name_of_type, rows.blocks)
    elif name_of_type in TERNARY:
        blocks = StoredBlocks("Q4_0", rows.ternary_blocks)
    shape = (math.prod(outer), last) if outer else (last,)
    return Tensor(stored.name, shape, rows.floats, blocks, name_of_type)


def float_rows(kind: GGMLQuantizationType, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The rows of `raw (n, bytes of a row)` as float32.

    Raises:
        NotImplementedError: The gguf package cannot do this type.
    """
    return np.asarray(quants.dequantize(raw, kind), np.float32)


def as_q4_0(weights: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Rows of ternary weights `(n, in_features)` in Q4_0, `(n, blocks, bytes of a block)`."""
    in_blocks = weights.reshape(len(weights), -1, _BLOCK)
    sizes = np.abs(in_blocks)
    # A damaged file may hold 2, too.
    scales = sizes.min(-1, keepdims=True, where=sizes > 0, initial=np.inf)
    scales[np.isinf(scales)] = 1
    values = (np.rint(in_blocks / scales) + _MIDDLE).astype(np.uint8)
    nibbles = values[..., : _BLOCK // 2] | values[..., _BLOCK // 2 :] << np.uint8(4)
    return np.concatenate([scales.astype("<f2").view(np.uint8), nibbles], -1)


@dataclass(frozen=True)
class _Rows:
    """Rows of a tensor in a file."""

    stored: GgufTensor

    def floats(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows `start..stop` as float32.

        Raises:
            CheckpointError: The file ends early, or holds what is no number.
        """
        rows = self._weights(self._raw(start, stop))
        return rows.ravel() if len(self.stored.shape) == 1 else rows

    def blocks(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Rows `start..stop` as they are, `(n, blocks, bytes of a block)`.

        Raises:
            CheckpointError: The file ends early, or holds what is no number.
        """
        raw, name = self._raw(start, stop), self.stored.type.name
        _, block_bytes = weight_types()[name]
        blocks = raw.reshape(stop - start, -1, block_bytes)
        for place in _HALVES.get(name, (0,)):
            self._check(np.ascontiguousarray(blocks[..., place : place + 2]).view("<f2"))
        if name == "MXFP4":
            self._check(np.where(blocks[..., 0] > MOST_EXPONENT, np.inf, 0))
        if name in ("BF16", "F32"):
            self._weights(raw)
        return blocks

    def ternary_blocks(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Rows `start..stop` of a ternary type in Q4_0, which holds the same values.

        Raises:
            CheckpointError: The file ends early, or holds what is no number.
        """
        blocks = as_q4_0(self.floats(start, stop))
        self._check(np.ascontiguousarray(blocks[..., :2]).view("<f2"))
        return blocks

    def _check(self, values: NDArray[Any]) -> None:
        """Refuse what is no number.

        Raises:
            CheckpointError: There is some.
        """
        if not np.isfinite(values).all():
            raise CheckpointError(
                f"{self.stored.path}: {self.stored.name} holds NaN or infinite values"
            )

    def _weights(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Raw rows as float32.

        Raises:
            UnsupportedModelError: Their type is none that is known to the gguf package.
            CheckpointError: They hold what is no number.
        """
        stored = self.stored
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                rows = float_rows(stored.type, raw)
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"{stored.path}: {stored.name} has the type {stored.type.name}, which is not "
                "supported"
            ) from error
        self._check(rows)
        return rows

    def _raw(self, start: int, stop: int) -> NDArray[np.uint8]:
        """The bytes of rows `start..stop`, one row of them for each."""
        stored = self.stored
        is_vector = len(stored.shape) == 1
        row_bytes = stored.num_bytes // stored.shape[0] if is_vector else stored.row_bytes
        offset, count = stored.offset + start * row_bytes, (stop - start) * row_bytes
        raw = read_numbers(stored.path, stored.name, _BYTES, offset, count)
        return raw.reshape(stop - start, row_bytes)
