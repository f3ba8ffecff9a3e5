"""What a float graph does on real text: the range of every value, and what enters its matrices.

In: a float graph and inputs. Out: the lowest and highest value of each tensor, and products of what
enters each matrix. It chooses no encodings (`encodings.py`) and rounds nothing
(`../rounding.py`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from coordgen_rs.convert.graph_builder import float_info
from coordgen_rs.runtime.onnx_runtime import cpu_session, set_threads

Array = NDArray[np.float32]

_LOW, _HIGH = "lowest ", "highest "
_LEAST_SQUARE = np.float32(1e-12)


@dataclass
class Ranges:
    """Lowest and highest value of each tensor of one graph, so far."""

    by_name: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, name: str, low: float, high: float) -> None:
        """Widen the range of a tensor."""
        old_low, old_high = self.by_name.get(name, (low, high))
        self.by_name[name] = min(low, old_low), max(high, old_high)

    def join(self, other: "Ranges", names: Mapping[str, str]) -> None:
        """Widen all ranges of another graph, some under other names."""
        for name, (low, high) in other.by_name.items():
            self.add(names.get(name, name), low, high)

    def largest(self, names: Iterable[str]) -> float:
        """Largest magnitude of some tensors."""
        return max(abs(bound) for name in names for bound in self.by_name[name])


class WatchedGraph:
    """A float graph on CPU that notes what it computes.

    Args:
        graph: The graph.
        streams: Values that are products of a matrix added to something, by the value that enters
            the matrix: an error in the product counts by what it is added to.

    Attributes:
        ranges: The ranges of all runs so far.
        products: Products of each channel with each, by the value that enters a matrix, summed
            over all rows, `(in_features, in_features)`. A row that ends in a stream is in units of
            the stream's root mean square there, because a norm is the next to read it.
        num_rows: The number of those rows.
    """

    def __init__(self, graph: onnx.ModelProto, streams: Mapping[str, str] | None = None) -> None:
        self._streams = dict(streams or {})
        nodes = graph.graph.node
        names = [name for node in nodes for name in node.output]
        names += [item.name for item in graph.graph.input]
        constants = {tensor.name for tensor in graph.graph.initializer}
        products = [node for node in nodes if node.op_type == "MatMul"]
        entering = {node.input[0] for node in products if node.input[1] in constants}
        outputs = [item.name for item in graph.graph.output]
        extra = sorted((entering | set(self._streams.values())) - set(outputs))
        watched = onnx.ModelProto()
        watched.CopyFrom(graph)
        watched.graph.output.extend(float_info(name, 1, "rows", "n") for name in extra)
        for name in names:
            for prefix, operator in ((_LOW, "ReduceMin"), (_HIGH, "ReduceMax")):
                watched.graph.node.append(
                    helper.make_node(operator, [name], [prefix + name], keepdims=0)
                )
                watched.graph.output.append(float_info(prefix + name))
        set_threads(None)
        self._session = cpu_session(watched.SerializeToString())
        self._inputs = [item.name for item in self._session.get_inputs()]
        self._names, self._entering = names, sorted(entering)
        self._outputs, self._extra = outputs, extra
        self.ranges, self.num_rows = Ranges(), 0
        self.products: dict[str, Array] = {}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The graph's own outputs by name; nothing is noted."""
        given = {name: inputs[name] for name in self._inputs}
        values = self._session.run(self._outputs, given)
        return dict(zip(self._outputs, values, strict=True))

    def watch(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run as `run` does, and note all values."""
        given = {name: inputs[name] for name in self._inputs}
        bounds = [prefix + name for name in self._names for prefix in (_LOW, _HIGH)]
        names = [*self._outputs, *self._extra, *bounds]
        outputs: dict[str, Array] = dict(zip(names, self._session.run(names, given), strict=True))
        for name in self._names:
            self.ranges.add(name, float(outputs[_LOW + name]), float(outputs[_HIGH + name]))
        for name in self._entering:
            self._note(name, outputs)
        self.num_rows += outputs[self._outputs[0]].shape[1]
        return {name: outputs[name] for name in self._outputs}

    def close(self) -> None:
        """Release the graph; what was noted stays."""
        del self._session

    def _note(self, name: str, outputs: Mapping[str, Array]) -> None:
        rows = outputs[name][0]
        if name in self._streams:
            stream = outputs[self._streams[name]][0]
            rows = rows / np.sqrt(np.square(stream).mean(-1, keepdims=True) + _LEAST_SQUARE)
        products = rows.T @ rows
        self.products[name] = self.products[name] + products if name in self.products else products
