"""W8A8: 8-bit weights with a scale per output column, 8-bit activations with a scale per row.

In: float32 rows of a weight matrix, `(out, in)`. Out: int8 weights transposed for ONNX Runtime's
MatMulIntegerToFloat, and the ONNX functions that round activations.

A row of activations is rounded to `round(x * (127 / max|x|)) + 128`, and its scale is max|x| / 127.
Integer sums do not depend on their order, so a row's bits are the same at every width by
arithmetic. Rounding knows nothing of other rows: DynamicQuantizeLinear, which takes one scale for
all rows, would break that. A row of zeros divides by zero; whatever integers that gives, they are
multiplied by its scale, which is zero. A row that holds NaN or infinity has no finite scale.

What enters the down weights, the output of attention and the head is rounded finer: behind all rows
comes, for each, a row of what rounding left, in 254 steps to one of the first. Both are multiplied
by the weights as if they were two rows, and their products joined. The down weights' input has
large channels that change from token to token, so that no equalisation helps. Two rows take as long
as one, for one row waits for the weights; wide steps and prompts take longer by a third at most.
Divergence of SmolLM2 from float, simulated on 1,307 tokens that it was not equalised on: 0.017 with
one row for all, 0.0095 with finer ones before the down weights, 0.0068 before the head too, 0.0067
before the output of attention too, and 0.0047 everywhere, which would double the prompt's time:
that is what rounding the weights costs.
Dropped: several scales for a row, of its channels sorted by size. They leave two thirds of the down
weights' error, and each is a product of its own, which costs more than a second row.

The functions say what is computed, in ONNX's own operators. The crate has a kernel for each of them
(`src/kernels`), which takes its place wherever a bundle is run: with the functions, whose 1,100
further nodes are small, a step of one row of SmolLM2 takes longer. Tests hold the two together.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import parser

from coordgen_rs.target.onnx_runtime import KERNEL_DOMAIN
from coordgen_rs.tools.export.calibration.rounding import ColumnIntegers
from coordgen_rs.tools.export.checkpoints.tensor import MIDDLE_OF_8_BITS, IntegerRows

FINE_ROWS, NORM_ROWS, FINE_NORM_ROWS = "FineRows", "NormRows", "FineNormRows"
JOIN_NORM_ROWS, FINE_GATE_ROWS, JOINED = "JoinNormRows", "FineGateRows", "Joined"
"""The functions; there is a kernel for each, see `src/kernels`."""
FINE = (FINE_ROWS, FINE_NORM_ROWS, FINE_GATE_ROWS)
"""The functions that give two rows for each."""

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
    rounded = QuantizeLinear(unrounded, step, middle)
    step_size = Div(largest, most)
    none = Constant<value = float {0.0}>()
    zeros = Mul(x, none)
    zero = ReduceSum<keepdims = 1>(zeros, axis)
    scale = Add(step_size, zero)
"""
"""`x (M, K)` float32 to `rounded (M, K)` uint8 and `scale (M, 1)` float32.

ReduceMax passes over NaN; a sum of products with zero does not.
"""

_COARSE = f"{_ROUND} rows = Identity(rounded)"
_FINE = f"""{_ROUND}
    taken = DequantizeLinear(rounded, step, middle)
    left = Sub(unrounded, taken)
    steps = Constant<value = float {{254.0}}>()
    rests = Mul(left, steps)
    rounded_rests = QuantizeLinear(rests, step, middle)
    rows = Concat<axis = 0>(rounded, rounded_rests)
"""
"""Like `_ROUND`, to `rows (2 * M, K)`: what rounding left of each row is behind all rows."""

_JOIN = f"""
    of_rows, of_rests = Split<axis = 0, num_outputs = 2>(product)
    rest = Constant<value = float {{{np.float32(1 / 254)!s}}}>()
    smaller = Mul(of_rests, rest)
    whole = Add(of_rows, smaller)
    joined = Mul(whole, product_scale)
"""
"""`product (2 * M, N)` of fine rows, which lacks `product_scale (M, 1)`, to `joined (M, N)`."""

_NORM = "x = RMSNormalization<axis = -1, epsilon: float = @epsilon>(stream, weight)"

_FUNCTIONS = {
    FINE_ROWS: f"(x) => (rows, scale) {{ {_FINE} }}",
    NORM_ROWS: f"<epsilon>(stream, weight) => (rows, scale) {{ {_NORM} {_COARSE} }}",
    FINE_NORM_ROWS: f"<epsilon>(stream, weight) => (rows, scale) {{ {_NORM} {_FINE} }}",
    JOIN_NORM_ROWS: f"""
    <epsilon>(before, product, product_scale, weight) => (stream, rows, scale) {{
        {_JOIN}
        stream = Add(before, joined)
        {_NORM} {_COARSE}
    }}""",
    FINE_GATE_ROWS: f"""(product, product_scale) => (rows, scale) {{
        both = Mul(product, product_scale)
        gate, up = Split<axis = -1, num_outputs = 2>(both)
        activated = com.microsoft.QuickGelu<alpha = 1.0>(gate)
        x = Mul(activated, up)
        {_FINE}
    }}""",
    JOINED: f"(product, product_scale) => (joined) {{ {_JOIN} }}",
}


def quantize_columns(
    pieces: Iterable[NDArray[np.float32]], shape: tuple[int, int]
) -> ColumnIntegers:
    """Quantises and transposes a finite matrix `(out, in)` that comes as pieces of its rows.

    The largest of a row becomes 127 or -127. Where texts are given, `compensation.py` decides.
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
    return ColumnIntegers(values, scales, 8)


def joined_columns(parts: Sequence[IntegerRows]) -> ColumnIntegers:
    """Transposes matrices of 8 bits, each row of them a block, that stand one behind the other."""
    values = np.concatenate([part.values for part in parts]).T.astype(np.int16) - MIDDLE_OF_8_BITS
    steps = np.concatenate([part.scales[:, 0] for part in parts])
    return ColumnIntegers(values.astype(np.int8), steps, 8)


def function(name: str, opset: int) -> onnx.FunctionProto:
    """The function of this name, for a model of that opset."""
    opsets = f'"" : {opset}, "com.microsoft" : 1'
    header = f'<domain: "{KERNEL_DOMAIN}", opset_import: [{opsets}]>'
    return parser.parse_function(f"{header} {name} {_FUNCTIONS[name]}")
