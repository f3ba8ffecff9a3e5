"""Real numbers as integers in quantised graphs: one scale and one zero point per tensor.

In: float32 arrays. Out: integers, and back. Encodings come from calibration (`convert/`) and
stand in the manifest; sessions write and read the graphs' integers with them.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Encoding:
    """An integer `q` stands for `(q - zero_point) * scale`."""

    dtype: Literal["uint8", "uint16"]
    scale: float
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


_LEAST_RANGE = 1e-4
"""QNN rejects narrower ranges."""
