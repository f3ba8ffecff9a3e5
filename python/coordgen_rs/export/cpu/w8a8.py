"""W8A8: 8-bit weights with a scale per output column, 8-bit activations with a scale per row.

In: float32 rows of a weight matrix, `(out, in)`. Out: int8 weights transposed for ONNX Runtime's
MatMulIntegerToFloat, and the ONNX functions that round activations.

A row of activations is rounded to `round(x * (127 / max|x|)) + 128`, and its scale is max|x| / 127.
Integer sums do not depend on their order, so a row's bits are the same at every width by
arithmetic. Rounding knows nothing of other rows: DynamicQuantizeLinear, which takes one scale for
all rows, would break that. A row of zeros divides by zero; whatever integers that gives, they are
multiplied by its scale, which is zero. A row that holds NaN or infinity has no finite scale.

The functions are what any ONNX Runtime can compute. The crate has a kernel for each of them
(`src/kernels`), which the session prefers where it can be loaded: with the functions, whose 900
further nodes are small, a step of one row of SmolLM2 takes a third longer.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import parser

DOMAIN = "ai.coordgen"
ROWS, NORM_ROWS, ADD_NORM_ROWS, GATE_ROWS = "Rows", "NormRows", "AddNormRows", "GateRows"
"""The functions; the session may have one kernel for each, see `src/kernels`."""

_LARGEST = 127

_ROUND = """
    magnitudes = Abs(x)
    axis = Constant<value = int64[1] {-1}>()
    largest = ReduceMax<keepdims = 1>(magnitudes, axis)
    most = Constant<value = float {127.0}>()
    factor = Div(most, largest)
    unrounded = Mul(x, factor)
    step = Constant<value = float {1.0}>()
    middle = Constant<value = uint8 {128}>()
    rows = QuantizeLinear(unrounded, step, middle)
    step_size = Div(largest, most)
    none = Constant<value = float {0.0}>()
    zeros = Mul(x, none)
    zero = ReduceSum<keepdims = 1>(zeros, axis)
    scale = Add(step_size, zero)
"""
"""`x (M, K)` float32 to `rows (M, K)` uint8 and `scale (M, 1)` float32.

ReduceMax passes over NaN; a sum of products with zero does not.
"""

_NORM = "x = RMSNormalization<axis = -1, epsilon: float = @epsilon>(stream, weight)"

_FUNCTIONS = {
    ROWS: f"(x) => (rows, scale) {{ {_ROUND} }}",
    NORM_ROWS: f"<epsilon>(stream, weight) => (rows, scale) {{ {_NORM} {_ROUND} }}",
    ADD_NORM_ROWS: f"""<epsilon>(before, product, product_scale, weight) => (stream, rows, scale) {{
        scaled = Mul(product, product_scale)
        stream = Add(before, scaled)
        {_NORM} {_ROUND}
    }}""",
    GATE_ROWS: f"""(product, product_scale) => (rows, scale) {{
        both = Mul(product, product_scale)
        gate, up = Split<axis = -1, num_outputs = 2>(both)
        activated = com.microsoft.QuickGelu<alpha = 1.0>(gate)
        x = Mul(activated, up)
        {_ROUND}
    }}""",
}


@dataclass(frozen=True)
class QuantizedColumns:
    """A matrix for MatMulIntegerToFloat; a weight is `value * scale` of its column."""

    values: NDArray[np.int8]
    """`(in_features, out_features)`"""
    scales: NDArray[np.float32]
    """`(out_features,)`"""


def quantize_columns(
    pieces: Iterable[NDArray[np.float32]], shape: tuple[int, int]
) -> QuantizedColumns:
    """Quantises and transposes a finite matrix `(out, in)` that comes as pieces of its rows.

    The largest of a row becomes 127 or -127.
    """
    values = np.empty(shape[::-1], np.int8)
    scales = np.empty(shape[0], np.float32)
    start = 0
    for piece in pieces:
        stop = start + len(piece)
        largest = np.abs(piece).max(axis=1, keepdims=True)
        factor = np.divide(_LARGEST, largest, out=np.zeros_like(largest), where=largest > 0)
        scales[start:stop] = largest[:, 0] / np.float32(_LARGEST)
        unrounded = piece * np.where(np.isfinite(factor), factor, 0)
        values[:, start:stop] = np.rint(unrounded).astype(np.int8).T
        start = stop
    return QuantizedColumns(values, scales)


def function(name: str, opset: int) -> onnx.FunctionProto:
    """The function of this name, for a model of that opset."""
    opsets = f'"" : {opset}, "com.microsoft" : 1'
    header = f'<domain: "{DOMAIN}", opset_import: [{opsets}]>'
    return parser.parse_function(f"{header} {name} {_FUNCTIONS[name]}")
