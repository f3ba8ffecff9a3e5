"""The operator `Experts` in ONNX Runtime."""

import numpy as np
import pytest

from coordgen_rs._core import weight_panels, weight_types
from dequantized import random_blocks
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
OPTIONAL = [name for name in INPUTS if name not in ("rows", "scores", "weights", "span")]


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


def weights_of(weight_type):
    """All experts' matrices, as the operator reads them."""
    strides = []
    for expert in range(EXPERTS):
        panels = b""
        for number, (outputs, columns) in enumerate(
            [(SIZE, COLUMNS), (SIZE, COLUMNS), (COLUMNS, SIZE)]
        ):
            count = columns // weight_types()[weight_type][0]
            blocks = random_blocks(weight_type, outputs, count, 3 * expert + number)
            panels += weight_panels(weight_type, blocks).tobytes()
        strides.append(panels + bytes(-len(panels) % PAGE))
    return np.frombuffer(b"".join(strides), np.uint8)


def fed(inputs, num_rows, seed=0):
    """Random inputs, of which those named are optional."""
    random = np.random.default_rng(seed)
    sizes = {"c": COLUMNS, "e": EXPERTS, "s": 2 * SIZE, "m": num_rows, "1": 1}
    return {
        name: random.standard_normal([sizes[size] for size in shape], np.float32)
        for name, (kind, shape) in INPUTS.items()
        if kind == FLOAT and name in {"rows", "scores", *inputs}
    }


def test_each_input_is_what_it_is_called():
    """The experts themselves have a twin in the crate."""
    given = fed(OPTIONAL, 37) | {"weights": weights_of("F32")}
    given["down_bias"][:] = given["down_bias"][0]  # shares of a row's experts add up to one
    given["up_bias"][:, :SIZE] = -1e4  # no gate is open
    given["choice_bias"][:] = 100 * np.isin(np.arange(EXPERTS), (3, 7, 11))

    def run(*names, rows=given["rows"], **attributes):
        needed = ("scores", "weights", *names)
        session = session_of(names, **attributes)
        return session.run(None, {name: given[name] for name in needed} | {"rows": rows})

    (alone, chosen), near = run(), {"rtol": 0, "atol": 1e-4}
    best = np.argsort(-given["scores"], axis=1, kind="stable")[:, :CHOSEN]
    np.testing.assert_array_equal(chosen, best)
    assert {*run("choice_bias")[1].flat} == {3, 7, 11}
    gate = 1 / (1 + np.exp(-given["beside_gate"]))
    for names, attributes, expected in (
        (["residual"], {"residual_scale": 0.5}, 0.5 * alone + given["residual"]),
        (["beside"], {}, alone + given["beside"]),
        (["beside", "beside_gate"], {}, alone + gate * given["beside"]),
        (["down_bias"], {}, alone + given["down_bias"][0]),
        (["up_bias"], {}, np.zeros_like(alone)),
    ):
        np.testing.assert_allclose(run(*names, **attributes)[0], expected, **near)
    x = given["rows"]
    normed = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * given["norm"]
    np.testing.assert_allclose(run("norm")[0], run(rows=normed)[0], **near)


def test_rows_may_have_more_dimensions():
    weights, types = weights_of("Q4_0"), "Q4_0,Q4_0,Q4_0"
    inputs = ("residual", "beside", "beside_gate")
    given = fed(inputs, 6)
    flat = session_of(inputs, types=types).run(None, given | {"weights": weights})
    deep = {name: array.reshape(2, 3, -1) for name, array in given.items()}
    session = session_of(inputs, leading=["b"], types=types)
    out, chosen = session.run(None, deep | {"weights": weights})
    alone = session_of(inputs, ["out"], types=types).run(None, given | {"weights": weights})
    np.testing.assert_array_equal(alone[0], flat[0])
    np.testing.assert_array_equal(out, flat[0].reshape(2, 3, COLUMNS))
    np.testing.assert_array_equal(chosen, flat[1])


@pytest.mark.parametrize("real", [0, 1, 4, 6, 9, -1])
def test_padding_is_zero_and_changes_nothing(real):
    weights, types = weights_of("Q4_0"), "Q4_0,Q4_0,Q4_0"
    inputs = ("norm", "residual", "beside", "beside_gate")
    given = fed(inputs, 6) | {"weights": weights}
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
