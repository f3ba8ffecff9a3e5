"""Nodes and constants of an ONNX graph under construction; values are known by their names.

In: operators, one after the other. Out: a model. What a decoder is made of is not known here;
`cpu/graph.py` builds the graphs for CPU from it, `qnn/graph.py` those for Qualcomm's HTP.
"""

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from coordgen_rs.runtime.onnx_runtime import KERNEL_DOMAIN

_IR_VERSION = 11
_KERNELS = (
    "Product",
    "Experts",
    "Attention",
    "CausalConvolution",
    "GatedDelta",
    "SelectiveUpdate",
    "SoftCap",
)
_DOMAINS = dict.fromkeys(_KERNELS, KERNEL_DOMAIN)
"""Operators of this package's core."""


class GraphBuilder:
    """A graph that grows node by node."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def node(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Adds a node with one output and returns that output."""
        self.split(operator, inputs, [output], **attributes)
        return output

    def split(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        """Adds a node with any number of outputs, named after the first of them."""
        domain = _DOMAINS.get(operator, "")
        self._nodes.append(
            helper.make_node(
                operator, inputs, outputs, name=outputs[0], domain=domain, **attributes
            )
        )

    def rename_last(self, output: str) -> None:
        """Gives the first output of the last node another name."""
        self._nodes[-1].output[0] = output

    def integers(self, *values: int) -> str:
        """A constant int64 vector."""
        name = "integers_" + "_".join(map(str, values))
        self.constants[name] = helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
        return name

    def number(self, value: float) -> str:
        """A constant float32 scalar."""
        name = f"number_{value!r}"
        self.constants[name] = helper.make_tensor(name, TensorProto.FLOAT, [], [value])
        return name

    def ones(self, count: int) -> str:
        """A constant float32 vector of ones."""
        name = f"ones_{count}"
        self.constants[name] = helper.make_tensor(name, TensorProto.FLOAT, [count], [1.0] * count)
        return name

    def model(
        self,
        name: str,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
        opset: int,
    ) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(self._nodes, name, inputs, outputs, list(self.constants.values()))
        versions = {"": opset} | {it.domain: 1 for it in self._nodes if it.domain}
        opsets = [helper.make_opsetid(*pair) for pair in versions.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def float_info(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    """A float32 input or output; a string is a symbolic dimension."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def byte_info(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    """A uint8 input or output; a string is a symbolic dimension."""
    return helper.make_tensor_value_info(name, TensorProto.UINT8, shape)
