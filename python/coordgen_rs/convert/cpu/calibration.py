"""Weights whose inputs are known: later columns make good what earlier ones lost.

In: a checkpoint, and token ids of some texts. Out: layer after layer, its matrices as integers of
4 bits.

The float model reads the texts, by the graphs for CPU: one decoder layer is in memory at a time, as
float32, with its inputs. Then each matrix is rounded so that what it gives changes least
(`../gptq.py`). All inputs are those of the float model.
Columns keep their order, and the grid of each block of 32 is searched (`../quantize.py`) when its
first column comes up, with each column counting by the mean square of its input. On SmolLM2-135M
(Q4_1) the divergence of the outputs falls from 0.27, of a search alone, to 0.14, on texts of
another kind than the 16 that it was calibrated on.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from coordgen_rs.bundle.layers import experts_input
from coordgen_rs.bundle.rope import tables_by_input
from coordgen_rs.convert.containers.tensor import StoredBlocks, Tensor
from coordgen_rs.convert.cpu.graph import block_graph
from coordgen_rs.convert.cpu.layers import state_sizes, write_layer
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.families.model_config import ModelConfig, linear_layers
from coordgen_rs.convert.gptq import RoundInput, compensated, spreading
from coordgen_rs.convert.graph_builder import float_info
from coordgen_rs.convert.quantize import (
    BLOCK_SIZE,
    QUANTIZED_TYPES,
    Grids,
    blocks_of_4,
    num_blocks,
    search_grids,
)
from coordgen_rs.convert.texts import by_text, check_finite, first_states
from coordgen_rs.convert.weight_file import WeightWriter
from coordgen_rs.convert.writer import HashedFile
from coordgen_rs.runtime.caches.kv_cache import KV_FORMS, row_bytes
from coordgen_rs.runtime.onnx_runtime import cpu_session, set_threads

_Array = NDArray[np.float32]


def compensated_layers(
    source: Checkpoint, texts: Sequence[Sequence[int]]
) -> Iterator[Mapping[str, Tensor]]:
    """The matrices of each decoder layer in order, in blocks that are held in memory.

    Args:
        source: The checkpoint.
        texts: Token ids to calibrate on; at least one text, none of them empty.

    Raises:
        CheckpointError: A tensor is missing, misshaped or damaged, or what enters a layer is too
            large to compensate for.
        OSError: The temporary directory cannot be written.
    """
    for number, inputs in enumerate(watch_inputs(source, texts)):
        layer: dict[str, Tensor] = {}
        for part, names in linear_layers(source.config, number).items():
            full = [f"model.layers.{number}.{name}.weight" for name in names]
            tensors = [source.tensors[name] for name in full]
            weight = np.concatenate([tensor.load() for tensor in tensors])
            rounded, start = compensated_rows(weight, inputs[part]), 0
            for name, tensor in zip(full, tensors, strict=True):
                layer[name] = replace(tensor, blocks=_held(rounded[start:]))
                start += tensor.shape[0]
        yield layer


def _held(blocks: NDArray[np.uint8]) -> StoredBlocks:
    """Blocks that are in memory."""
    return StoredBlocks(QUANTIZED_TYPES[4], lambda start, stop: blocks[start:stop])


def compensated_rows(weight: _Array, entering: _Array) -> NDArray[np.uint8]:
    """A matrix `(out_features, in_features)` in blocks of 4 bits, as `quantize_rows` gives them.

    Args:
        weight: The matrix.
        entering: Rows of what it is multiplied by, `(tokens, in_features)`.

    Raises:
        CheckpointError: What enters it cannot be compensated for, or weights are too large.
    """
    n, features = weight.shape
    size = num_blocks(features) * BLOCK_SIZE
    left = np.zeros((size, n), np.float32)
    left[:features] = weight.T
    with np.errstate(over="ignore", invalid="ignore"):  # told by `spreading`
        products = entering.T @ entering
    spread = np.eye(size, dtype=np.float32)
    spread[:features, :features] = spreading(products)
    importance = np.ones(size, np.float32)
    importance[:features] = np.square(entering).mean(0)
    found: list[Grids] = []

    def on_grids(start: int, columns: _Array) -> RoundInput:
        blocks = np.ascontiguousarray(columns.T)
        found.append(search_grids(blocks, importance[start : start + BLOCK_SIZE]))
        grids = Grids(found[-1].steps[:, 0], found[-1].zeros[:, 0])

        def rounded(_: int, column: _Array) -> tuple[_Array, _Array]:
            values = grids.values(column)
            return values, grids.weights(values)

        return rounded

    with np.errstate(over="ignore", invalid="ignore"):  # told by `blocks_of_4`
        values = compensated(left, spread, BLOCK_SIZE, on_grids)
    steps, zeros = (
        np.concatenate([getattr(grids, it) for grids in found], 1) for it in ("steps", "zeros")
    )
    return blocks_of_4(values.T.reshape(n, -1, BLOCK_SIZE), steps, zeros, "a layer")


def watch_inputs(source: Checkpoint, texts: Sequence[Sequence[int]]) -> Iterator[dict[str, _Array]]:
    """Run the float model over some texts.

    A layer at a time lies in a temporary file. Time: one float32 forward pass of all texts.

    Args:
        source: The checkpoint.
        texts: Token ids; at least one text, none of them empty.

    Yields:
        Of each decoder layer in order, what enters its linear layers but experts, by their names:
        the rows of all tokens of all texts, `(tokens, in_features)`.

    Raises:
        CheckpointError: A tensor is missing, misshaped or damaged, or a layer gives what is not
            finite.
        OSError: The temporary directory cannot be written.
    """
    config = source.config.within(max(map(len, texts)))
    set_threads(None)
    states = by_text(first_states(source, texts), texts)
    with tempfile.TemporaryDirectory(prefix="coordgen-calibration-") as directory:
        for number in range(config.num_layers):
            layer = _FloatLayer(source, config, number, Path(directory))
            outputs = [layer.run(state) for state in states]
            del layer  # its weights' file is written anew
            states = [hidden for hidden, *_ in outputs]
            check_finite(number, states)
            inputs = zip(*(it for _, *it in outputs), strict=True)
            linear = linear_layers(config, number)
            yield dict(zip(linear, map(np.concatenate, inputs), strict=True))


class _FloatLayer:
    """One decoder layer in float32, from the start of a text, which tells the linear inputs too."""

    def __init__(
        self, source: Checkpoint, config: ModelConfig, number: int, directory: Path
    ) -> None:
        self._config, self._number = config, number
        path = directory / "layer.weights"
        with path.open("wb") as stream:
            writer = WeightWriter(path.name, HashedFile(stream), None)
            write_layer(source, writer, number)
        self._experts: dict[str, NDArray[np.uint8]] = {}
        if (experts := writer.weights.experts.get(number)) is not None:
            place = experts.offset, (experts.num_bytes,)
            self._experts[experts_input(number)] = np.memmap(path, np.uint8, "r", *place)
        graph = block_graph(config, writer.weights, range(number, number + 1))
        products = {node.name: node for node in graph.graph.node}
        parts = linear_layers(config, number)
        self._watched = [_read(products[f"layer_{number}.{part}"], graph) for part in parts]
        graph.graph.output.extend(float_info(name, 1, "rows", "n") for name in self._watched)
        self._session = cpu_session(graph.SerializeToString(), directory)
        self._inputs = [item.name for item in self._session.get_inputs()]

    def run(self, hidden: _Array) -> list[_Array]:
        """What the layer makes of a text's `hidden (tokens, D)`, and what enters its products."""
        num_rows, config = len(hidden), self._config
        inputs: dict[str, NDArray[Any]] = {"hidden": hidden[np.newaxis]}
        inputs |= _text(num_rows)
        for name, table in tables_by_input(num_rows, config).items():
            inputs[name] = table[np.newaxis, np.newaxis]
        inputs |= self._before(num_rows) | self._experts
        given = {name: inputs[name] for name in self._inputs}
        found = self._session.run(["hidden_out", *self._watched], given)
        return [np.asarray(rows[0], np.float32) for rows in found]

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
