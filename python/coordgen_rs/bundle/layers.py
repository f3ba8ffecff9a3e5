"""What layers have that are not plain attention and a dense feed-forward, and weights in panels.

In: what an exporter knows of its graphs. Out: shared caches of keys and values, recurrent layers,
mixtures of experts, embeddings of layers: which layers have them, how large they are, where they
stand in the bundle's files, and what graphs call their inputs. Each checks itself. How caches and
states follow the tokens is for sessions (`runtime/caches/`, `src/kernels/recurrent/`). Experts and
embeddings are in files that graphs do not read, whose weights stand in panels, as the operator
`Product` reads them (`src/kernels/product/panels.rs`): some rows of a matrix in float32, so that an
embedding that is also the output layer is stored once.
"""

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import weight_rows, weight_types
from coordgen_rs.errors.json_text import Within, require, require_range

WeightType = Literal[
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "F16",
    "BF16",
    "F32",
]

OUTPUTS = 16
"""Rows of a panel."""

MOST_OF_A_SIZE = 1 << 24
"""No known model has a larger size of any kind; a damaged file may, and would fill the memory."""
Size = Annotated[int, Within(1, MOST_OF_A_SIZE)]
_Numbers = Annotated[int, Within(1, 1 << 28)]
_MOST_PER_LAYER_ROWS = (1 << 28) - 1
"""What `_core.weight_rows` reads of."""
PAGE = 4096
"""Experts begin at a multiple of it, in bytes: a page of most systems; others' are larger."""
_MATRICES = 3
"""Of an expert."""
HEADER_BYTES = 64
"""What a recurrent layer's state, a node's update and all updates begin with."""

EMBEDDED, PER_LAYER = "embedded", "per_layer"
"""Inputs with a row per token: the embedded token as the first layer reads it, and what the table
of the layers' embeddings holds of it for all layers."""

RecurrentKind = Literal["short_convolution", "gated_delta_net", "selective_state"]
_SHOWN_KINDS: dict[RecurrentKind, str] = {
    "short_convolution": "short convolutions",
    "gated_delta_net": "gated delta nets",
    "selective_state": "Mamba-2",
}


def num_bytes(weight_type: str, rows: int, columns: int) -> int:
    """Bytes of a matrix in panels."""
    weights, block = weight_types()[weight_type]
    return -(-rows // OUTPUTS) * OUTPUTS * -(-columns // weights) * block


@dataclass(frozen=True, eq=False)
class PanelRows:
    """Rows `(rows, columns)` that are made float32 when they are asked for.

    Attributes:
        content: `(num_bytes,) u8`.
        weight_type: A `WeightType`.
        rows: Rows of the matrix.
        columns: Weights of a row.
        scale: What each weight is multiplied by.
        joined: How many rows one after the other are read as one.
    """

    content: NDArray[np.uint8]
    weight_type: str
    rows: int
    columns: int
    scale: float
    joined: int = 1

    def __getitem__(self, numbers: NDArray[Any]) -> NDArray[np.float32]:
        """The rows of some numbers `(n,)`, `(n, joined * columns) f32`."""
        several: NDArray[np.uint32] = np.arange(self.joined, dtype=np.uint32)
        wanted = np.asarray(numbers, np.uint32)[:, np.newaxis] * np.uint32(self.joined) + several
        of_type = self.weight_type, self.content, self.rows, self.columns
        rows = weight_rows(*of_type, wanted.ravel()) * np.float32(self.scale)
        return rows.reshape(len(numbers), -1)


@dataclass(frozen=True, eq=False)
class MappedRows(PanelRows):
    """Rows of a mapped file that may be larger than memory, and of which few are ever read.

    The system is told that they are read in no order, so it reads no pages beside them; and which
    they are before they are read, so that a disk reads them side by side. Otherwise each waits for
    its own, with pages that nobody asked for.
    """

    mapped: mmap.mmap = field(kw_only=True)
    """The file, whose bytes are `content`."""

    def __post_init__(self) -> None:
        self._advise(_IN_NO_ORDER, 0, len(self.mapped))

    def __getitem__(self, numbers: NDArray[Any]) -> NDArray[np.float32]:
        """The rows of some numbers `(n,)`, `(n, joined * columns) f32`."""
        panel_bytes = self._panel_bytes
        for number in set(np.asarray(numbers).tolist()):
            first = number * self.joined // OUTPUTS
            last = ((number + 1) * self.joined - 1) // OUTPUTS
            start = first * panel_bytes // mmap.PAGESIZE * mmap.PAGESIZE
            self._advise(_SOON, start, (last + 1) * panel_bytes - start)
        return super().__getitem__(numbers)

    @cached_property
    def _panel_bytes(self) -> int:
        return num_bytes(self.weight_type, OUTPUTS, self.columns)

    def _advise(self, advice: str, start: int, length: int) -> None:
        """Tell the system of a part, where it takes advice."""
        number = getattr(mmap, advice, None)
        if number is not None:
            self.mapped.madvise(number, start, length)


_IN_NO_ORDER, _SOON = "MADV_RANDOM", "MADV_WILLNEED"


def require_layers(where: str, layers: list[int], num_layers: int) -> None:
    """Refuse what are no ascending numbers of a model's layers.

    Raises:
        FieldError: They are none; the message names the field.
    """
    require(
        bool(layers) and layers == sorted(set(layers) & set(range(num_layers))),
        f"{where} is {layers!s:.200}, expected ascending numbers of its {num_layers} layers",
    )


@dataclass(frozen=True)
class LayerCache:
    """The keys and values that a layer attends to."""

    num_kv_heads: Size
    head_dim: Size
    written_by: int
    """The layer whose keys and values they are: itself, or an earlier one."""


def check_caches(caches: Sequence[LayerCache], num_layers: int) -> None:
    """Refuse caches of a model's layers that contradict each other.

    Raises:
        FieldError: Some do; the message names the field.
    """
    require(
        len(caches) == num_layers,
        f"manifest.caches holds {len(caches)} layers, the model has {num_layers}",
    )
    for layer, cache in enumerate(caches):
        where = f"manifest.caches[{layer}]"
        require_range(f"{where}.written_by", cache.written_by, 0, layer)
        is_same = caches[cache.written_by] == cache
        require(is_same, f"{where} and the layer {cache.written_by} that writes it differ")


@dataclass(frozen=True)
class StateSizes:
    """What one operator of a recurrent layer keeps, in float32 numbers."""

    name: str
    """What its inputs are called: `{name}_state_{layer}` and `{name}_updates_{layer}`."""
    numbers: _Numbers
    """Of a sequence's state."""
    node_numbers: _Numbers
    """Of a node's update."""

    @property
    def num_bytes(self) -> int:
        """Bytes of a state."""
        return HEADER_BYTES + 4 * self.numbers

    def updates_bytes(self, num_nodes: int) -> int:
        """Bytes of the updates of so many nodes."""
        return HEADER_BYTES + num_nodes * (HEADER_BYTES + 4 * self.node_numbers)

    @property
    def updates_name(self) -> str:
        """What graphs call the size of updates, which differs with the nodes."""
        return f"nodes_of_{self.node_numbers}"

    def inputs(self, layer: int) -> tuple[str, str]:
        """The inputs of a layer: its state, and its updates; outputs have `_out` behind."""
        return f"{self.name}_state_{layer}", f"{self.name}_updates_{layer}"


@dataclass(frozen=True)
class RecurrentLayers:
    """The recurrent layers of a model, all of one kind: a state in place of keys and values."""

    kind: RecurrentKind
    layers: list[int]
    """Their numbers, ascending; all others have attention."""
    states: list[StateSizes]
    """What each of them keeps, in the order of its operators."""

    @property
    def state_bytes(self) -> int:
        """Bytes of all states of all layers."""
        return len(self.layers) * sum(sizes.num_bytes for sizes in self.states)

    def described(self, num_layers: int) -> str:
        """What people are told of the layers of a model with so many."""
        return f"{num_layers}, {len(self.layers)} of them {_SHOWN_KINDS[self.kind]}"

    def check(self, num_layers: int) -> None:
        """Refuse what no model with so many layers has.

        Raises:
            FieldError: Something is; the message names the field.
        """
        require_layers("manifest.recurrent.layers", self.layers, num_layers)
        names = [sizes.name for sizes in self.states]
        require(
            0 < len(names) == len(set(names)),
            f"manifest.recurrent.states are called {names}, expected different names",
        )


@dataclass(frozen=True)
class ExpertRegion:
    """The experts of a layer: one after the other, each whole pages."""

    layer: int
    file: str
    offset: int
    num_bytes: int
    types: list[WeightType]
    """Of an expert's gate, up and down, which stand in this order, in panels."""


@dataclass(frozen=True)
class ExpertLayers:
    """The mixtures of experts of a model."""

    num: Annotated[int, Within(1, 1 << 12)]
    """Experts of a layer."""
    chosen: int
    """Those that a row is given to."""
    size: Size
    """Of an expert's feed-forward."""
    layers: list[ExpertRegion]
    """Those that have one, ascending; others have a dense feed-forward."""

    def stride(self, region: ExpertRegion, hidden_size: int) -> int:
        """Bytes of an expert."""
        up = (self.size, hidden_size)
        return expert_bytes(region.types, (up, up, (hidden_size, self.size)))

    def row_bytes(self, layers: Sequence[int]) -> int:
        """Bytes of experts that a row reads in some layers of the model."""
        held = (region.num_bytes for region in self.layers if region.layer in layers)
        return sum(num_bytes // self.num * self.chosen for num_bytes in held)

    def described(self, num_layers: int) -> str:
        """What people are told of the experts of a model with so many layers."""
        layers = f"{len(self.layers)} of {num_layers} layers"
        return f"{self.num} of size {self.size} in {layers}, {self.chosen} for each token"

    def check(
        self,
        others: Sequence[ExpertRegion],
        num_layers: int,
        hidden_size: int,
        file_bytes: Mapping[str, int],
    ) -> None:
        """Refuse what contradicts itself, or the files.

        Args:
            others: Regions that do not belong to layers of the model.
            num_layers: Layers of the model.
            hidden_size: That of the model.
            file_bytes: Bytes of each file of the bundle.

        Raises:
            FieldError: Something does; the message names the field.
        """
        layers = [region.layer for region in self.layers]
        require_layers("manifest.experts.layers", layers, num_layers)
        require_range("manifest.experts.chosen", self.chosen, 1, self.num)
        for region in (*self.layers, *others):
            name, num_types = f"experts of layer {region.layer}", len(region.types)
            require(num_types == _MATRICES, f"manifest: {name} have {num_types} types, expected 3")
            require(region.file in file_bytes, f"manifest.files lacks {region.file}")
            held = file_bytes[region.file]
            expected = self.num * self.stride(region, hidden_size)
            is_inside = 0 <= region.offset <= held - expected and region.offset % PAGE == 0
            require(
                region.num_bytes == expected and is_inside,
                f"manifest: {name} are {region.num_bytes} bytes at {region.offset} of "
                f"{region.file}, which has {held}: expected {expected} at a multiple of {PAGE}",
            )


def experts_input(layer: int) -> str:
    """What the graph of a layer calls its experts."""
    return f"experts_{layer}"


def expert_bytes(types: Sequence[str], shapes: Sequence[tuple[int, int]]) -> int:
    """Bytes of an expert whose matrices have such types and shapes: whole pages."""
    matrices = zip(types, shapes, strict=True)
    held = sum(num_bytes(weight_type, *shape) for weight_type, shape in matrices)
    return -(-held // PAGE) * PAGE


@dataclass(frozen=True)
class PerLayerFile:
    """A second embedding, of which each layer reads its own numbers of a token.

    Weights in panels `(vocab_size * num_layers, size)`: for each token a row for each layer. It may
    be larger than all other weights; rows are looked up on the host, from a file that stays on
    disk, and few of them are ever read.
    """

    file: str
    dtype: WeightType
    size: Size
    """Numbers of a layer."""
    scale: float
    """What weights are multiplied by."""

    def check(self, rows: int, held: int) -> None:
        """Refuse what no table of so many rows has, or a file of so many bytes cannot hold.

        Raises:
            FieldError: Something does; the message names the field.
        """
        require_range("manifest.per_layer.scale", abs(self.scale), 1e-30, 1e30)
        require_range("manifest.per_layer: rows", rows, 1, _MOST_PER_LAYER_ROWS)
        expected = num_bytes(self.dtype, rows, self.size)
        require(
            held == expected,
            f"manifest.per_layer: {self.file} has {held} bytes, but {rows} rows of {self.size} "
            f"{self.dtype} are {expected}",
        )
