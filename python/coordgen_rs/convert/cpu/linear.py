"""Linear layers in a graph, with norms and gates.

In: the name of rows in the graph, and where weights are. Out: a node, which does it all. The layers
of a decoder, and what lies around them, are in `graph.py`.
"""

from dataclasses import dataclass

from onnx import TensorProto

from coordgen_rs.convert.graph_builder import GraphBuilder
from coordgen_rs.convert.weight_file import StoredLinear, StoredTensor

ROWS = "rows"
"""The symbolic dimension of rows."""
SEQUENCES = "num_sequences"
"""The symbolic dimension of what is kept for each sequence."""


@dataclass(frozen=True)
class Norm:
    """An RMSNorm of the last dimension."""

    name: str
    weight: StoredTensor
    epsilon: float


@dataclass(frozen=True)
class Rows:
    """What a linear layer reads."""

    x: str
    """`(.., M, in)`, or with a gate `(.., M, 2 * in)`."""
    norm: Norm | None = None
    """What they get first."""
    gate: str = ""
    """`silu`, `gelu_tanh`, `sigmoid` or `clamped_swiglu`: the second half, gated by the first, is
    read."""


class LayerGraph(GraphBuilder):
    """A graph whose weights stand in files of the bundle."""

    def weight(self, name: str, stored: StoredTensor) -> str:
        """A weight that stays in its file."""
        tensor = TensorProto(name=name, data_type=stored.onnx_type, dims=stored.shape)
        stored.refer(tensor)
        self.constants[name] = tensor
        return name

    def normed(self, x: str, norm: Norm) -> str:
        """What a norm makes of `x`."""
        weight = self.weight(f"{norm.name}.weight", norm.weight)
        how = {"axis": -1, "epsilon": norm.epsilon}
        return self.node("RMSNormalization", [x, weight], norm.name, **how)

    def product(self, name: str, rows: Rows, layer: StoredLinear, stream: str = "") -> str:
        """The rows times the layer's weight, plus its bias: `(.., M, out)`.

        Plus `stream (.., M, out)`, where one is named.
        """
        bias = self.weight(f"{name}.bias", layer.bias) if layer.bias else ""
        norm = self.weight(f"{rows.norm.name}.weight", rows.norm.weight) if rows.norm else ""
        weights = [self.weight(f"{name}.weight_{i}", it) for i, it in enumerate(layer.segments)]
        return self.node(
            "Product",
            [rows.x, norm, stream, bias, *weights],
            name,
            columns=layer.in_features,
            sizes=layer.sizes,
            types=",".join(layer.types),
            epsilon=rows.norm.epsilon if rows.norm else 0.0,
            gate=rows.gate,
        )
