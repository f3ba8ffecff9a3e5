"""Nodes and constants of an ONNX graph under construction; values are known by their names.

In: operators, one after the other. Out: a model. What a decoder is made of is not known here;
`qnn/graph.py` builds the graphs for Qualcomm's HTP of a `GraphBuilder`, `cpu/graph.py` those for
CPU of a `LayerGraph`, whose weights stand in files.
"""

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from coordgen_rs.convert.weight_file import StoredLinear, StoredTensor, Weights
from coordgen_rs.runtime.onnx_runtime import KERNEL_DOMAIN

ROWS = "rows"
"""The symbolic dimension of rows."""
SEQUENCES = "num_sequences"
"""The symbolic dimension of what is kept for each sequence."""
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


class LayerGraph(GraphBuilder):
    """A graph whose weights stand in files of the bundle, under the names that its nodes have.

    Args:
        weights: Where they are.
        epsilon: Of all norms that say no other.
    """

    def __init__(self, weights: Weights, epsilon: float) -> None:
        super().__init__()
        self.weights, self._epsilon = weights, epsilon

    def weight(self, name: str) -> str:
        """A weight that stays in its file; empty where there is none of that name."""
        stored = self.weights.tensors.get(name)
        return "" if stored is None else self._in_file(name, stored)

    def normed(self, x: str, name: str, epsilon: float | None = None) -> str:
        """What the RMSNorm `name` makes of the last dimension of `x`."""
        how = {"axis": -1, "epsilon": self._epsilon if epsilon is None else epsilon}
        return self.node("RMSNormalization", [x, self.weight(f"{name}.weight")], name, **how)

    def product(
        self,
        name: str,
        x: str,
        *,
        norm: str = "",
        gate: str = "",
        stream: str = "",
        layer: StoredLinear | None = None,
    ) -> str:
        """Rows `x (.., M, in)` times a layer's weight, plus its bias: `(.., M, out)`.

        Args:
            name: The node's.
            x: The rows.
            norm: Rows are normed first, where there is a norm of that name.
            gate: `silu`, `gelu_tanh`, `sigmoid` or `clamped_swiglu`: of rows `(.., M, 2 * in)` the
                second half, gated by the first, is read.
            stream: What is added, `(.., M, out)`, where one is named.
            layer: The layer; None for the one that is called as the node is.
        """
        layer = layer or self.weights.linears[name]
        bias, norm = self.weight(f"{name}.bias"), self.weight(f"{norm}.weight")
        weights = [self._in_file(f"{name}.weight_{i}", it) for i, it in enumerate(layer.segments)]
        return self.node(
            "Product",
            [x, norm, stream, bias, *weights],
            name,
            columns=layer.in_features,
            sizes=layer.sizes,
            types=",".join(layer.types),
            epsilon=self._epsilon if norm else 0.0,
            gate=gate,
        )

    def _in_file(self, name: str, stored: StoredTensor) -> str:
        tensor = TensorProto(name=name, data_type=stored.onnx_type, dims=stored.shape)
        stored.refer(tensor)
        self.constants[name] = tensor
        return name


def float_info(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    """A float32 input or output; a string is a symbolic dimension."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def byte_info(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    """A uint8 input or output; a string is a symbolic dimension."""
    return helper.make_tensor_value_info(name, TensorProto.UINT8, shape)
