"""The operator `Product` in ONNX Runtime."""

import numpy as np
import pytest

from coordgen_rs._core import weight_panels, weight_types
from dequantized import dequantized_as, random_blocks, rounded_to_8_bits
from operators import BYTE, FLOAT, operator_session, run_in_place

ALL = ("norm", "residual", "bias")
"""Inputs that may be absent."""


def session_of(segments, columns, absent=(), gate=""):
    """A session of one product; `segments` are pairs of a type and a number of outputs."""
    inputs = {"rows": (FLOAT, ["m", "k"]), "norm": (FLOAT, ["c"])}
    inputs |= {"residual": (FLOAT, ["m", "n"]), "bias": (FLOAT, ["n"])}
    inputs |= {f"weights_{i}": (BYTE, ["b"]) for i in range(len(segments))}
    attributes = {"columns": columns, "sizes": [outputs for _, outputs in segments]}
    attributes |= {"types": ",".join(name for name, _ in segments), "epsilon": 1e-5, "gate": gate}
    return operator_session(
        "Product", inputs, {"products": (FLOAT, ["m", "n"])}, absent, **attributes
    )


def test_segments_bias_and_residual_make_one_row():
    segments = [("Q4_0", 50), ("F16", 16), ("Q4_1", 7)]
    columns, rows = 96, 70
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, columns), np.float32)
    weights = [
        weight_panels(t, random_blocks(t, n, columns // weight_types()[t][0], i))
        for i, (t, n) in enumerate(segments)
    ]
    bias = random.standard_normal(73, np.float32)
    residual = random.standard_normal((rows, 73), np.float32)
    fed = {f"weights_{i}": panels for i, panels in enumerate(weights)}
    session = session_of(segments, columns, ("norm",))
    whole = session.run(None, {"rows": x, "residual": residual, "bias": bias, **fed})[0]
    apart = np.concatenate(
        [
            session_of([segment], columns, ALL).run(None, {"rows": x, "weights_0": panels})[0]
            for segment, panels in zip(segments, weights, strict=True)
        ],
        axis=1,
    )
    np.testing.assert_array_equal(whole, (apart + bias) + residual)
    for row in (0, 33, 69):
        one = {"rows": x[row : row + 1], "residual": residual[row : row + 1], "bias": bias, **fed}
        np.testing.assert_array_equal(session.run(None, one)[0], whole[row : row + 1])


@pytest.mark.parametrize("weight_type", ["F32", "F16", "Q8_0"])
def test_products_may_be_written_over_their_residual(weight_type):
    columns, outputs, rows = 1280, 37, 14
    random = np.random.default_rng(2)
    x = random.standard_normal((rows, columns), np.float32)
    residual = random.standard_normal((rows, outputs), np.float32)
    blocks = random_blocks(weight_type, outputs, columns // weight_types()[weight_type][0], 5)
    fed = {"rows": x, "weights_0": weight_panels(weight_type, blocks)}
    session = session_of([(weight_type, outputs)], columns, ("norm", "bias"))
    (wanted,) = session.run(None, fed | {"residual": residual})
    run_in_place(session, fed | {"residual": residual}, {"products": residual})
    np.testing.assert_array_equal(residual, wanted)


def made(kind, x, weight):
    """Rows as `kind` makes them, in float64."""
    x = x.astype(np.float64)
    if kind == "norm":
        return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    gate, up = np.split(x, 2, axis=1)
    return (gate if kind == "silu" else 1) / (1 + np.exp(-gate)) * up


@pytest.mark.parametrize("kind", ["norm", "silu", "sigmoid"])
def test_rows_are_normed_or_gated_first(kind):
    columns, rows, segment = 160, 40, ("Q8_0", 48)
    random = np.random.default_rng(1)
    size = columns if kind == "norm" else 2 * columns
    x = random.normal(0, 2, (rows, size)).astype(np.float32)
    weight = random.standard_normal(columns, np.float32)
    panels = weight_panels("Q8_0", random_blocks("Q8_0", 48, 5, 3))
    fed = {"weights_0": panels} | ({"norm": weight} if kind == "norm" else {})
    absent, gate = (ALL[1:], "") if kind == "norm" else (ALL, kind)
    session = session_of([segment], columns, absent, gate)
    got = session.run(None, {"rows": x, **fed})[0]
    apart = session_of([segment], columns, ALL).run(
        None, {"rows": made(kind, x, weight).astype(np.float32), "weights_0": panels}
    )[0]
    # A number on the border between two steps of the rounding may go to either side.
    assert np.abs(got - apart).max() < 0.01 * np.abs(apart).max()
    assert (got == apart).mean() > 0.3
    for row in (0, 17, 39):
        one = session.run(None, {"rows": x[row : row + 1], **fed})[0]
        np.testing.assert_array_equal(one, got[row : row + 1])


@pytest.mark.parametrize("weight_type", weight_types())
def test_products_are_those_of_the_files_weights(weight_type):
    columns, outputs = 512, 37
    blocks = random_blocks(weight_type, outputs, columns // weight_types()[weight_type][0], 3)
    x = np.random.default_rng(4).standard_normal((19, columns), np.float32)
    weights = dequantized_as(weight_type, blocks).astype(np.float64)
    is_float = weight_type in ("F16", "BF16", "F32")
    read = x if is_float else rounded_to_8_bits(x, "")
    wanted = read.astype(np.float64) @ weights.T
    session = session_of([(weight_type, outputs)], columns, ALL)
    found = session.run(None, {"rows": x, "weights_0": weight_panels(weight_type, blocks)})[0]
    size = np.abs(x) @ np.abs(weights).T
    # An activation between two steps may be rounded to the other one.
    assert np.abs(found - wanted).max() <= 2e-4 * size.max()
    assert np.median(np.abs(found - wanted) / size) < 1e-6


X, NORM = np.zeros((3, 64), np.float32), np.ones(64, np.float32)
PANELS = weight_panels("Q4_0", random_blocks("Q4_0", 20, 2, 0))


@pytest.mark.parametrize(
    ("gate", "fed", "why"),
    [
        ("", {"rows": X, "weights_0": PANELS[1:]}, "not as long as its sizes say"),
        ("", {"rows": X[:0]}, "do not fit each other"),
        ("", {"rows": np.zeros((3, 128), np.float32)}, "do not fit each other"),
        ("", {"rows": X, "norm": NORM[1:]}, "do not fit each other"),
        ("silu", {"rows": X}, "do not fit each other"),
        ("silu", {"rows": X, "norm": NORM}, "normed or gated, not both"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(gate, fed, why):
    def run():
        absent = [name for name in ALL if name not in fed]
        session_of([("Q4_0", 20)], 64, absent, gate).run(None, {"weights_0": PANELS} | fed)

    with pytest.raises(Exception, match=why):  # ONNX Runtime has classes of its own
        run()


@pytest.mark.parametrize(
    ("segments", "columns", "gate", "why"),
    [
        ([("Q3_X", 20)], 64, "", "type is unknown"),
        ([("Q4_0", 0)], 64, "", "out of range"),
        ([("Q8_0", 20), ("Q6_K", 20)], 288, "", "no whole blocks of a segment's type"),
        ([("Q4_0", 20)], 64, "relu", "activation is unknown"),
    ],
)
def test_products_that_cannot_be_are_refused_by_name(segments, columns, gate, why):
    with pytest.raises(Exception, match=why):
        session_of(segments, columns, ALL, gate)
