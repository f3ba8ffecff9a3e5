"""An ONNX graph that is edited in memory: looked at, extended, cut, and rid of what is not used.

In: a model without the contents of its weight files. Out: models of a part of it, as bytes. It
knows no operator's meaning but that of If and Constant.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper


class GraphEdit:
    """A model whose nodes can be replaced; values are known by their names.

    Args:
        model: Belongs to this object from now on.
        reserved: Names for values of its user; values that have them get other names.

    Attributes:
        inputs: The graph's inputs, by name.
        nodes: The nodes, in an order in which they can run.
    """

    def __init__(self, model: onnx.ModelProto, reserved: Iterable[str]) -> None:
        self._model = model
        graph = model.graph
        _rename(graph, set(reserved) - {value.name for value in graph.input})
        self.inputs = {value.name: value for value in graph.input}
        self.nodes: list[onnx.NodeProto] = list(graph.node)
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._producers = {name: node for node in self.nodes for name in node.output if name}

    def producer(self, name: str) -> onnx.NodeProto | None:
        """The node that computes a value; None for inputs and weights."""
        return self._producers.get(name)

    def tensor(self, name: str) -> onnx.TensorProto | None:
        """A value that is fixed in the graph; None if it is computed."""
        node = self.producer(name)
        if node is not None and node.op_type == "Constant":
            return next((item.t for item in node.attribute if item.name == "value"), None)
        return self._initializers.get(name)

    def integer(self, name: str) -> int | None:
        """The integer that a value always is, if it is one and stands in the graph itself."""
        tensor = self.tensor(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        array = numpy_helper.to_array(tensor)
        return int(array.item()) if array.size == 1 and array.dtype.kind == "i" else None

    def depends_on_inputs(self, name: str) -> bool:
        """Whether a value differs from run to run."""
        return any(reached in self.inputs for reached in self._reached([name]))

    def replace(self, node: onnx.NodeProto, others: Iterable[onnx.NodeProto]) -> None:
        """Put other nodes in the place of one."""
        place = next(i for i, one in enumerate(self.nodes) if one is node)
        new = list(others)
        self.nodes[place : place + 1] = new
        for name in node.output:
            self._producers.pop(name, None)
        self._producers |= {name: one for one in new for name in one.output if name}

    def append(self, node: onnx.NodeProto) -> None:
        """Add a node behind all others."""
        self.nodes.append(node)
        self._producers |= dict.fromkeys(node.output, node)

    def external_data(self) -> list[dict[str, str]]:
        """Where the weights outside the model stand: `location`, `offset` and `length` of each."""
        return [
            {entry.key: entry.value for entry in tensor.external_data}
            for tensor in self._initializers.values()
            if tensor.data_location == TensorProto.EXTERNAL
        ]

    def has_hidden_data(self) -> bool:
        """Whether a weight outside the model is none of the graph's own, but some node's."""
        nodes = [*self._model.graph.node, *(n for one in self._model.functions for n in one.node)]
        sparse = [part for one in self._model.graph.sparse_initializer for part in _parts(one)]
        tensors = [*sparse, *(tensor for node in nodes for tensor in _tensors(node))]
        return any(tensor.data_location == TensorProto.EXTERNAL for tensor in tensors)

    def relocate(self, names: Mapping[str, str]) -> None:
        """Read weights from files of other names."""
        for tensor in self._initializers.values():
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = names.get(entry.value, entry.value)

    def unknown_inputs(self, outputs: Iterable[str], known: Iterable[str]) -> list[str]:
        """The graph's inputs, apart from the known ones, that some values are computed from."""
        return sorted((set(self._reached(outputs)) & self.inputs.keys()) - set(known))

    def part(
        self,
        outputs: Sequence[onnx.ValueInfoProto],
        inputs: Sequence[onnx.ValueInfoProto],
        opset: int,
        ir_version: int,
    ) -> onnx.ModelProto:
        """A model that computes `outputs` from `inputs`, with the nodes and weights it needs."""
        reached = set(self._reached([value.name for value in outputs]))
        nodes = [node for node in self.nodes if not reached.isdisjoint(node.output)]
        graph = helper.make_graph(
            nodes,
            "part",
            [value for value in inputs if value.name in reached],
            outputs,
            [tensor for name, tensor in self._initializers.items() if name in reached],
        )
        opsets = {item.domain: item.version for item in self._model.opset_import}
        opsets |= {"": max(opset, opsets.get("", 0)), "com.microsoft": 1}
        opsets = {node.domain: 1 for node in nodes} | opsets
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(*item) for item in opsets.items()],
            ir_version=max(ir_version, self._model.ir_version),
        )
        model.functions.extend(self._model.functions)
        return model

    def _reached(self, names: Iterable[str]) -> Iterator[str]:
        """The names of all values that some values are computed from, and their own."""
        waiting, seen = list(names), set[str]()
        while waiting:
            name = waiting.pop()
            if not name or name in seen:
                continue
            seen.add(name)
            yield name
            node = self._producers.get(name)
            if node is not None:
                waiting += names_read(node)


def _rename(graph: onnx.GraphProto, taken: set[str]) -> None:
    """Give values other names where theirs are taken, in inner graphs, too."""
    for tensor in graph.initializer:
        tensor.name = _other(tensor.name, taken)
    for node in graph.node:
        for names in (node.input, node.output):
            if not taken.isdisjoint(names):
                names[:] = [_other(name, taken) for name in names]
        for inner in _inner_graphs(node):
            _rename(inner, taken)
            for value in inner.output:
                value.name = _other(value.name, taken)


def _other(name: str, taken: set[str]) -> str:
    return f"{name}.of_the_folder" if name in taken else name


def names_read(node: onnx.NodeProto) -> list[str]:
    """The values that a node reads, those that its inner graphs take from outside included."""
    names = list(node.input)
    for inner in _inner_graphs(node):
        names += [name for one in inner.node for name in names_read(one)]
        names += [value.name for value in inner.output]
    return names


def _tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    """The tensors that stand in a node, those of its inner graphs included."""
    for attribute in node.attribute:
        yield from [attribute.t, *attribute.tensors]
        for one in [attribute.sparse_tensor, *attribute.sparse_tensors]:
            yield from _parts(one)
    for inner in _inner_graphs(node):
        yield from inner.initializer
        yield from (part for one in inner.sparse_initializer for part in _parts(one))
        yield from (tensor for one in inner.node for tensor in _tensors(one))


def _parts(tensor: onnx.SparseTensorProto) -> list[onnx.TensorProto]:
    return [tensor.values, tensor.indices]


def _inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that stand in a node, such as the branches of an If."""
    for attribute in node.attribute:
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            yield from (attribute.g, *attribute.graphs)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of a node, by name."""
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}
