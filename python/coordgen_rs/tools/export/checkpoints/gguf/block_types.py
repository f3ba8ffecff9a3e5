"""The quantised types of GGUF as integers in blocks, the form that MatMulNBits takes.

In: the raw bytes of rows. Out: `IntegerRows`. Types whose weights are `scale * integer` keep their
values exactly; those with a minimum per block become 8 bits (`nearest.py`), as does every other
type. Layers whose types can all be multiplied as they are stored do not come here (`../tensor.py`,
`StoredBlocks`). The gguf package knows the layout of the integers, so they are found as
`weight / scale`.
Layouts of the scales: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from coordgen_rs.tools.export.checkpoints.gguf.nearest import (
    inverse,
    nearest_integers,
    steps_with_minima,
)
from coordgen_rs.tools.export.checkpoints.tensor import IntegerFormat, IntegerRows

_Raw = NDArray[np.uint8]
"""`(blocks, bytes of a block)`, blocks as GGUF has them"""
_Floats = NDArray[np.float32]

FLOATS = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)
"""Types that are floats, not integers in blocks."""

_BLOCK = 32


@dataclass(frozen=True)
class _Exact:
    """Weights are `scale * q`, with q from -128 to 127."""

    bits: int
    block_size: int
    scales: Callable[[_Raw], _Floats]


@dataclass(frozen=True)
class _WithMinima:
    """Weights are `scale * q + minimum`, with q from 0 to `most`."""

    most: int
    parts: Callable[[_Raw], tuple[_Floats, _Floats]]
    """Scales and minima of blocks of 32."""


def _halves(raw: _Raw) -> _Floats:
    """Columns of bytes as float16 numbers: `(blocks, bytes / 2)`."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _first_half(raw: _Raw) -> _Floats:
    return _halves(raw[:, :2])


def _scales_of_q6_k(raw: _Raw) -> _Floats:
    return _halves(raw[:, 208:210]) * raw[:, 192:208].view(np.int8).astype(np.float32)


def _first_halves(raw: _Raw) -> tuple[_Floats, _Floats]:
    return _halves(raw[:, :2]), _halves(raw[:, 2:4])


def _parts_of_k(raw: _Raw) -> tuple[_Floats, _Floats]:
    scales, minima = quants.Q4_K.get_scale_min(np.ascontiguousarray(raw[:, 4:16]))
    return _halves(raw[:, :2]) * scales, -_halves(raw[:, 2:4]) * minima


_Q = GGMLQuantizationType
_RULES: dict[GGMLQuantizationType, _Exact | _WithMinima] = {
    _Q.Q4_0: _Exact(4, 32, _first_half),
    _Q.Q5_0: _Exact(8, 32, _first_half),
    _Q.Q8_0: _Exact(8, 32, _first_half),
    _Q.IQ4_NL: _Exact(8, 32, _first_half),
    _Q.Q6_K: _Exact(8, 16, _scales_of_q6_k),
    _Q.Q4_1: _WithMinima(15, _first_halves),
    _Q.Q5_1: _WithMinima(31, _first_halves),
    _Q.Q4_K: _WithMinima(15, _parts_of_k),
    _Q.Q5_K: _WithMinima(31, _parts_of_k),
}


def is_exact(kind: GGMLQuantizationType) -> bool:
    """Whether `integer_rows` gives the very values that are stored."""
    return isinstance(_RULES.get(kind), _Exact)


def integer_format(kind: GGMLQuantizationType) -> IntegerFormat:
    """What `integer_rows` gives for a quantised type."""
    rule = _RULES.get(kind)
    if isinstance(rule, _Exact):
        return IntegerFormat(rule.bits, rule.block_size, has_zero_points=False)
    return IntegerFormat(8, _BLOCK, has_zero_points=True)


def integer_rows(kind: GGMLQuantizationType, raw: _Raw, weights: _Floats) -> IntegerRows:
    """The rows of `raw (n, bytes of a row)` in `integer_format(kind)`.

    `weights` are the same as `float_rows`, `(n, in_features)`.
    """
    rule, block_size = _RULES.get(kind), integer_format(kind).block_size
    n, in_features = weights.shape
    in_blocks = weights.reshape(n, in_features // block_size, block_size)
    blocks = raw.reshape(-1, GGML_QUANT_SIZES[kind][1])
    if isinstance(rule, _Exact):
        scales = rule.scales(blocks).reshape(in_blocks.shape[:2])
        middle = 1 << rule.bits - 1
        values = np.rint(in_blocks * inverse(scales)[..., None]) + middle
        return IntegerRows(
            values.clip(0, 255).astype(np.uint8).reshape(n, in_features), scales, None
        )
    if rule is None:
        return nearest_integers(in_blocks)
    scales, minima = (part.reshape(in_blocks.shape[:2]) for part in rule.parts(blocks))
    return steps_with_minima(in_blocks, scales, minima, rule.most)


def float_rows(kind: GGMLQuantizationType, raw: _Raw) -> _Floats:
    """The rows of `raw (n, bytes of a row)` as float32.

    Raises:
        NotImplementedError: The gguf package cannot do this type.
    """
    return np.asarray(quants.dequantize(raw, kind), np.float32)
