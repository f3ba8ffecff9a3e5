"""What is known of the graphs of context binaries: names, shapes, types and encodings.

The binaries themselves say it (`file.py`), and metadata.json repeats it (`metadata.py`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from coordgen_rs.bundle.fixed_point import Encoding

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
