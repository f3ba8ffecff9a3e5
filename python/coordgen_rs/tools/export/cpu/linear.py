"""Linear layers in a graph, with norms and gates.

In: the name of rows in the graph, and where weights are. Out: nodes for the kind of the weights.
With weights in panels a node does it all; with others a norm, a gate and a sum are nodes of their
own. The layers of a decoder, and what lies around them, are in `graph.py`.
"""

from dataclasses import dataclass

from onnx import TensorProto

from coordgen_rs.tools.export.graph_builder import GraphBuilder
from coordgen_rs.tools.export.stored import Floats, Integers, Panels, StoredLinear, StoredTensor


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
    """`silu` or `gelu_tanh`: the first half, activated, times the second is read."""


class LayerGraph(GraphBuilder):
    """A graph whose weights stand in files of the bundle."""

    def weight(self, name: str, stored: StoredTensor) -> str:
        """A weight that stays in its file."""
        tensor = TensorProto(name=name, data_type=stored.onnx_type, dims=stored.shape)
        stored.refer(tensor)
        self.constants[name] = tensor
        return name

    def rows_of(self, x: str, size: int, is_flat: bool) -> str:
        """An input `(1, M, size)`, or `(M, size)` where that is what nodes can read."""
        return self.node("Reshape", [x, self.integers(-1, size)], "rows") if is_flat else x

    def give(self, x: str, name: str, size: int, is_flat: bool) -> None:
        """Make what the last node gives the output `name (1, M, size)`."""
        if is_flat:
            self.node("Reshape", [x, self.integers(1, -1, size)], name)
        else:
            self.rename_last(name)

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
        if isinstance(layer.weights, Panels):
            return self._panels(name, rows, layer, layer.weights, stream, bias)
        x = self._read(name, rows, layer)
        match layer.weights:
            case Floats(values):
                inputs = [x, self.weight(f"{name}.weight", values), bias]
                out = self.node("Gemm", inputs[: 3 if bias else 2], name, transB=1)
            case Integers(values, scales, zeros, block_size):
                inputs = [x, self.weight(f"{name}.weight", values)]
                inputs.append(self.weight(f"{name}.scales", scales))
                inputs.append(self.weight(f"{name}.zero_points", zeros) if zeros else "")
                inputs += ["", bias] if bias else []
                how = {"K": layer.in_features, "N": layer.out_features, "block_size": block_size}
                # Activations are rounded to 8 bits; level 0 gives one row other bits than many.
                out = self.node("MatMulNBits", inputs, name, bits=8, accuracy_level=4, **how)
        return self.node("Add", [stream, out], f"{name}.added") if stream else out

    def _panels(
        self, name: str, rows: Rows, layer: StoredLinear, panels: Panels, stream: str, bias: str
    ) -> str:
        norm = self.weight(f"{rows.norm.name}.weight", rows.norm.weight) if rows.norm else ""
        weights = [self.weight(f"{name}.weight_{i}", it) for i, it in enumerate(panels.segments)]
        return self.node(
            "Product",
            [rows.x, norm, stream, bias, "", *weights],
            name,
            columns=layer.in_features,
            sizes=panels.sizes,
            types=",".join(panels.types),
            epsilon=rows.norm.epsilon if rows.norm else 0.0,
            gate=rows.gate,
        )

    def _read(self, name: str, rows: Rows, layer: StoredLinear) -> str:
        """The rows as they are multiplied, by nodes of their own."""
        if rows.norm is not None:
            return self.normed(rows.x, rows.norm)
        if not rows.gate:
            return rows.x
        gate, up = f"{name}.gate", f"{name}.up"
        sizes = self.integers(layer.in_features, layer.in_features)
        self.split("Split", [rows.x, sizes], [gate, up], axis=-1)
        if rows.gate == "silu":
            gate = self.node("QuickGelu", [gate], f"{name}.silu", alpha=1.0)
        else:
            gate = self.node("Gelu", [gate], f"{name}.gelu", approximate="tanh")
        return self.node("Mul", [gate, up], f"{name}.activated")
