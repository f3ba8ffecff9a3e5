"""What a bundle for Qualcomm's HTP has beyond one for CPU: a chip, fixed point, context binaries.

In: what an exporter chose, float32 arrays. Out: chips by name; integers for real numbers, and back,
with one scale and one zero point per tensor. Encodings come from calibration (`convert/qnn/`) and
stand in the manifest; sessions write and read the graphs' integers with them.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors.json_text import Within, require, require_range

_LEAST_RANGE = 1e-4
"""QNN rejects narrower ranges."""


@dataclass(frozen=True)
class Soc:
    """A chip as Qualcomm's compiler knows it.

    Attributes:
        name: The name in `SOCS`.
        model: Number of the chip in QnnTypes.h, `QNN_SOC_MODEL_*`.
        htp_arch: Version of its Hexagon tensor processor.
        also_called: Part number and product name.
    """

    name: str
    model: int
    htp_arch: int
    also_called: str


SOCS = {
    soc.name: soc
    for soc in (
        Soc("8-gen-1", 36, 69, "SM8450, Snapdragon 8 Gen 1"),
        Soc("8-gen-2", 43, 73, "SM8550, Snapdragon 8 Gen 2"),
        Soc("8-gen-3", 57, 75, "SM8650, Snapdragon 8 Gen 3"),
        Soc("8s-gen-3", 68, 73, "SM8635, Snapdragon 8s Gen 3"),
        Soc("8-elite", 69, 79, "SM8750, Snapdragon 8 Elite"),
        Soc("8-elite-gen-5", 87, 81, "SM8850, Snapdragon 8 Elite Gen 5"),
        Soc("8-gen-5", 97, 81, "SM8845, Snapdragon 8 Gen 5"),
        Soc("x-elite", 60, 73, "SC8380XP, Snapdragon X Elite and X Plus"),
        Soc("x2-elite", 88, 81, "SC8480XP, Snapdragon X2 Elite"),
        Soc("qcs8300", 82, 75, "QCS8300, Dragonwing IQ-8"),
        Soc("qcs9100", 77, 73, "QCS9100, Dragonwing IQ-9"),
    )
}
"""Chips by name, with the numbers of QnnTypes.h (QAIRT 2.49) and ExecuTorch's qc_schema.py."""


@dataclass(frozen=True)
class Encoding:
    """An integer `q` stands for `(q - zero_point) * scale`."""

    dtype: Literal["uint8", "uint16"]
    scale: Annotated[float, Within(1e-30, 1e30)]
    """A float32 value."""
    zero_point: int

    @classmethod
    def of_range(
        cls, low: float, high: float, dtype: Literal["uint8", "uint16"] = "uint16"
    ) -> "Encoding":
        """The finest encoding of `low .. high` that holds zero exactly."""
        low, high, steps = min(low, 0.0), max(high, 0.0), np.iinfo(dtype).max
        scale = np.float32(max(high - low, _LEAST_RANGE) / steps)
        return cls(dtype, float(scale), round(-low / float(scale)))

    @classmethod
    def symmetric(cls, largest: float, dtype: Literal["uint8", "uint16"] = "uint16") -> "Encoding":
        """The encoding of `-largest .. largest` whose zero point is the middle of the integers."""
        middle = (int(np.iinfo(dtype).max) + 1) // 2
        scale = np.float32(max(largest, _LEAST_RANGE) / (middle - 1))
        return cls(dtype, float(scale), middle)

    @property
    def is_symmetric(self) -> bool:
        """Whether the zero point is the middle of the integers."""
        return self.zero_point == (int(np.iinfo(self.dtype).max) + 1) // 2

    def quantize(self, values: NDArray[np.float32]) -> NDArray[Any]:
        """The nearest integers, in the same shape; values out of range are clipped."""
        steps = np.rint(values / np.float32(self.scale)) + np.float32(self.zero_point)
        clipped: NDArray[Any] = np.clip(steps, 0, np.iinfo(self.dtype).max).astype(self.dtype)
        return clipped

    def dequantize(
        self, integers: NDArray[Any], out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """The real numbers, in the same shape; written to `out` where that is given."""
        real = np.empty(integers.shape, np.float32) if out is None else out
        real[...] = integers
        real -= np.float32(self.zero_point)
        real *= np.float32(self.scale)
        return real


@dataclass(frozen=True)
class CacheEncodings:
    """How a layer's keys and values are encoded: the past ones that it reads, and the new rows."""

    key: Encoding
    value: Encoding
    key_new: Encoding
    value_new: Encoding

    @property
    def is_exact(self) -> bool:
        """Whether a row's bits depend neither on where keys stand nor on rows it does not see.

        For that past and new rows share an encoding whose zero point is the middle of the integers
        (measured, `convert/qnn/quantize.py`).
        """
        is_tied = (self.key, self.value) == (self.key_new, self.value_new)
        return is_tied and self.key.is_symmetric and self.value.is_symmetric


@dataclass(frozen=True)
class CompiledGraphs:
    """Context binaries of the graphs: what the QNN provider loads instead of compiling."""

    provider_version: str
    """Version of onnxruntime-qnn."""
    qnn_version: str
    """Version of Qualcomm's libraries in it."""
    soc_model: int
    htp_arch: int
    graphs: dict[str, str]
    """File of a graph to the file that replaces it and refers to the binary."""


@dataclass(frozen=True)
class QnnTarget:
    """What a bundle for Qualcomm's HTP has beyond one for CPU.

    Its graphs take and give integers, named in `convert/qnn/graph.py`; `slots` is the context.
    """

    soc: str
    soc_model: int
    htp_arch: int
    mask_value: float
    """Additive mask value of a slot that a row does not see."""
    mask: Encoding
    rotation: Encoding
    """The encoding of the inputs `cos` and `sin`."""
    hidden: list[Encoding]
    """The encodings of the hidden states before each block, and before the head."""
    caches: list[CacheEncodings]
    """One per layer."""
    logits: Encoding
    compiled: CompiledGraphs | None = None
    """A binary for each graph."""
    shared: CompiledGraphs | None = None
    """A binary with all graphs of a block, which share weights; loaded as a whole."""

    @property
    def is_exact(self) -> bool:
        """Whether every path of a tree is bit-equal to plain decoding; see `CacheEncodings`."""
        return all(cache.is_exact for cache in self.caches)

    def check(self, num_layers: int, num_blocks: int) -> None:
        """Refuse what no model with so many layers in so many blocks has.

        Raises:
            FieldError: Something is; the message names the field.
        """
        num_caches, num_hidden = len(self.caches), len(self.hidden)
        require(num_caches == num_layers, f"manifest.qnn.caches holds {num_caches} layers")
        require(num_hidden == num_blocks + 1, f"manifest.qnn.hidden holds {num_hidden} encodings")
        encodings = [self.mask, self.rotation, self.logits, *self.hidden]
        for cache in self.caches:
            encodings += [cache.key, cache.value, cache.key_new, cache.value_new]
        for encoding in encodings:
            most = 255 if encoding.dtype == "uint8" else 65_535
            require_range("manifest.qnn: a zero point", encoding.zero_point, 0, most)

    @property
    def compiled_files(self) -> list[str]:
        """The files that refer to binaries."""
        made = [it for it in (self.compiled, self.shared) if it is not None]
        return [file for graphs in made for file in graphs.graphs.values()]
