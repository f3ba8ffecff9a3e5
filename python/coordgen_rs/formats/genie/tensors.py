"""What is known of the graphs of context binaries: names, shapes, types and encodings.

The binaries themselves say it (`binary.py`), and metadata.json repeats it (`metadata.py`). Names
are those that AI Hub gives graphs and tensors of language models.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from coordgen_rs.bundle.qnn import Encoding

_GRAPH = re.compile(r"(?:\w+?_)?ar([1-9]\d{0,3})_cl([1-9]\d{0,6})_([1-9]\d?)_of_([1-9]\d?)")
_CACHE = re.compile(
    r"past_(?:nativekvcache__)?(key|value)_(\d{1,3})(?:_h(?:ead_)?(\d{1,3}))?_(in|out)"
)

TOKENS = "input_ids"
EMBEDDED = ("inputs_embeds", "input_embeds")
MASK, COS, SIN = "attention_mask", "position_ids_cos", "position_ids_sin"
CACHE_INDEX = "cache_index"
LOGITS = "logits"

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


@dataclass(frozen=True)
class GraphName:
    """What a graph's name tells, such as `token_ar1_cl4096_2_of_3`.

    Attributes:
        rows: Tokens of a run (AR).
        context: Tokens that they attend to, themselves included (CL).
        part: Number of the part of the model, from 1.
        num_parts: How many there are.
    """

    rows: int
    context: int
    part: int
    num_parts: int

    @classmethod
    def of(cls, name: str) -> "GraphName | None":
        """What a name tells; None if it is not such a name."""
        found = _GRAPH.fullmatch(name)
        return None if found is None else cls(*map(int, found.groups()))


@dataclass(frozen=True)
class CacheName:
    """What the name of a tensor of keys or values tells, such as `past_key_3_in`.

    Attributes:
        kind: Keys or values.
        layer: Number of the layer in the model, from 0.
        head: Number of the head, from 0; None for a tensor of all heads.
        is_input: Whether it is read; else it is given out.
    """

    kind: Literal["key", "value"]
    layer: int
    head: int | None
    is_input: bool

    @classmethod
    def of(cls, name: str) -> "CacheName | None":
        """What a name tells; None if it is not such a name."""
        found = _CACHE.fullmatch(name)
        if found is None:
            return None
        kind, layer, head, way = found.groups()
        return cls(
            cast(Literal["key", "value"], kind),
            int(layer),
            None if head is None else int(head),
            way == "in",
        )
