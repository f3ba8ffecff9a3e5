"""Sessions of one operator of the crate's kernels in ONNX Runtime."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from coordgen_rs.runtime.onnx_runtime import KERNEL_DOMAIN, cpu_session, set_threads

FLOAT, INTEGER, BYTE = TensorProto.FLOAT, TensorProto.INT32, TensorProto.UINT8

Infos = Mapping[str, tuple[int, int | Sequence[str]]]


def operator_session(
    operator: str, inputs: Infos, outputs: Infos, absent: Sequence[str] = (), **attributes: Any
) -> onnxruntime.InferenceSession:
    """A session of one node.

    Args:
        operator: The node's.
        inputs: Type and sizes by name; a number of sizes where any will do.
        outputs: Type and sizes by name.
        absent: Inputs that it is not given.
        attributes: The node's.
    """
    infos = {
        name: helper.make_tensor_value_info(
            name, kind, [f"{name}_{i}" for i in range(sizes)] if isinstance(sizes, int) else sizes
        )
        for name, (kind, sizes) in {**inputs, **outputs}.items()
    }
    names = ["" if name in absent else name for name in inputs]
    node = helper.make_node(operator, names, list(outputs), domain=KERNEL_DOMAIN, **attributes)
    given = [infos[name] for name in names if name]
    graph = helper.make_graph([node], operator, given, [infos[name] for name in outputs])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(KERNEL_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    set_threads(None)
    return cpu_session(model.SerializeToString())


def run_in_place(
    session: onnxruntime.InferenceSession,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Mapping[str, NDArray[Any]],
) -> None:
    """Run a session that writes its outputs to arrays, which may be inputs, too."""
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    for name, array in outputs.items():
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    session.run_with_iobinding(binding)
