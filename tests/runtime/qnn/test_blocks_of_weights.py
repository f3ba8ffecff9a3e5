"""4-bit weights whose steps differ between blocks, on the emulator."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from coordgen_rs.bundle.qnn import Encoding
from coordgen_rs.convert.gptq import rounded_in_blocks
from coordgen_rs.convert.qnn.quantize import matrix_tensors, read_in_blocks
from coordgen_rs.runtime.qnn.options import soc_named
from coordgen_rs.runtime.qnn.provider import qnn_session
from qnn_bundles import needs_emulator

pytestmark = needs_emulator

IN, OUT = 96, 64


def constants(name, encoding):
    return [
        numpy_helper.from_array(np.float32(encoding.scale), f"{name}_step"),
        numpy_helper.from_array(np.uint16(encoding.zero_point), f"{name}_zero"),
    ]


def product(integers, entering, leaving, rows):
    """A graph of one product in fixed point."""
    nodes = [
        helper.make_node("DequantizeLinear", ["in", "in_step", "in_zero"], ["x"]),
        helper.make_node("DequantizeLinear", ["m.values", "m.steps", "m.zeros"], ["m"], axis=1),
        helper.make_node("MatMul", ["x", "m"], ["y"]),
        helper.make_node("QuantizeLinear", ["y", "out_step", "out_zero"], ["out"]),
    ]
    tensors = [*matrix_tensors("m", integers), *constants("in", entering)]
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("in", TensorProto.UINT16, [1, rows, IN])],
        [helper.make_tensor_value_info("out", TensorProto.UINT16, [1, rows, OUT])],
        [*tensors, *constants("out", leaving)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    read_in_blocks(model, "m")
    return model


@pytest.mark.parametrize("soc", ["8-gen-2", "8-elite"])
def test_weights_in_blocks_are_multiplied_exactly_at_every_width(tmp_path, soc):
    generator = np.random.default_rng(5)
    rows = generator.standard_normal((8, IN)).astype(np.float32)
    sizes = generator.uniform(0.2, 1, (IN, 1))
    weight = (generator.standard_normal((IN, OUT)) * sizes).astype(np.float32)
    integers = rounded_in_blocks(weight, rows.T @ rows, 4, len(rows))
    entering, leaving = Encoding.symmetric(5), Encoding.symmetric(60)
    given = entering.quantize(rows)
    expected = entering.dequantize(given) @ integers.floats()
    results = {}
    for width in (1, 8):
        path = tmp_path / f"{width}.onnx"
        path.write_bytes(product(integers, entering, leaving, width).SerializeToString())
        session = qnn_session(path, soc_named(soc))
        parts = np.split(given[np.newaxis], 8 // width, 1)
        results[width] = np.concatenate([session.run(None, {"in": it})[0] for it in parts], 1)
    assert (results[1] == results[8]).all()
    assert np.abs(leaving.dequantize(results[8][0]) - expected).max() < 2 * leaving.scale
