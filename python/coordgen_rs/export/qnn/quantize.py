"""Fixed-point forms of the float graphs, for Qualcomm's HTP.

In: a float graph, the ranges of its tensors, and encodings that it shares with other graphs. Out: a
graph with integer inputs and outputs, rows and past still symbolic, and from it graphs of any fixed
width. Since a graph is quantised once, all its widths have the same encodings.

Measured on the emulator, for HTP versions 73 to 81, and why the rules below are as they are:
- A row's bits are the same at every width, and in every slot of the cache, if a layer's past, new
  and joined keys (and values) have one encoding. Otherwise they are up to 0.019 apart.
- The second operand of a product of two activations must have the middle of the integers as its
  zero point. Else a value further than 2^15 (2^7 for uint8) steps from the zero point disturbs its
  whole column of the product, even at weight zero: rows then depend on rows they do not see.
- int4 weights without a tensor of zero points give wrong results.
- Integer inputs and outputs run 2 to 4 times faster than float ones, converted in every run.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationMethod, QuantType
from onnxruntime.quantization.calibrate import TensorData, TensorsData
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.tools.onnx_model_utils import make_dim_param_fixed

from coordgen_rs.bundle.fixed_point import Encoding
from coordgen_rs.errors import ExportError
from coordgen_rs.export.qnn.calibration import Ranges

_ACTIVATION_TYPES = {"uint8": QuantType.QUInt8, "uint16": QuantType.QUInt16}
_WEIGHT_TYPES = {8: QuantType.QInt8, 4: QuantType.QInt4}
_INT4_TYPES = (TensorProto.INT4, TensorProto.UINT4)

Overrides = dict[str, list[dict[str, Any]]]


def quantize_graph(
    graph: onnx.ModelProto,
    ranges: Ranges,
    encodings: Mapping[str, Encoding],
    weight_bits: Literal[8, 4],
) -> onnx.ModelProto:
    """A16W8 or A16W4 form of a float graph.

    Args:
        graph: As `graph.py` builds it.
        ranges: Of every tensor that `encodings` lacks.
        encodings: Those that are given, inputs and outputs of the graph among them.
        weight_bits: Of the matrices, which have a scale for each output feature.

    Raises:
        ExportError: onnxruntime's quantiser left what the HTP gets wrong.
    """
    config = get_qnn_qdq_config(
        graph,
        None,
        activation_type=QuantType.QUInt16,
        weight_type=QuantType.QInt8,
        init_overrides=_activations(encodings) | _weights(graph, weight_bits),
    )
    quantizer = QDQQuantizer(
        onnx.shape_inference.infer_shapes(graph),
        config.per_channel,
        config.reduce_range,
        config.weight_type,
        config.activation_type,
        _tensors_data(ranges),
        [],
        [],
        config.op_types_to_quantize,
        config.extra_options,
    )
    quantizer.quantize_model()
    quantized: onnx.ModelProto = quantizer.model.model
    check_int4(quantized)
    _strip_boundary(quantized, encodings)
    return quantized


def fix_shape(graph: onnx.ModelProto, rows: int, past: int | None) -> onnx.ModelProto:
    """The graph at one width; `past` is the number of slots, None for the head."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(graph)
    sizes = {"rows": rows} | ({} if past is None else {"past": past, "attended": past + rows})
    for name, size in sizes.items():
        make_dim_param_fixed(fixed.graph, name, size)
    return fixed


def check_int4(graph: onnx.ModelProto) -> None:
    """Refuse int4 weights without zero points.

    Raises:
        ExportError: A node reads such weights; the message names it.
    """
    types = {tensor.name: tensor.data_type for tensor in graph.graph.initializer}
    for node in graph.graph.node:
        is_int4 = node.op_type == "DequantizeLinear" and types.get(node.input[0]) in _INT4_TYPES
        if is_int4 and (len(node.input) < 3 or not node.input[2]):
            raise ExportError(
                f"{node.name} reads the int4 weight {node.input[0]} without zero points, which the "
                "HTP gets wrong"
            )


def _activations(encodings: Mapping[str, Encoding]) -> Overrides:
    return {
        name: [
            {
                "quant_type": _ACTIVATION_TYPES[encoding.dtype],
                "scale": np.array(encoding.scale, np.float32),
                "zero_point": np.array(encoding.zero_point, encoding.dtype),
            }
        ]
        for name, encoding in encodings.items()
    }


def _weights(graph: onnx.ModelProto, bits: Literal[8, 4]) -> Overrides:
    """A scale per column of each matrix.

    At 4 bits, clipping the largest weights for a smaller squared error was tried and dropped: it
    takes the embedded model from 83 to 79 % of float's choices, TinyStories-656K from 72 to 75 %.
    """
    return {
        tensor.name: [{"quant_type": _WEIGHT_TYPES[bits], "symmetric": True, "axis": 1}]
        for tensor in graph.graph.initializer
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2
    }


def _tensors_data(ranges: Ranges) -> TensorsData:
    return TensorsData(
        CalibrationMethod.MinMax,
        {
            name: TensorData(lowest=np.float32(low), highest=np.float32(high))
            for name, (low, high) in ranges.by_name.items()
        },
    )


def _strip_boundary(model: onnx.ModelProto, encodings: Mapping[str, Encoding]) -> None:
    """Makes inputs and outputs the integers that the graph computes with."""
    graph = model.graph
    for item in graph.input:
        (quantize,) = (node for node in graph.node if item.name in node.input)
        _rename(graph, quantize.output[0], item.name)
        graph.node.remove(quantize)
    for item in graph.output:
        (dequantize,) = (node for node in graph.node if item.name in node.output)
        integers, inner = dequantize.input[0], f"{item.name}.real"
        if _rename(graph, item.name, inner):
            dequantize.output[0] = inner
        else:
            graph.node.remove(dequantize)
        _rename(graph, integers, item.name)
    for item in [*graph.input, *graph.output]:
        item.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(
            np.dtype(encodings[item.name].dtype)
        )
    del graph.value_info[:]


def _rename(graph: onnx.GraphProto, old: str, new: str) -> bool:
    """Renames a value where it is read, and where a node other than a boundary's gives it out.

    Returns whether anything reads it.
    """
    is_read = False
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new
                is_read = True
        if node.op_type == "QuantizeLinear" and node.output[0] == old:
            node.output[0] = new
    return is_read
