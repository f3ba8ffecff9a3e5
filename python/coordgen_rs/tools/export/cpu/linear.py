"""Linear layers in a graph, with norms and gates.

In: the name of rows in the graph, and where weights are. Out: nodes for the kind of the weights.
The layers of a decoder, and what lies around them, are in `graph.py`.
"""

from onnx import TensorProto

from coordgen_rs.tools.export.checkpoints.config import ModelConfig
from coordgen_rs.tools.export.graph_builder import GraphBuilder
from coordgen_rs.tools.export.stored import Floats, Integers, Panels, StoredLinear, StoredTensor


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

    def gated(self, name: str, both: str, model: ModelConfig) -> str:
        """Activated gates times what they gate, `(M, ffn_size)`; `both (M, 2 * ffn_size)`."""
        gate, up = f"{name}.gate", f"{name}.up"
        sizes = self.integers(model.ffn_size, model.ffn_size)
        self.split("Split", [both, sizes], [gate, up], axis=-1)
        if model.activation == "silu":
            gate = self.node("QuickGelu", [gate], f"{name}.silu", alpha=1.0)
        else:
            gate = self.node("Gelu", [gate], f"{name}.gelu", approximate="tanh")
        return self.node("Mul", [gate, up], f"{name}.activated")

    def product(self, name: str, x: str, layer: StoredLinear, stream: str = "") -> str:
        """`x (M, in)` times the layer's weight, plus its bias: `(M, out)`.

        Plus `stream (M, out)`, where one is named.
        """
        bias = self.weight(f"{name}.bias", layer.bias) if layer.bias else ""
        match layer.weights:
            case Panels(segments, types, sizes):
                weights = [self.weight(f"{name}.weight_{i}", it) for i, it in enumerate(segments)]
                how = {"columns": layer.in_features, "sizes": sizes, "types": ",".join(types)}
                return self.node("Product", [x, stream, bias, "", *weights], name, **how)
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
