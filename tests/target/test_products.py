"""The operator `Product` in ONNX Runtime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from coordgen_rs._core import weight_panels
from coordgen_rs.target.onnx_runtime import cpu_session, set_threads

BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


def random_rows(weight_type, outputs, blocks, seed):
    """Blocks as a GGUF file has them."""
    random = np.random.default_rng(seed)
    rows = random.integers(0, 256, (outputs, blocks, BLOCK_BYTES[weight_type]), np.uint8)
    halves = 4 if weight_type == "Q4_1" else 2
    scales = random.normal(0, 0.01, (outputs, blocks, halves // 2)).astype(np.float16)
    rows[:, :, :halves] = scales.view(np.uint8).reshape(outputs, blocks, halves)
    return rows


def product_model(segments, columns, absent=()):
    """A model of one product; `segments` are pairs of a type and a number of outputs."""
    infos = {
        "rows": (TensorProto.FLOAT, ["m", columns]),
        "residual": (TensorProto.FLOAT, ["m", "n"]),
        "bias": (TensorProto.FLOAT, ["n"]),
        "experts": (TensorProto.INT32, ["m", "e"]),
    } | {f"weights_{i}": (TensorProto.UINT8, ["b"]) for i in range(len(segments))}
    node = helper.make_node(
        "Product",
        ["" if name in absent else name for name in infos],
        ["products"],
        domain="ai.coordgen",
        columns=columns,
        sizes=[outputs for _, outputs in segments],
        types=",".join(name for name, _ in segments),
    )
    graph = helper.make_graph(
        [node],
        "product",
        [
            helper.make_tensor_value_info(name, kind, shape)
            for name, (kind, shape) in infos.items()
            if name not in absent
        ],
        [helper.make_tensor_value_info("products", TensorProto.FLOAT, ["m", "n"])],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.coordgen", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def session_of(*args):
    set_threads(None)
    return cpu_session(product_model(*args))


def test_segments_bias_and_residual_make_one_row():
    segments = [("Q4_0", 50), ("Q8_0", 16), ("Q4_1", 7)]
    columns, rows = 96, 70
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, columns), np.float32)
    weights = [weight_panels(t, random_rows(t, n, 3, i)) for i, (t, n) in enumerate(segments)]
    bias = random.standard_normal(73, np.float32)
    residual = random.standard_normal((rows, 73), np.float32)
    fed = {f"weights_{i}": panels for i, panels in enumerate(weights)}
    session = session_of(segments, columns, ("experts",))
    whole = session.run(None, {"rows": x, "residual": residual, "bias": bias, **fed})[0]
    apart = np.concatenate(
        [
            session_of([segment], columns, ("residual", "bias", "experts")).run(
                None, {"rows": x, "weights_0": panels}
            )[0]
            for segment, panels in zip(segments, weights, strict=True)
        ],
        axis=1,
    )
    np.testing.assert_array_equal(whole, (apart + bias) + residual)
    for row in (0, 33, 69):
        one = {"rows": x[row : row + 1], "residual": residual[row : row + 1], "bias": bias, **fed}
        np.testing.assert_array_equal(session.run(None, one)[0], whole[row : row + 1])


def test_what_does_not_fit_is_refused_by_name():
    rows = weight_panels("Q4_0", random_rows("Q4_0", 20, 2, 0))
    session = session_of([("Q4_0", 20)], 64, ("residual", "bias", "experts"))

    x = np.zeros((3, 64), np.float32)
    for rows_in, panels, why in (
        (x, rows[1:], "not as long as its sizes say"),
        (x[:0], rows, "do not fit each other"),
    ):
        with pytest.raises(Exception, match=why):  # ONNX Runtime has classes of its own
            session.run(None, {"rows": rows_in, "weights_0": panels})
    session = session_of([("Q4_0", 20)], 64, ("residual", "bias"))
    with pytest.raises(Exception, match="experts are not known"):
        session.run(None, {"rows": x, "weights_0": rows, "experts": np.zeros((3, 1), np.int32)})
    for segments in ([("Q3_X", 20)], [("Q4_0", 0)]):
        with pytest.raises(Exception, match=r"type is unknown|out of range"):
            session_of(segments, 64, ("residual", "bias", "experts"))
    onnx.load_from_string(product_model([("Q4_0", 20)], 64))
