"""The operator `Experts` in ONNX Runtime."""

import numpy as np
import pytest

from coordgen_rs._core import weight_panels, weight_types
from dequantized import dequantized_as, random_blocks, rounded_to_8_bits
from operators import BYTE, FLOAT, INTEGER, operator_session

COLUMNS, SIZE, EXPERTS, CHOSEN = 96, 64, 20, 3
PAGE = 4096
INPUTS = {
    "rows": (FLOAT, ["m", "c"]),
    "norm": (FLOAT, ["c"]),
    "scores": (FLOAT, ["m", "e"]),
    "choice_bias": (FLOAT, ["e"]),
    "up_bias": (FLOAT, ["e", "s"]),
    "down_bias": (FLOAT, ["e", "c"]),
    "residual": (FLOAT, ["m", "c"]),
    "beside": (FLOAT, ["m", "c"]),
    "beside_gate": (FLOAT, ["m", "1"]),
    "weights": (BYTE, ["b"]),
    "span": (INTEGER, ["t"]),
}
ATTRIBUTES = {
    "columns": COLUMNS,
    "size": SIZE,
    "experts": EXPERTS,
    "chosen": CHOSEN,
    "types": "F32,F32,F32",
    "gate": "silu",
    "epsilon": 1e-5,
    "scoring": "softmax",
    "normed": 1,
    "share_epsilon": 0.0,
    "share_scale": 1.0,
    "residual_scale": 1.0,
}
QWEN3 = ({}, ("norm", "residual"))
QWEN35 = ({}, ("norm", "residual", "beside", "beside_gate"))
GPT_OSS = ({"gate": "clamped_swiglu"}, ("norm", "up_bias", "down_bias", "residual"))
LFM2 = (
    {"scoring": "sigmoid", "share_epsilon": 1e-6, "share_scale": 1.5},
    ("norm", "choice_bias", "residual"),
)
GRANITE = ({"residual_scale": 0.22}, ("norm", "residual", "beside"))
OLMOE = ({"normed": 0, "gate": "gelu_tanh"}, ())
KINDS = [QWEN3, QWEN35, GPT_OSS, LFM2, GRANITE, OLMOE]
IDS = ["qwen3", "qwen3.5", "gpt-oss", "lfm2", "granite", "olmoe"]


def session_of(inputs, names=("out", "chosen"), leading=(), **attributes):
    """A session with some optional inputs; rows may have leading dimensions."""
    sizes = {
        name: (kind, [*(leading if shape[0] == "m" else ()), *shape])
        for name, (kind, shape) in INPUTS.items()
    }
    absent = INPUTS.keys() - {"rows", "scores", "weights", *inputs}
    every = {"out": (FLOAT, [*leading, "m", "c"]), "chosen": (INTEGER, ["n", "k"])}
    outputs = {name: every[name] for name in names}
    return operator_session("Experts", sizes, outputs, absent, **(ATTRIBUTES | attributes))


class Weights:
    """All experts' matrices, as the operator reads them and as numbers."""

    def __init__(self, weight_type):
        self.weight_type, self.experts, strides = weight_type, [], []
        for expert in range(EXPERTS):
            matrices, panels = [], b""
            for number, (outputs, columns) in enumerate(
                [(SIZE, COLUMNS), (SIZE, COLUMNS), (COLUMNS, SIZE)]
            ):
                count = columns // weight_types()[weight_type][0]
                blocks = random_blocks(weight_type, outputs, count, 3 * expert + number)
                panels += weight_panels(weight_type, blocks).tobytes()
                matrices.append(dequantized_as(weight_type, blocks).astype(np.float64))
            self.experts.append(matrices)
            strides.append(panels + bytes(-len(panels) % PAGE))
        self.bytes = np.frombuffer(b"".join(strides), np.uint8)

    def times(self, x, expert, matrix):
        """Rows `(n, columns)` times a matrix, in float64, as products round what they read."""
        x = x.astype(np.float32)
        read = x if self.weight_type == "F32" else rounded_to_8_bits(x, "")
        return read.astype(np.float64) @ self.experts[expert][matrix].T


def fed(inputs, num_rows, seed=0):
    """Random inputs, of which those named are optional."""
    random = np.random.default_rng(seed)
    sizes = {"c": COLUMNS, "e": EXPERTS, "s": 2 * SIZE, "m": num_rows, "1": 1}
    return {
        name: random.standard_normal([sizes[size] for size in shape], np.float32)
        for name, (kind, shape) in INPUTS.items()
        if kind == FLOAT and name in {"rows", "scores", *inputs}
    }


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gated(gate, x, y):
    if gate == "clamped_swiglu":
        x, y = np.minimum(x, 7), np.clip(y, -7, 7)
        return x * sigmoid(1.702 * x) * (y + 1)
    if gate == "silu":
        return x * sigmoid(x) * y
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) * y


def expected(weights, inputs, **attributes):
    """What all rows give, and their experts, in float64."""
    how = ATTRIBUTES | attributes
    wide = {name: array.astype(np.float64) for name, array in inputs.items()}
    x, scores = wide["rows"], wide["scores"]
    if "norm" in wide:
        mean = (x**2).mean(axis=1, keepdims=True)
        x = x / np.sqrt(mean + how["epsilon"]) * wide["norm"]
    if how["scoring"] == "sigmoid":
        scores = shares = sigmoid(scores)
    else:
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
    chosen = np.argsort(-(scores + wide.get("choice_bias", 0)), axis=1, kind="stable")[:, :CHOSEN]
    shares = np.take_along_axis(shares, chosen, axis=1)
    if how["normed"]:
        shares /= shares.sum(axis=1, keepdims=True) + how["share_epsilon"]
    shares *= how["share_scale"]
    up_bias = wide.get("up_bias", np.zeros((EXPERTS, 2 * SIZE)))
    down_bias = wide.get("down_bias", np.zeros((EXPERTS, COLUMNS)))
    out = np.zeros_like(x)
    for row, experts in enumerate(chosen):
        for expert, share in zip(experts, shares[row], strict=True):
            gate, up = (
                weights.times(x[row : row + 1], expert, matrix) + bias
                for matrix, bias in enumerate(np.split(up_bias[expert], 2))
            )
            inner = gated(how["gate"], gate, up)
            out[row] += share * (weights.times(inner, expert, 2)[0] + down_bias[expert])
    if "beside" in wide:
        out += wide["beside"] * (sigmoid(wide["beside_gate"]) if "beside_gate" in wide else 1)
    return out * how["residual_scale"] + wide.get("residual", 0), chosen


@pytest.fixture(scope="module", params=["F32", "Q4_0"])
def weights(request):
    return Weights(request.param)


@pytest.mark.parametrize(("attributes", "inputs"), KINDS, ids=IDS)
def test_rows_are_sums_of_their_experts(weights, attributes, inputs):
    attributes = attributes | {"types": ",".join([weights.weight_type] * 3)}
    session = session_of(inputs, **attributes)
    given = fed(inputs, 37)
    out, chosen = session.run(None, given | {"weights": weights.bytes})
    wanted, experts = expected(weights, given, **attributes)
    np.testing.assert_array_equal(chosen, experts)
    error = np.abs(out - wanted) / np.abs(wanted).max()
    # A number on the border between two steps of the rounding may go to either side.
    assert error.max() < (1e-6 if weights.weight_type == "F32" else 1e-2)
    assert np.median(error) < (1e-7 if weights.weight_type == "F32" else 1e-4)
    for rows in (slice(0, 1), slice(36, 37), slice(5, 9)):
        some = {
            name: array[rows] if INPUTS[name][1][0] == "m" else array
            for name, array in given.items()
        }
        again = session.run(None, some | {"weights": weights.bytes})
        np.testing.assert_array_equal(again[0], out[rows])
        np.testing.assert_array_equal(again[1], chosen[rows])


def test_rows_may_have_more_dimensions():
    weights, types = Weights("Q4_0"), "Q4_0,Q4_0,Q4_0"
    inputs = ("residual", "beside", "beside_gate")
    given = fed(inputs, 6)
    flat = session_of(inputs, types=types).run(None, given | {"weights": weights.bytes})
    deep = {name: array.reshape(2, 3, -1) for name, array in given.items()}
    session = session_of(inputs, leading=["b"], types=types)
    out, chosen = session.run(None, deep | {"weights": weights.bytes})
    alone = session_of(inputs, ["out"], types=types).run(None, given | {"weights": weights.bytes})
    np.testing.assert_array_equal(alone[0], flat[0])
    np.testing.assert_array_equal(out, flat[0].reshape(2, 3, COLUMNS))
    np.testing.assert_array_equal(chosen, flat[1])


@pytest.mark.parametrize("real", [0, 1, 4, 6, 9, -1])
def test_padding_is_zero_and_changes_nothing(real):
    weights, types = Weights("Q4_0"), "Q4_0,Q4_0,Q4_0"
    inputs = ("norm", "residual", "beside", "beside_gate")
    given = fed(inputs, 6) | {"weights": weights.bytes}
    out, chosen = session_of(inputs, types=types).run(None, given)
    given |= {"span": np.array([3, real], np.int32)}
    padded = session_of((*inputs, "span"), types=types).run(None, given)
    first = min(max(real, 0), 6)
    np.testing.assert_array_equal(padded[0][:first], out[:first])
    np.testing.assert_array_equal(padded[1][:first], chosen[:first])
    assert not padded[0][first:].any()
    assert not padded[1][first:].any()


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"types": "Q4_0,Q4_0"}, "there are types of gate, up and down"),
        ({"types": "Q4_0,Q4_0,Q3_X"}, "type of weights is unknown"),
        ({"gate": "relu"}, "gate's activation is unknown"),
        ({"scoring": "tanh"}, "scoring is unknown"),
        ({"chosen": 21}, "21 of 20 experts cannot be chosen"),
        ({"experts": -1}, "a count is negative"),
    ],
)
def test_a_node_that_cannot_be_is_refused_by_name(attributes, why):
    with pytest.raises(Exception, match=why):  # ONNX Runtime has classes of its own
        session_of((), **attributes)


@pytest.mark.parametrize(
    ("name", "array", "why"),
    [
        ("rows", np.zeros((2, COLUMNS + 1), np.float32), "do not fit each other"),
        ("rows", np.zeros((0, COLUMNS), np.float32), "rows are none"),
        ("scores", np.zeros((2, EXPERTS - 1), np.float32), "do not fit each other"),
        ("scores", np.zeros((1, EXPERTS), np.float32), "scores has 20 numbers, not 40"),
        ("norm", np.zeros(3, np.float32), "norm has 3 numbers, not 96"),
        ("beside_gate", np.zeros((2, 1), np.float32), "but nothing does"),
        ("weights", np.zeros(PAGE, np.uint8), "weights have 4096 bytes, not 1474560"),
        ("weights", np.zeros(20 * 73728, np.float32), "float"),
        ("span", np.zeros(3, np.int32), "do not fit each other"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(name, array, why):
    given = fed({name}, 2) | {"weights": np.zeros(EXPERTS * 73728, np.uint8)} | {name: array}
    with pytest.raises(Exception, match=why):
        session_of({name}).run(None, given)
