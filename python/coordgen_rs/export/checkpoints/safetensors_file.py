"""Reading rows out of safetensors files without mapping or loading them whole.

In: a path. Out: `Tensor`s that read from the file. The format is an eight-byte header length, a
JSON header and the raw tensors. The safetensors package is not used: it maps the file, which counts
the whole checkpoint as this process's memory, and numpy has no bfloat16.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import CheckpointError
from coordgen_rs.export.checkpoints.tensor import Tensor

_STORED_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True)
class _Entry:
    """Where a tensor stands in its file."""

    path: Path
    name: str
    stored_type: str
    shape: tuple[int, ...]
    offset: int

    def read_rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows `start..stop` as float32.

        Raises:
            CheckpointError: The file ends early, or the stored type is not one of floats.
        """
        dtype = _STORED_TYPES.get(self.stored_type)
        if dtype is None:
            raise CheckpointError(
                f"{self.path}: {self.name} has the type {self.stored_type}, "
                f"expected {', '.join(_STORED_TYPES)}"
            )
        row_elements = math.prod(self.shape[1:])
        count = (stop - start) * row_elements
        offset = self.offset + start * row_elements * dtype.itemsize
        try:
            raw = np.fromfile(self.path, dtype, count, offset=offset)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error}") from error
        if raw.size != count:
            raise CheckpointError(f"{self.path} ends inside {self.name}")
        if self.stored_type == "BF16":
            rows = (raw.astype(np.uint32) << 16).view(np.float32)
        else:
            rows = raw.astype(np.float32, copy=False)
        return rows.reshape(stop - start, *self.shape[1:])


def open_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name.

    Raises:
        CheckpointError: The file is truncated or its header damaged; file and tensor are named.
    """
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as stream:
            header_bytes = int.from_bytes(stream.read(8), "little")
            if 8 + header_bytes > file_bytes:
                raise CheckpointError(f"{path} is truncated: its header is incomplete")
            header = json.loads(stream.read(header_bytes))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} has a damaged header: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} has a damaged header: not an object")
    tensors = {}
    for name, fields in header.items():
        if name != "__metadata__":
            entry = _entry(path, name, fields, 8 + header_bytes, file_bytes)
            tensors[name] = Tensor(name, entry.shape, entry.read_rows)
    return tensors


def _entry(path: Path, name: str, fields: Any, data_start: int, file_bytes: int) -> _Entry:
    try:
        stored_type = str(fields["dtype"])
        shape = tuple(int(size) for size in fields["shape"])
        begin, end = (int(offset) for offset in fields["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{path} has a damaged header at {name}") from error
    dtype = _STORED_TYPES.get(stored_type)
    is_sized = dtype is None or end - begin == math.prod(shape) * dtype.itemsize
    if begin < 0 or not is_sized or min(shape, default=1) < 1:
        raise CheckpointError(f"{path} has a damaged header at {name}")
    if data_start + end > file_bytes:
        raise CheckpointError(f"{path} is truncated: it ends before {name} does")
    return _Entry(path, name, stored_type, shape, data_start + begin)
