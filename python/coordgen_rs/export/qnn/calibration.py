"""What range every value of the float graphs takes on real text.

In: float graphs, run by `text_model.py`. Out: the lowest and highest value of each tensor. It
chooses no encodings (`encodings.py`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import helper

from coordgen_rs.export.graph_builder import float_info
from coordgen_rs.export.qnn.text_model import Array
from coordgen_rs.target.onnx_runtime import cpu_session, set_threads

_LOW, _HIGH = "lowest ", "highest "


@dataclass
class Ranges:
    """Lowest and highest value of each tensor of one graph, so far."""

    by_name: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, name: str, low: float, high: float) -> None:
        """Widen the range of a tensor."""
        old_low, old_high = self.by_name.get(name, (low, high))
        self.by_name[name] = min(low, old_low), max(high, old_high)

    def largest(self, names: Iterable[str]) -> float:
        """Largest magnitude of some tensors."""
        return max(abs(bound) for name in names for bound in self.by_name[name])


class WatchedGraph:
    """A float graph on CPU that notes the range of each of its tensors.

    Args:
        graph: The graph.

    Attributes:
        ranges: Of all runs so far.
    """

    def __init__(self, graph: onnx.ModelProto) -> None:
        watched = onnx.ModelProto()
        watched.CopyFrom(graph)
        self._names = [name for node in graph.graph.node for name in node.output]
        self._names += [item.name for item in graph.graph.input]
        for name in self._names:
            for prefix, operator in ((_LOW, "ReduceMin"), (_HIGH, "ReduceMax")):
                node = helper.make_node(operator, [name], [prefix + name], keepdims=0)
                watched.graph.node.append(node)
                watched.graph.output.append(float_info(prefix + name))
        set_threads(None)
        self._session = cpu_session(watched.SerializeToString())
        self._inputs = [item.name for item in self._session.get_inputs()]
        self._outputs = [item.name for item in self._session.get_outputs()]
        self.ranges = Ranges()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The graph's own outputs by name."""
        values = self._session.run(None, {name: inputs[name] for name in self._inputs})
        outputs: dict[str, Array] = dict(zip(self._outputs, values, strict=True))
        for name in self._names:
            self.ranges.add(name, float(outputs.pop(_LOW + name)), float(outputs.pop(_HIGH + name)))
        return outputs
