"""What enters the linear layers of a float model on real text.

In: a checkpoint and token ids of some texts. Out: layer after layer, the rows of every such input.
One decoder layer is in memory at a time, as float32, with its inputs; the graphs are those for CPU.
It changes no weights.
"""

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from coordgen_rs.bundle.experts import input_name
from coordgen_rs.bundle.rotation import tables_by_input
from coordgen_rs.convert.checkpoints.checkpoint import Checkpoint
from coordgen_rs.convert.checkpoints.config import ModelConfig
from coordgen_rs.convert.cpu.graph import block_graph
from coordgen_rs.convert.cpu.recurrent import state_sizes
from coordgen_rs.convert.graph_builder import float_info
from coordgen_rs.convert.stored import write_layer
from coordgen_rs.convert.weight_file import WeightWriter
from coordgen_rs.convert.writer import HashedFile
from coordgen_rs.errors import CheckpointError
from coordgen_rs.runtime.caches.kv_cache import KV_FORMS, row_bytes
from coordgen_rs.runtime.onnx_runtime import cpu_session, set_threads

_Array = NDArray[np.float32]

_MIXER, _FEED_FORWARD = ("qkv", "attention_out"), ("gate_up", "down")
_RECURRENT_MIXER = ("projected", "attention_out")
"""The linear layers of a decoder layer, with attention and without; experts are not among them."""


def watch_inputs(source: Checkpoint, texts: Sequence[Sequence[int]]) -> Iterator[dict[str, _Array]]:
    """Run the float model over some texts.

    A layer at a time lies in a temporary file. Time: one float32 forward pass of all texts.

    Args:
        source: The checkpoint.
        texts: Token ids; at least one text, none of them empty.

    Yields:
        Of each decoder layer in order, what enters its linear layers, by their names: the rows of
        all tokens of all texts, `(tokens, in_features)`.

    Raises:
        CheckpointError: A tensor is missing, misshaped or damaged, or a layer gives what is not
            finite.
        OSError: The temporary directory cannot be written.
    """
    config = source.config.within(max(map(len, texts)))
    set_threads(None)
    embedding = source.first_hidden_tensor()
    rows = {token: embedding.read_rows(token, token + 1)[0] for token in set(chain(*texts))}
    states = [np.stack([rows[token] for token in text]) for text in texts]
    with tempfile.TemporaryDirectory(prefix="coordgen-calibration-") as directory:
        for number in range(config.num_layers):
            layer = _FloatLayer(source, config, number, Path(directory))
            outputs = [layer.run(state) for state in states]
            del layer  # its weights' file is written anew
            states = [hidden for hidden, _ in outputs]
            inputs = zip(*(it for _, it in outputs), strict=True)
            yield dict(zip(_linear(config, number), map(np.concatenate, inputs), strict=True))


def _linear(config: ModelConfig, number: int) -> tuple[str, ...]:
    mixer = _RECURRENT_MIXER if number in config.recurrent_layers else _MIXER
    return (*mixer, *_FEED_FORWARD) if config.dense_size(number) else mixer


class _FloatLayer:
    """One decoder layer in float32, from the start of a text, which tells the linear inputs too."""

    def __init__(
        self, source: Checkpoint, config: ModelConfig, number: int, directory: Path
    ) -> None:
        self._config, self._number = config, number
        path = directory / "layer.experts"
        with (directory / "layer.weights").open("wb") as stream, path.open("wb") as experts:
            writer = WeightWriter("layer.weights", HashedFile(stream))
            write_experts = WeightWriter(path.name, HashedFile(experts)).experts
            stored = write_layer(source, writer, number, None, partial(write_experts, bits=None))
        self._experts: dict[str, NDArray[np.uint8]] = {}
        if stored.mixture is not None:
            self._experts[input_name(number)] = np.memmap(path, np.uint8, "r")
        graph = block_graph(config, [stored], number)
        products = {node.name: node for node in graph.graph.node}
        self._watched = [
            _read(products[f"layer_{number}.{part}"], graph) for part in _linear(config, number)
        ]
        graph.graph.output.extend(float_info(name, 1, "rows", "n") for name in self._watched)
        self._session = cpu_session(graph.SerializeToString(), directory)
        self._inputs = [item.name for item in self._session.get_inputs()]

    def run(self, hidden: _Array) -> tuple[_Array, list[_Array]]:
        """What the layer makes of a text's `hidden (tokens, D)`, and what enters its products.

        Raises:
            CheckpointError: That is NaN or infinite.
        """
        num_rows, config = len(hidden), self._config
        inputs: dict[str, NDArray[Any]] = {"hidden": hidden[np.newaxis]}
        inputs |= _text(num_rows)
        for name, table in tables_by_input(num_rows, config).items():
            inputs[name] = table[np.newaxis, np.newaxis]
        inputs |= self._before(num_rows) | self._experts
        given = {name: inputs[name] for name in self._inputs}
        out, *watched = self._session.run(["hidden_out", *self._watched], given)
        if not np.isfinite(out).all():
            raise CheckpointError(
                f"layer {self._number} gives NaN or infinite values on the calibration text"
            )
        return np.asarray(out[0], np.float32), [np.asarray(rows[0]) for rows in watched]

    def _before(self, num_rows: int) -> dict[str, NDArray[np.uint8]]:
        """What the layer keeps of tokens, before the first."""
        config, number = self._config, self._number
        found = {}
        if config.recurrent is not None and number in config.recurrent_layers:
            for sizes in state_sizes(config.recurrent):
                state, updates = sizes.inputs(number)
                found[state] = np.zeros((1, 2, sizes.num_bytes), np.uint8)
                found[updates] = np.zeros((2, sizes.updates_bytes(0)), np.uint8)
            return found
        size = row_bytes(KV_FORMS[0], config.head_dim)
        cache = np.zeros((1, config.num_kv_heads, num_rows, size), np.uint8)
        return {f"{kind}_{number}": cache for kind in ("key", "value")}


def _read(product: onnx.NodeProto, model: onnx.ModelProto) -> str:
    """The rows that a product multiplies, by nodes that norm or gate them as it does."""
    x, norm = product.input[:2]
    given = {it.name: helper.get_attribute_value(it) for it in product.attribute}
    name, activation = f"{product.name}.read", given["gate"].decode()
    if norm:
        epsilon = given["epsilon"]
        nodes = [helper.make_node("RMSNormalization", [x, norm], [name], epsilon=epsilon)]
    elif activation:
        gate, up, activated = f"{name}.gate", f"{name}.up", f"{name}.activated"
        nodes = [
            helper.make_node("Split", [x], [gate, up], axis=-1, num_outputs=2),
            _activation(activation, gate, activated),
            helper.make_node("Mul", [activated, up], [name]),
        ]
    else:
        nodes = [helper.make_node("Identity", [x], [name])]  # no graph gives what it is given
    model.graph.node.extend(nodes)
    return name


def _activation(name: str, x: str, output: str) -> onnx.NodeProto:
    if name == "gelu_tanh":
        return helper.make_node("Gelu", [x], [output], approximate="tanh")
    return helper.make_node({"silu": "Swish", "sigmoid": "Sigmoid"}[name], [x], [output])


def _text(num_rows: int) -> dict[str, NDArray[np.int32]]:
    """What each token of a text descends from: the one before it; it is read as it is."""
    return {
        "parents": np.arange(-1, num_rows - 1, dtype=np.int32),
        "sequences": np.zeros(num_rows, np.int32),
        "lengths": np.zeros(1, np.int32),
        "span": np.array([0, num_rows], np.int32),
        "reads": np.ones(1, np.int32),
        "pending": np.full(1, -1, np.int32),
    }
