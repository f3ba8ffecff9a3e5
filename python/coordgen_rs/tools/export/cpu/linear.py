"""Linear layers in a graph, with what stands between them: norms, gates, the residual stream.

In: rows, and where a layer's weights are. Out: nodes for the kind of its weights. The layers of a
decoder, and what lies around them, are in `graph.py`.

In W8A8 (`w8a8.py`) a layer reads rows that a function rounded, and gives products that still lack
the scales of their rows, and where those are fine are yet to be joined. What reads them does that,
so that hardly any node does only that. Queries, keys and values, gate and up read coarse rows.
"""

from dataclasses import dataclass, replace

from onnx import TensorProto, helper

from coordgen_rs.tools.export.checkpoints.config import ModelConfig
from coordgen_rs.tools.export.cpu import w8a8
from coordgen_rs.tools.export.graph_builder import GraphBuilder
from coordgen_rs.tools.export.stored import (
    Columns,
    Floats,
    Integers,
    Panels,
    StoredLinear,
    StoredTensor,
)

OPSET = 24


def _is_w8a8(layer: StoredLinear) -> bool:
    """Whether it reads rounded rows."""
    return isinstance(layer.weights, Columns)


@dataclass(frozen=True)
class Rows:
    """What a linear layer reads or gives, `(M, size)`."""

    x: str
    scale: str | None = None
    """`(M, 1)`, which `x` lacks; None where it lacks nothing."""
    is_fine: bool = False
    """Whether `x` is `(2 * M, size)`: all rows, then what rounding left of each."""


@dataclass(frozen=True)
class Residual:
    """The residual stream `(M, D)`, with what has yet to be added to it."""

    stream: str
    product: Rows | None = None


class LayerGraph(GraphBuilder):
    """A graph whose weights stand in files of the bundle."""

    def weight(self, name: str, stored: StoredTensor) -> str:
        """A weight that stays in its file."""
        tensor = TensorProto(name=name, data_type=stored.onnx_type, dims=stored.shape)
        stored.refer(tensor)
        self.constants[name] = tensor
        return name

    def norm(self, name: str, x: str, weight: StoredTensor, epsilon: float) -> str:
        """RMSNorm of the last dimension."""
        scale = self.weight(f"{name}.weight", weight)
        return self.node("RMSNormalization", [x, scale], name, axis=-1, epsilon=epsilon)

    def product(self, name: str, rows: Rows, layer: StoredLinear) -> Rows:
        """`rows (M, in)` times the layer's weight, plus its bias: `(M, out)`."""
        bias = self.weight(f"{name}.bias", layer.bias) if layer.bias else ""
        match layer.weights:
            case Panels() as panels:
                return Rows(self._panels(name, rows.x, layer, panels, "", bias))
            case Floats(values):
                inputs = [rows.x, self.weight(f"{name}.weight", values), bias]
                return Rows(self.node("Gemm", inputs[: 3 if bias else 2], name, transB=1))
            case Columns(values, scales):
                inputs = [rows.x, self.weight(f"{name}.weight", values), self.number(1.0)]
                inputs += [self.weight(f"{name}.scales", scales), self._middle()]
                product = replace(rows, x=self.node("MatMulIntegerToFloat", inputs, name))
                if not bias:
                    return product
                return Rows(self.node("Add", [self.scaled(product), bias], f"{name}.with_bias"))
            case Integers(values, scales, zeros, block_size):
                inputs = [rows.x, self.weight(f"{name}.weight", values)]
                inputs.append(self.weight(f"{name}.scales", scales))
                inputs.append(self.weight(f"{name}.zero_points", zeros) if zeros else "")
                inputs += ["", bias] if bias else []
                sizes = {"K": layer.in_features, "N": layer.out_features}
                # Activations are rounded to 8 bits; level 0 gives one row other bits than many.
                how = {"bits": 8, "block_size": block_size, "accuracy_level": 4}
                return Rows(self.node("MatMulNBits", inputs, name, **sizes, **how))

    def sum(self, name: str, rows: Rows, layer: StoredLinear, panels: Panels, stream: str) -> str:
        """`stream` plus the product of `rows` with a layer in panels, in one node."""
        return self._panels(name, rows.x, layer, panels, stream, "")

    def _panels(
        self, name: str, x: str, layer: StoredLinear, panels: Panels, stream: str, bias: str
    ) -> str:
        weights = [self.weight(f"{name}.weight_{i}", it) for i, it in enumerate(panels.segments)]
        return self.node(
            "Product",
            [x, stream, bias, "", *weights],
            name,
            columns=layer.in_features,
            sizes=panels.sizes,
            types=",".join(panels.types),
        )

    def scaled(self, rows: Rows) -> str:
        """`rows (M, size)` times the scales that they lack, joined with their rests."""
        if rows.scale is None:
            return rows.x
        if rows.is_fine:
            joined, join = f"{rows.x}.whole", w8a8.function(w8a8.JOINED, OPSET)
            self.call(join, [rows.x, rows.scale], joined)
            return joined
        return self.node("Mul", [rows.x, rows.scale], f"{rows.x}.scaled")

    def rows_for(self, layer: StoredLinear, x: str) -> Rows:
        """`x (M, in)` as the layer reads it."""
        return self._rounded(w8a8.FINE_ROWS, [x], x) if _is_w8a8(layer) else Rows(x)

    def normed_for(
        self, layer: StoredLinear, name: str, x: Residual, weight: StoredTensor, epsilon: float
    ) -> tuple[Residual, Rows]:
        """RMSNorm of the residual stream as the layer reads it, and the stream with all added."""
        if not _is_w8a8(layer):
            return x, Rows(self.norm(name, x.stream, weight, epsilon))
        scale = self.weight(f"{name}.weight", weight)
        if x.product is None or x.product.scale is None:
            return x, self._rounded(w8a8.NORM_ROWS, [x.stream, scale], name, epsilon=epsilon)
        inputs = [x.stream, x.product.x, x.product.scale, scale]
        stream, rows = f"{name}.stream", Rows(f"{name}.rows", f"{name}.scale")
        function = w8a8.function(w8a8.JOIN_NORM_ROWS, OPSET)
        self.call(function, inputs, stream, rows.x, f"{name}.scale", epsilon=epsilon)
        return Residual(stream), rows

    def fine_normed_for(
        self, layer: StoredLinear, name: str, x: str, weight: StoredTensor, epsilon: float
    ) -> Rows:
        """RMSNorm of `x (M, in)`, to which nothing is to be added, as the head reads it."""
        if not _is_w8a8(layer):
            return Rows(self.norm(name, x, weight, epsilon))
        scale = self.weight(f"{name}.weight", weight)
        return self._rounded(w8a8.FINE_NORM_ROWS, [x, scale], name, epsilon=epsilon)

    def gated_for(self, layer: StoredLinear, name: str, both: Rows, model: ModelConfig) -> Rows:
        """Activated gates times what they gate, as the layer reads it; `both (M, 2 * ffn_size)`."""
        is_silu = model.activation == "silu"
        if is_silu and _is_w8a8(layer) and both.scale is not None:
            inputs = [both.x, both.scale]
            return self._rounded(w8a8.FINE_GATE_ROWS, inputs, f"{name}.activated")
        gate, up = f"{name}.gate", f"{name}.up"
        sizes = self.integers(model.ffn_size, model.ffn_size)
        self.split("Split", [self.scaled(both), sizes], [gate, up], axis=-1)
        if is_silu:
            gate = self.node("QuickGelu", [gate], f"{name}.silu", alpha=1.0)
        else:
            gate = self.node("Gelu", [gate], f"{name}.gelu", approximate="tanh")
        return self.rows_for(layer, self.node("Mul", [gate, up], f"{name}.activated"))

    def joined(self, x: Residual) -> str:
        """The residual stream `(M, D)` with all that has yet to be added to it."""
        if x.product is None:
            return x.stream
        return self.node("Add", [x.stream, self.scaled(x.product)], f"{x.product.x}.joined")

    def _rounded(self, function: str, inputs: list[str], name: str, **attributes: float) -> Rows:
        rows, scale = f"{name}.rows", f"{name}.scale"
        self.call(w8a8.function(function, OPSET), inputs, rows, scale, **attributes)
        return Rows(rows, scale, function in w8a8.FINE)

    def _middle(self) -> str:
        """The zero point of rounded activations."""
        self.constants["middle"] = helper.make_tensor("middle", TensorProto.UINT8, [], [128])
        return "middle"
