"""What a context binary of QNN says of itself: its graphs and their tensors, its maker, its chip.

In: the path of a binary. Out: its `BinaryFacts`, read by Qualcomm's own libQnnSystem, which is in
the package onnxruntime-qnn. Nothing is loaded onto a device, and of the file only the pages that
the library looks at are read. The layouts are those of QnnSystemContext.h and QnnTypes.h.
"""

import ctypes
import importlib.util
import mmap
import os
import sys
from ctypes import (
    POINTER,
    Structure,
    Union,
    c_char_p,
    c_float,
    c_int32,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from coordgen_rs.bundle.qnn import Encoding
from coordgen_rs.errors import BundleDamagedError
from coordgen_rs.errors.json_text import open_regular

DTYPES = {
    0x0008: "int8",
    0x0016: "int16",
    0x0032: "int32",
    0x0064: "int64",
    0x0108: "uint8",
    0x0116: "uint16",
    0x0132: "uint32",
    0x0164: "uint64",
    0x0216: "float16",
    0x0232: "float32",
    0x0308: "int8",
    0x0316: "int16",
    0x0408: "uint8",
    0x0416: "uint16",
    0x0508: "bool",
}
"""Types by their numbers in QnnTypes.h; fixed point has the type of its integers."""


@dataclass(frozen=True)
class TensorFacts:
    """An input or output of a graph.

    Attributes:
        shape: Its shape.
        dtype: The type of its elements or their integers, as in `DTYPES`.
        scale: The scale of its encoding; None if it has none.
        zero_point: The zero point of its encoding; None if it has none.
        is_flat: Whether rows stand behind one another, not in the tiles of HTP's matrix unit.
    """

    shape: tuple[int, ...]
    dtype: str
    scale: float | None = None
    zero_point: int | None = None
    is_flat: bool = True

    @property
    def numpy_type(self) -> np.dtype[Any]:
        """The type of an array that holds it."""
        return np.dtype(self.dtype)

    @property
    def encoding(self) -> Encoding | None:
        """Its encoding as uint8 or uint16; None if it has another, or none."""
        if self.dtype not in ("uint8", "uint16") or self.scale is None or self.zero_point is None:
            return None
        return Encoding("uint8" if self.dtype == "uint8" else "uint16", self.scale, self.zero_point)


@dataclass(frozen=True)
class GraphFacts:
    """The inputs and outputs of a graph, by name."""

    inputs: dict[str, TensorFacts]
    outputs: dict[str, TensorFacts]


@dataclass(frozen=True)
class BinaryFacts:
    """A context binary.

    Attributes:
        build_id: The version that compiled it, such as `v2.45.0.260326`.
        soc_model: Number of the chip it was compiled for; None if it does not say.
        graphs: Its graphs, by name.
    """

    build_id: str
    soc_model: int | None
    graphs: dict[str, GraphFacts]


_FLAT = 0
"""QNN_TENSOR_DATA_FORMAT_DENSE: rows behind one another."""
_SCALE_OFFSET, _DEFINED = 0, 1
_MOST_GRAPHS, _MOST_TENSORS, _MOST_RANK = 1 << 10, 1 << 14, 8


class _Version(Structure):
    _fields_ = (("major", c_uint32), ("minor", c_uint32), ("patch", c_uint32))


class _ScaleOffset(Structure):
    _fields_ = (("scale", c_float), ("offset", c_int32))


class _Encoding(Union):
    """The largest of its members has 32 bytes, and holds pointers."""

    _fields_ = (("plain", _ScaleOffset), ("others", c_void_p * 4))


class _Quantization(Structure):
    _fields_ = (("definition", c_uint32), ("kind", c_uint32), ("encoding", _Encoding))


class _TensorFields(Structure):
    """The fields with which both versions of a tensor begin."""

    _fields_ = (
        ("id", c_uint32),
        ("name", c_char_p),
        ("type", c_uint32),
        ("data_format", c_uint32),
        ("data_type", c_uint32),
        ("quantization", _Quantization),
        ("rank", c_uint32),
        ("dimensions", POINTER(c_uint32)),
        ("memory_type", c_uint32),
        ("memory", c_void_p * 2),
        ("is_dynamic", c_void_p),
        ("sparse", c_uint32 * 3),
        ("is_produced", c_uint32),
    )


class _Tensor(Structure):
    _fields_ = (("version", c_uint32), ("fields", _TensorFields))


class _GraphFields(Structure):
    """The fields with which all versions of a graph begin, and room for the longest."""

    _fields_ = (
        ("name", c_char_p),
        ("num_inputs", c_uint32),
        ("inputs", POINTER(_Tensor)),
        ("num_outputs", c_uint32),
        ("outputs", POINTER(_Tensor)),
        ("rest", c_void_p * 5),
    )


class _Graph(Structure):
    _fields_ = (("version", c_uint32), ("fields", _GraphFields))


_IDENTITY = (
    ("backend", c_uint32),
    ("build_id", c_char_p),
    ("core_api", _Version),
    ("backend_api", _Version),
    ("soc_version", c_char_p),
)
_GRAPHS = (
    ("num_tensors", c_uint32),
    ("tensors", c_void_p),
    ("num_graphs", c_uint32),
    ("graphs", POINTER(_Graph)),
)


class _OldBinary(Structure):
    """Binary information in versions 1 and 2."""

    _fields_ = (
        *_IDENTITY,
        ("hardware_blob_version", _Version),
        ("blob_version", _Version),
        ("hardware_blob_len", c_uint32),
        ("hardware_blob", c_void_p),
        ("blob_len", c_uint64),
        *_GRAPHS,
    )


class _NewBinary(Structure):
    """Binary information in version 3."""

    _fields_ = (
        *_IDENTITY,
        ("blob_version", _Version),
        ("blob_len", c_uint64),
        *_GRAPHS,
        ("platform", c_void_p),
        ("metadata_len", c_uint32),
        ("metadata", c_void_p),
        ("soc_model", c_uint32),
    )


class _Versions(Union):
    _fields_ = (("old", _OldBinary), ("new", _NewBinary))


class _Binary(Structure):
    _fields_ = (("version", c_uint32), ("of", _Versions))


class _Interface(Structure):
    """QnnSystemInterface_t, as far as it is used."""

    _fields_ = (
        ("backend", c_uint32),
        ("provider", c_char_p),
        ("api", _Version),
        ("create", c_void_p),
        ("get_binary_info", c_void_p),
        ("get_metadata", c_void_p),
        ("free", c_void_p),
    )


_CREATE = ctypes.CFUNCTYPE(c_uint64, POINTER(c_void_p))
_GET_METADATA = ctypes.CFUNCTYPE(c_uint64, c_void_p, c_void_p, c_uint64, POINTER(POINTER(_Binary)))
_FREE = ctypes.CFUNCTYPE(c_uint64, c_void_p)


def can_read() -> bool:
    """Whether Qualcomm's library is here."""
    return _library_path() is not None


def read_binary(path: Path) -> BinaryFacts:
    """What a context binary says of itself.

    Raises:
        BundleDamagedError: It is missing, cannot be read, or is no context binary.
    """
    try:
        with open_regular(path) as stream:
            num_bytes = os.fstat(stream.fileno()).st_size
            # A private copy of each page that is written: ctypes cannot take read-only memory.
            with mmap.mmap(stream.fileno(), num_bytes, access=mmap.ACCESS_COPY) as content:
                return _read(path, content)
    except FileNotFoundError as error:
        raise BundleDamagedError(f"{path} is missing") from error
    except (OSError, ValueError) as error:  # mmap cannot map an empty file
        raise BundleDamagedError(f"{path} cannot be read: {error}") from error


def _read(path: Path, content: mmap.mmap) -> BinaryFacts:
    interface = _interface()
    create, free = _CREATE(interface.create), _FREE(interface.free)
    get_metadata = _GET_METADATA(interface.get_metadata)
    handle, found = c_void_p(), POINTER(_Binary)()
    start = ctypes.c_char.from_buffer(content)
    try:
        if create(ctypes.byref(handle)):
            raise BundleDamagedError(f"{path} cannot be read: libQnnSystem gives no context")
        try:
            error = get_metadata(handle, ctypes.addressof(start), len(content), ctypes.byref(found))
            if error or not found or found.contents.version not in (1, 2, 3):
                raise BundleDamagedError(f"{path} is not a context binary of QNN, or is damaged")
            return _facts(path, found.contents)
        finally:
            free(handle)
    finally:
        del start  # else the memory could not be unmapped


def _facts(path: Path, binary: _Binary) -> BinaryFacts:
    """Copies of all that is needed: the library's memory is about to be given back."""
    of = binary.of.new if binary.version == 3 else binary.of.old
    _check_count(path, of.num_graphs, _MOST_GRAPHS)
    graphs = {}
    for index in range(of.num_graphs):
        fields = of.graphs[index].fields
        graphs[_text(fields.name)] = GraphFacts(
            _tensors(path, fields.inputs, fields.num_inputs),
            _tensors(path, fields.outputs, fields.num_outputs),
        )
    soc_model = int(of.soc_model) if binary.version == 3 else 0
    return BinaryFacts(_text(of.build_id), soc_model or None, graphs)


def _tensors(path: Path, first: Any, count: int) -> dict[str, TensorFacts]:
    _check_count(path, count, _MOST_TENSORS)
    return dict(_tensor(path, first[index].fields) for index in range(count))


def _tensor(path: Path, fields: _TensorFields) -> tuple[str, TensorFacts]:
    _check_count(path, fields.rank, _MOST_RANK)
    shape = tuple(int(fields.dimensions[axis]) for axis in range(fields.rank))
    scale = zero_point = None
    quantization = fields.quantization
    if quantization.definition == _DEFINED and quantization.kind == _SCALE_OFFSET:
        plain = quantization.encoding.plain
        scale, zero_point = float(plain.scale), -int(plain.offset)
    dtype = DTYPES.get(fields.data_type, f"QNN type {fields.data_type:#x}")
    is_flat = fields.data_format == _FLAT
    return _text(fields.name), TensorFacts(shape, dtype, scale, zero_point, is_flat)


def _check_count(path: Path, count: int, most: int) -> None:
    """Refuse a number that no binary has.

    Raises:
        BundleDamagedError: It is greater.
    """
    if count > most:
        raise BundleDamagedError(
            f"{path} is damaged: it lists {count} things where {most} are many"
        )


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


@cache
def _interface() -> _Interface:
    library = ctypes.CDLL(str(_library_path()))
    providers, count = POINTER(POINTER(_Interface))(), c_uint32()
    get_providers = library.QnnSystemInterface_getProviders
    get_providers.restype = c_uint64
    get_providers(ctypes.byref(providers), ctypes.byref(count))
    interface: _Interface = providers[0].contents
    return interface


def _library_path() -> Path | None:
    """Qualcomm's library in the package onnxruntime-qnn, which is not imported."""
    spec = importlib.util.find_spec("onnxruntime_qnn")
    if spec is None or spec.origin is None:
        return None
    name = "QnnSystem.dll" if sys.platform == "win32" else "libQnnSystem.so"
    path = Path(spec.origin).parent / name
    return path if path.exists() else None
