"""The tensors of a GGUF file under their Hugging Face names, in their Hugging Face order.

In: the header, and what is known of the architecture. Out: `Tensor`s that read from the file.
llama.cpp rotates neighbouring pairs in some architectures, and its converter has reordered the rows
of their query and key weights for that; here they are put back.
"""

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import weight_types
from coordgen_rs.convert.containers.gguf.block_types import (
    FLOATS,
    MOST_EXPONENT,
    TERNARY,
    as_q4_0,
    float_rows,
)
from coordgen_rs.convert.containers.gguf.header import GgufHeader, GgufTensor
from coordgen_rs.convert.containers.tensor import StoredBlocks, Tensor
from coordgen_rs.convert.families.config.experts import BESIDE_GATE, gates_and_ups
from coordgen_rs.errors import CheckpointError, UnsupportedModelError

_HALVES: dict[str, tuple[int, ...]]
_HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}
_HALVES |= {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": (), "BF16": (), "F32": ()}
"""Where numbers in float16 stand in a block of a type that products read as it is, if not only at
its start."""
_VECTORS = (".mamba.A", ".mamba.D", ".mamba.norm.weight")
"""Tensors that files hold as matrices: of a column, or of a row for each group."""
_CONVOLUTIONS = (".conv.conv.weight", ".conv1d.weight")
"""Tensors that may have a dimension of 1 in the middle."""
_ROWS = (f".{BESIDE_GATE}.weight",)
"""Tensors of one row that files hold as vectors."""
_EXPERTS, _GATES_AND_UPS = ".mlp.experts.", "gate_up_proj.weight"
"""What is in the names of matrices of all experts; of those with gates and ups of each."""
_ROTATED = re.compile(r"\.([qk])_proj\.")


@dataclass(frozen=True)
class _Rows:
    """Rows of a tensor in a file."""

    stored: GgufTensor
    rotated_head_dim: int | None

    def floats(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows `start..stop` as float32.

        Raises:
            CheckpointError: The file ends early, or holds what is no number.
        """
        raw, order = self._raw(start, stop)
        return self._weights(raw)[order].reshape(stop - start, *self.stored.shape[1:])

    def blocks(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Rows `start..stop` as they are, `(n, blocks, bytes of a block)`.

        Raises:
            CheckpointError: The file ends early, or holds what is no number.
        """
        raw, order = self._raw(start, stop)
        name = self.stored.type.name
        _, block_bytes = weight_types()[name]
        blocks = raw[order].reshape(stop - start, -1, block_bytes)
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

    def _raw(self, start: int, stop: int) -> tuple[NDArray[np.uint8], NDArray[np.intp]]:
        """The bytes of at least these rows, `(some, row_bytes)`, and which of them they are.

        Raises:
            CheckpointError: The file ends early, or cannot be read.
        """
        first, last, order = start, stop, np.arange(stop - start)
        if self.rotated_head_dim is not None:
            head = self.rotated_head_dim
            first, last = start // head * head, -(-stop // head) * head
            rows = np.arange(last - first).reshape(-1, head // 2, 2).swapaxes(1, 2).ravel()
            order = rows[start - first : stop - first]
        stored = self.stored
        row_bytes = (
            stored.row_bytes if len(stored.shape) > 1 else stored.num_bytes // stored.shape[0]
        )
        offset = stored.offset + first * row_bytes
        count = (last - first) * row_bytes
        try:
            raw = np.fromfile(stored.path, np.uint8, count, offset=offset)
        except OSError as error:
            raise CheckpointError(f"{stored.path} cannot be read: {error}") from error
        if raw.size != count:
            raise CheckpointError(f"{stored.path} ends inside {stored.name}")
        return raw.reshape(last - first, row_bytes), order


def open_tensors(
    header: GgufHeader, names: dict[str, str], head_dim: int | None, biases: tuple[str, ...]
) -> dict[str, Tensor]:
    """The tensors of a file by their Hugging Face names.

    Args:
        header: The file's header.
        names: Hugging Face names by those in the file.
        head_dim: Rows of a head whose neighbours are pairs, in query and key; None for halves.
        biases: What the names of those end with that the graphs add; no metadata tells of others.

    Raises:
        UnsupportedModelError: A tensor has no Hugging Face name, or is another bias.
        CheckpointError: A tensor has a shape that its kind never has.
    """
    tensors = {}
    for stored in header.tensors.values():
        name = names.get(stored.name)
        if name is None:
            raise UnsupportedModelError(
                f"{stored.path}: the tensor {stored.name} is not one of this kind of model"
            )
        if name.endswith(".bias") and not name.endswith(biases):
            raise UnsupportedModelError(f"{stored.path}: {name} is a bias, which is not supported")
        tensors[name] = _tensor(name, stored, head_dim)
        if name.endswith(_EXPERTS + _GATES_AND_UPS):
            prefix = name.removesuffix(_GATES_AND_UPS)
            gates, ups = gates_and_ups(tensors.pop(name), stored.shape[0])
            tensors |= {f"{prefix}gate_proj.weight": gates, f"{prefix}up_proj.weight": ups}
    return tensors


def _tensor(name: str, stored: GgufTensor, head_dim: int | None) -> Tensor:
    is_float = stored.type in FLOATS
    if is_float and name.endswith(_VECTORS):
        stored = replace(stored, shape=(math.prod(stored.shape),))
    elif is_float and name.endswith(_CONVOLUTIONS):
        channels, *others = stored.shape
        stored = replace(stored, shape=(channels, *(size for size in others if size != 1)))
    elif is_float and name.endswith(_ROWS) and len(stored.shape) == 1:
        stored = replace(stored, shape=(1, *stored.shape))
    elif _EXPERTS in name and len(stored.shape) == 3:
        num, size, columns = stored.shape
        stored = replace(stored, shape=(num * size, columns))
    if len(stored.shape) > 2 or (len(stored.shape) == 1 and not is_float):
        raise CheckpointError(
            f"{stored.path}: {stored.name} has the shape {stored.shape} of {stored.type.name}"
        )
    rotated = head_dim if _ROTATED.search(name) else None
    if rotated is not None and (rotated % 2 or stored.shape[0] % rotated):
        raise CheckpointError(f"{stored.path}: {stored.name} has no whole heads of {rotated} rows")
    rows = _Rows(stored, rotated)
    blocks, name_of_type = None, stored.type.name
    if len(stored.shape) == 2 and name_of_type in weight_types():
        blocks = StoredBlocks(name_of_type, rows.blocks)
    elif name_of_type in TERNARY:
        blocks = StoredBlocks("Q4_0", rows.ternary_blocks)
    return Tensor(name, stored.shape, rows.floats, blocks, name_of_type)


def read_numbers(header: GgufHeader, name: str) -> list[float]:
    """The values of a small tensor of floats.

    Raises:
        CheckpointError: It is missing, damaged, or not a vector of floats.
    """
    stored = header.tensors.get(name)
    if stored is None or len(stored.shape) != 1:
        raise CheckpointError(f"{header.path} has no vector {name}")
    values = _tensor(name, stored, None).load()
    return [float(value) for value in values]
