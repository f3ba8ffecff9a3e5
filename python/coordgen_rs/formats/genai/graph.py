"""The decoder graph of a folder of ONNX Runtime GenAI: what it is made of, and what it cannot be.

In: the content of its file. Out: its layers' attention nodes, the place where its head begins, and
facts for the manifest. Weights stay in their files. What cannot be run is refused here by name;
`device.py` makes the graphs that are run, of a `GraphEdit`: looked at, extended, cut, and rid of
what is not used, which knows no operator's meaning but that of If and Constant.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from coordgen_rs.errors import BundleError
from coordgen_rs.formats.genai.config import GenaiConfig

_PRODUCTS = ("MatMul", "MatMulNBits", "Gemm", "MatMulBnb4")
_NORMS = (
    *("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "RMSNormalization"),
    *("LayerNormalization", "SkipLayerNormalization"),
)
_LEAST_OPSET = 13
"""Older operators mean other things than those of today with the same name."""
_UNLIMITED = 1 << 62


class DecoderGraph:
    """A decoder graph, made ready: rotations that switch with the length are fixed to short ones.

    Args:
        path: Its file, for messages.
        content: What the file holds.
        config: What the folder says of it.

    Attributes:
        edit: The graph.
        attention: The attention node of each layer, in order.
        product: The node that makes logits of hidden states.
        hidden: The value that it multiplies: the hidden states of all rows.
        most_positions: The number of positions for which there are rotations.

    Raises:
        BundleError: It is not a graph, or has something that cannot be run; the message names it.
    """

    def __init__(self, path: Path, content: bytes, config: GenaiConfig) -> None:
        self.path, self._config = path, config
        try:
            model = onnx.load_model_from_string(content)
        except Exception as error:  # protobuf raises its own unrelated classes
            raise BundleError(f"{path} is not an ONNX model: {error}") from error
        self.edit = GraphEdit(model, self._reserved())
        self.most_positions = _UNLIMITED
        opset = max((item.version for item in model.opset_import if not item.domain), default=0)
        if opset < _LEAST_OPSET:
            raise self.error(f"its operators are of opset {opset}, too old to be run here")
        if self.edit.has_hidden_data():
            raise self.error("it reads weights in a node's attribute, which is not supported")
        self._check_inputs()
        self._check_logits(model)
        self.product, self.hidden = self._find_head()
        for node in list(self.edit.nodes):
            if node.op_type == "If":
                self._take_short_branch(node)
        self.attention = self._find_attention()
        for node in self.attention:
            if len(node.input) > 7 and node.input[7]:
                positions = self.num_positions(node.input[7])
                self.most_positions = min(self.most_positions, positions)

    def error(self, what: str) -> BundleError:
        """An error that names the file."""
        return BundleError(f"{self.path}: {what}")

    def num_positions(self, name: str) -> int:
        """The positions of a table of cosines or sines.

        Raises:
            BundleError: It is no such table.
        """
        tensor = self.edit.tensor(name)
        if tensor is None or len(tensor.dims) != 2 or min(tensor.dims) < 1:
            raise self.error(f"its rotations {name!r:.60} are not a table that stands in the graph")
        return int(tensor.dims[0])

    @property
    def logits(self) -> str:
        """The name of its output."""
        return self._config.decoder.outputs.logits

    @property
    def norm_epsilon(self) -> float:
        """What the norms add; 0 where there are none."""
        norms = (attributes(node) for node in self.edit.nodes if node.op_type in _NORMS)
        return next((float(found["epsilon"]) for found in norms if "epsilon" in found), 0.0)

    @property
    def weight_bits(self) -> set[int]:
        """The numbers of bits of quantised products; empty for a model that has none."""
        found = [node for node in self.edit.nodes if node.op_type == "MatMulNBits"]
        return {int(attributes(node).get("bits", 4)) for node in found}

    @property
    def ffn_size(self) -> int:
        """The width of the last layer's feed-forward part."""
        products = [node for node in self.edit.nodes if node.op_type in _PRODUCTS]
        for node in reversed(products):
            if node is not self.product:
                weight = self.edit.tensor(node.input[1])
                size = attributes(node).get("K") or (weight.dims[0] if weight else 0)
                return int(size) or self._config.decoder.hidden_size
        return self._config.decoder.hidden_size

    def data_ends(self) -> Iterator[tuple[str, int]]:
        """For each weight outside the graph: its file, and where in it the weight ends.

        Raises:
            BundleError: A place is no number.
        """
        for entry in self.edit.external_data():
            try:
                end = int(entry.get("offset", "0")) + int(entry.get("length", "0"))
            except ValueError as error:
                raise self.error("a weight's place in its file is not a number") from error
            yield entry.get("location", ""), end

    def past_names(self) -> dict[str, tuple[str, int]]:
        """The names of the inputs that hold past keys and values: "key" or "value", and layer."""
        names, layers = self._config.decoder.inputs, range(self._config.decoder.num_hidden_layers)
        patterns = ("key", names.past_key_names), ("value", names.past_value_names)
        return {pattern % layer: (kind, layer) for kind, pattern in patterns for layer in layers}

    def _reserved(self) -> set[str]:
        """The names of what the graphs that are run read and write (`device.py`)."""
        layers = range(self._config.decoder.num_hidden_layers)
        caches = {f"{kind}_{layer}" for kind in ("key", "value") for layer in layers}
        caches |= {f"{name}_out" for name in caches}
        path = {"parents", "sequences", "lengths", "span"}
        return caches | path | {"hidden", "hidden_out", "position_ids"}

    def _check_inputs(self) -> None:
        names, decoder = self._config.decoder.inputs, self._config.decoder
        past, inputs = self.past_names(), self.edit.inputs
        if "inputs_embeds" in inputs:
            raise self.error("it reads embeddings, not token ids (built with exclude_embeds)")
        tokens = {names.input_ids or "input_ids", names.position_ids or "position_ids"}
        tokens |= {names.attention_mask or "attention_mask", "total_sequence_length"}
        for name in inputs.keys() - past.keys() - tokens:
            raise self.error(
                f"it reads {name!r:.60}: a state other than keys and values cannot be taken back"
            )
        missing = sorted(past.keys() - inputs.keys())
        if missing:
            raise self.error(f"it lacks the input {missing[0]!r:.60} that its config names")
        for name in past:
            kind = inputs[name].type.tensor_type
            if kind.elem_type != TensorProto.FLOAT:
                found = TensorProto.DataType.Name(kind.elem_type).lower()
                raise self.error(f"its keys and values are {found}; only float32 can be run")
            sizes = [size.dim_value for size in kind.shape.dim]
            if len(sizes) != 4 or not (
                sizes[1] in (0, decoder.num_key_value_heads) and sizes[3] in (0, decoder.head_size)
            ):
                raise self.error(f"{name} has the shape {sizes}, unlike its config")

    def _check_logits(self, model: onnx.ModelProto) -> None:
        name, size = self._config.decoder.outputs.logits, self._config.vocab_size
        found = next((value for value in model.graph.output if value.name == name), None)
        if found is None:
            raise self.error(f"it lacks the output {name!r:.60} that its config names")
        kind = found.type.tensor_type
        if kind.elem_type != TensorProto.FLOAT:
            raise self.error("its logits are not float32")
        last = kind.shape.dim[-1].dim_value if kind.shape.dim else 0
        if last not in (0, size):
            raise self.error(f"it has {last} logits, its config a vocabulary of {size}")

    def _find_head(self) -> tuple[onnx.NodeProto, str]:
        """The product that makes logits, and what it multiplies, before rows are chosen."""
        name = self._config.decoder.outputs.logits
        node = self.edit.producer(name)
        while node is not None and node.op_type not in _PRODUCTS:
            name = next((one for one in node.input if self.edit.depends_on_inputs(one)), "")
            node = self.edit.producer(name)
        if node is None:
            raise self.error("its logits do not come from a product with the vocabulary")
        return node, self._before_pruning(node.input[0])

    def _before_pruning(self, name: str) -> str:
        """The hidden states of all rows, where a graph goes on with the last one only."""
        unsqueeze = self.edit.producer(name)
        gather = self.edit.producer(unsqueeze.input[0]) if unsqueeze is not None else None
        if unsqueeze is None or unsqueeze.op_type != "Unsqueeze":
            return name
        if gather is None or gather.op_type != "Gather" or attributes(gather).get("axis") != 1:
            return name
        return str(gather.input[0])

    def _take_short_branch(self, node: onnx.NodeProto) -> None:
        """Replace an If on the length by what holds up to that length.

        Keys that were rotated for a short text cannot be used in a long one.
        """
        condition = self.edit.producer(node.input[0])
        limit = None
        if condition is not None and condition.op_type == "Greater":
            limit = self.edit.integer(condition.input[1])
        if limit is None or limit < 1:
            raise self.error(f"{node.name or 'a node'} chooses by a condition that is not known")
        self.most_positions = min(self.most_positions, limit)
        branch = attributes(node)["else_branch"]
        if branch.initializer:
            raise self.error(f"{node.name or 'a node'} holds weights, which is not supported")
        names = {inner.name: outer for inner, outer in zip(branch.output, node.output, strict=True)}
        others = []
        for inner in branch.node:
            other = onnx.NodeProto()
            other.CopyFrom(inner)
            other.output[:] = [names.get(name, name) for name in inner.output]
            others.append(other)
        self.edit.replace(node, others)

    def _find_attention(self) -> list[onnx.NodeProto]:
        past = self.past_names()
        found: dict[int, onnx.NodeProto] = {}
        for node in self.edit.nodes:
            if node.op_type == "GroupQueryAttention" and len(node.input) > 4:
                kinds = [past.get(name) for name in node.input[3:5]]
                layer = kinds[0][1] if kinds[0] else -1
                if kinds != [("key", layer), ("value", layer)] or layer in found:
                    raise self.error(f"{node.name}: its keys and values are not one layer's own")
                found[layer] = node
        others = [n.op_type for n in self.edit.nodes if n.op_type.endswith("Attention")]
        others = [name for name in others if name != "GroupQueryAttention"]
        if others:
            raise self.error(f"its attention is {others[0]}; only GroupQueryAttention can be run")
        layers = self._config.decoder.num_hidden_layers
        if len(found) != layers:
            raise self.error(f"{len(found)} of {layers} layers have GroupQueryAttention")
        return [found[layer] for layer in range(layers)]


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
