"""Fixed-point forms of the float graphs, for Qualcomm's HTP.

In: a float graph whose matrices are inputs, the ranges of its tensors, and encodings that it shares
with other graphs. Out: a graph with integer inputs and outputs that lacks its matrices, rows and
past still symbolic; what is to be added for each matrix; and from both graphs of any fixed width.
Since a graph is quantised once, all its widths have the same encodings.

Measured on the emulator, for HTP versions 73 to 81, and why the rules below are as they are:
- A row's bits are the same at every width, and in every slot of the cache, if a layer's past, new
  and joined keys (and values) have one encoding. Otherwise they are up to 0.019 apart.
- The second operand of a product of two activations must have the middle of the integers as its
  zero point. Else a value further than 2^15 (2^7 for uint8) steps from the zero point disturbs its
  whole column of the product, even at weight zero: rows then depend on rows they do not see.
- int4 weights without a tensor of zero points give wrong results, but not those in blocks.
- int4 weights in blocks of 32 are multiplied exactly, and the same at every width, in integers if a
  block's step is 1 to 16 times that of its column, 16 times in the largest, and the provider's
  option `enable_block_quant_weight_optimization` is on (`QnnOptions`). The binary has 8 bits for
  each block.
- Integer inputs and outputs run 2 to 4 times faster than float ones, converted in every run.
"""

import contextlib
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from coordgen_rs.bundle.qnn import Encoding
from coordgen_rs.convert.gptq import BLOCK, ColumnIntegers
from coordgen_rs.convert.qnn.calibration import Conversion, Ranges

_HELPERS = "onnxruntime.tools.pytorch_export_helpers"


def _infer_input_info(*arguments: Any, **options: Any) -> Any:
    """The function that the tools take from their helpers; PyTorch is imported when called."""
    return import_module(_HELPERS).infer_input_info(*arguments, **options)


@contextlib.contextmanager
def _without_pytorch() -> Iterator[None]:
    """Something stands in for the one module of ONNX Runtime's tools that imports PyTorch.

    That takes half a gigabyte of memory and some seconds, wherever it is installed: as much as the
    rest of an export of a small model, and nothing here needs it. PyTorch itself is not hidden:
    another thread may be about to import it.
    """
    if _HELPERS in sys.modules:
        yield
        return
    stand_in = sys.modules[_HELPERS] = ModuleType(_HELPERS)
    vars(stand_in)["infer_input_info"] = _infer_input_info
    try:
        yield
    finally:
        del sys.modules[_HELPERS]


with _without_pytorch():
    from onnxruntime.quantization import CalibrationMethod, QuantType
    from onnxruntime.quantization.calibrate import TensorData, TensorsData
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    from onnxruntime.quantization.quant_utils import add_infer_metadata
    from onnxruntime.tools.onnx_model_utils import make_dim_param_fixed

_ACTIVATION_TYPES = {"uint8": QuantType.QUInt8, "uint16": QuantType.QUInt16}


def quantize_graph(
    graph: onnx.ModelProto,
    ranges: Ranges,
    encodings: Mapping[str, Encoding],
    matrices: Collection[str],
    converted: Mapping[str, Conversion],
) -> onnx.ModelProto:
    """The form of a float graph with 16-bit activations; `matrix_tensors` has yet to be added.

    Args:
        graph: The graph that `graph.py` builds, without matrices.
        ranges: The ranges of all tensors that `encodings` lacks.
        encodings: Those that are given, inputs and outputs of the graph among them.
        matrices: Names of the inputs that stand for matrices.
        converted: The other encoding in which a node reads a tensor, by tensor.
    """
    graph = _with_stand_ins(graph, matrices)
    per_column = {"quant_type": QuantType.QInt8, "symmetric": True, "axis": 1}
    overrides = {name: [_activation(it)] for name, it in encodings.items()}
    overrides |= {name: [per_column] for name in matrices}
    for name, it in converted.items():
        convert = _activation(it.encoding) | {"recv_nodes": {it.reader}}
        overrides[name] = [{"quant_type": QuantType.QUInt16, "convert": convert}]
    config = get_qnn_qdq_config(
        graph,
        None,
        activation_type=QuantType.QUInt16,
        weight_type=QuantType.QInt8,
        init_overrides=overrides,
        add_qtype_converts=False,  # those that are needed are given
    )
    quantizer = QDQQuantizer(
        graph,
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
    for name in matrices:
        _await_matrix(quantized.graph, name)
    _strip_boundary(quantized, encodings)
    return quantized


def matrix_tensors(name: str, integers: ColumnIntegers) -> list[onnx.TensorProto]:
    """The constants that a quantised graph reads for a matrix.

    They are integers, steps, and multiples of steps (`read_in_blocks`) or zero points.
    """
    values, steps, zeros = _matrix_names(name)
    tensors = [
        _integers(values, integers.values, integers.bits),
        numpy_helper.from_array(np.asarray(integers.steps, np.float32), steps),
    ]
    if integers.multiples is not None:
        return [*tensors, numpy_helper.from_array(integers.multiples, _multiples_name(name))]
    # Without a tensor of zero points, int4 weights give wrong results.
    no_zeros = np.zeros(integers.values.shape[1], np.int8)
    return [*tensors, _integers(zeros, no_zeros, integers.bits)]


def read_in_blocks(graph: onnx.ModelProto, name: str) -> None:
    """Make a quantised graph read a matrix whose steps are multiplied in each block.

    The steps of all blocks are products of constants, which ONNX Runtime computes when it loads the
    graph: the file has a byte for each.
    """
    values, steps, _ = _matrix_names(name)
    multiples, by_block = _multiples_name(name), f"{name}.steps_by_block"
    (dequantize,) = (node for node in graph.graph.node if values in node.input)
    dequantize.input[:] = [values, by_block]
    del dequantize.attribute[:]
    dequantize.attribute.extend(
        [helper.make_attribute("axis", 0), helper.make_attribute("block_size", BLOCK)]
    )
    floats = f"{multiples}.floats"
    cast = helper.make_node("Cast", [multiples], [floats], to=TensorProto.FLOAT)
    graph.graph.node.insert(0, cast)
    graph.graph.node.insert(1, helper.make_node("Mul", [floats, steps], [by_block]))


def fix_shape(graph: onnx.ModelProto, rows: int, past: int | None) -> onnx.ModelProto:
    """The graph at one width; `past` is the number of slots, None for the head."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(graph)
    sizes = {"rows": rows} | ({} if past is None else {"past": past, "attended": past + rows})
    for name, size in sizes.items():
        make_dim_param_fixed(fixed.graph, name, size)
    return fixed


def _activation(encoding: Encoding) -> dict[str, Any]:
    return {
        "quant_type": _ACTIVATION_TYPES[encoding.dtype],
        "scale": np.array(encoding.scale, np.float32),
        "zero_point": np.array(encoding.zero_point, encoding.dtype),
    }


def _matrix_names(name: str) -> tuple[str, str, str]:
    return f"{name}.values", f"{name}.steps", f"{name}.zeros"


def _multiples_name(name: str) -> str:
    return f"{name}.multiples"


def _integers(name: str, values: NDArray[np.int8], bits: int) -> TensorProto:
    """Integers in row order; two of 4 bits share a byte, the first in its low half."""
    packed = flat = values.ravel()
    if bits == 4:
        packed = flat[0::2] & np.int8(15)
        packed[: flat.size // 2] |= flat[1::2] << np.int8(4)
    data_type = TensorProto.INT8 if bits == 8 else TensorProto.INT4
    return TensorProto(name=name, data_type=data_type, dims=values.shape, raw_data=packed.tobytes())


def _with_stand_ins(graph: onnx.ModelProto, matrices: Collection[str]) -> onnx.ModelProto:
    """The graph with all types told, and matrices of a single number instead of inputs.

    The quantiser treats only constants as weights, and would hold all of them twice.
    """
    inferred = onnx.shape_inference.infer_shapes(graph)
    add_infer_metadata(inferred)  # or the quantiser would infer again
    for item in [item for item in inferred.graph.input if item.name in matrices]:
        inferred.graph.input.remove(item)
    inferred.graph.initializer.extend(
        numpy_helper.from_array(np.zeros((1, 1), np.float32), name) for name in matrices
    )
    return inferred


def _await_matrix(graph: onnx.GraphProto, name: str) -> None:
    """Makes what is read for a stand-in the constants that are to come."""
    (dequantize,) = (node for node in graph.node if f"{name}_quantized" in node.input)
    for tensor in [tensor for tensor in graph.initializer if tensor.name in dequantize.input]:
        graph.initializer.remove(tensor)
    dequantize.input[:] = _matrix_names(name)


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
