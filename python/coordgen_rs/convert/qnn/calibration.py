"""What a float graph does on real text, and the encodings that are chosen by it.

In: a float graph and inputs. Out: the lowest and highest value of each tensor, and products of what
enters each matrix; of the ranges of all float graphs, an encoding for every input and output, which
graphs share with each other and with the host. What lies inside of one graph only is left to
onnxruntime's quantiser (`quantize.py`, which also tells the rules); nothing is rounded here
(`../gptq.py`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from coordgen_rs.bundle.qnn import CacheEncodings, Encoding, QnnTarget, Soc
from coordgen_rs.convert.families.model_config import ModelConfig
from coordgen_rs.convert.graph_builder import float_info
from coordgen_rs.convert.qnn.graph import (
    REPEATED_MASK,
    has_bare_keys,
    key_value_names,
    masked_scores_name,
    scores_name,
)
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


CacheType = Literal["uint8", "uint16"]

_SOFTMAX_FLOOR = 24.0
"""Scores that far below a row's best weigh 4e-11 each: nothing, even if there are thousands."""


def choose_encodings(
    ranges: Sequence[Ranges],
    layers: Sequence[range],
    cache_type: CacheType,
    soc: Soc,
    most_rotation: float = 1.0,
) -> QnnTarget:
    """The encodings of a model for a chip.

    Args:
        ranges: The ranges of the blocks in order, then of the head.
        layers: The layers of the blocks.
        cache_type: How keys and values are stored.
        soc: The chip.
        most_rotation: Largest cosine or sine.
    """
    blocks = list(zip(ranges, layers, strict=False))
    spans = [
        high - low
        for block, numbers in blocks
        for low, high in (block.by_name[scores_name(number)] for number in numbers)
    ]
    # Scores are clipped to their range, so no masked one can come near any visible one.
    mask_value = -float(math.ceil(max(spans) + _SOFTMAX_FLOOR))
    caches = [_cache(block, number, cache_type) for block, numbers in blocks for number in numbers]
    return QnnTarget(
        soc=soc.name,
        soc_model=soc.model,
        htp_arch=soc.htp_arch,
        mask_value=mask_value,
        mask=Encoding.of_range(mask_value, 0),
        rotation=Encoding.symmetric(most_rotation),
        hidden=[Encoding.of_range(*block.by_name["hidden"]) for block in ranges],
        caches=caches,
        logits=Encoding.of_range(*ranges[-1].by_name["logits"]),
    )


def _cache(block: Ranges, number: int, cache_type: CacheType) -> CacheEncodings:
    """One encoding for past and new keys, one for past and new values."""
    key, value = (
        Encoding.symmetric(block.largest([key_value_names(number, kind)[1]]), cache_type)
        for kind in ("key", "value")
    )
    return CacheEncodings(key, value, key, value)


@dataclass(frozen=True)
class Conversion:
    """A value of 16 bits that one node reads in the encoding of a cache of 8 bits."""

    encoding: Encoding
    reader: str
    """The node's name."""


def block_encodings(
    config: ModelConfig, index: int, layers: range, ranges: Ranges, shared: QnnTarget
) -> tuple[dict[str, Encoding], dict[str, Conversion]]:
    """The given encodings of block `index`, and what is converted on its way to caches of 8 bits.

    Only what is stored has 8 bits. Left to onnxruntime's quantiser, that would also convert what
    enters the value weights, and the weights of attention: SmolLM2 then has 91.5 % of float's
    choices. Keys that are neither normed nor rotated have their encoding, like values, from where
    they are computed.

    Returns:
        Both by tensor.
    """
    encodings = {
        "hidden": shared.hidden[index],
        "hidden_out": shared.hidden[index + 1],
        "mask": shared.mask,
    }
    # No layer of the block may be rotated.
    encodings |= {name: shared.rotation for name in ("cos", "sin") if name in ranges.by_name}
    if REPEATED_MASK in ranges.by_name:
        encodings[REPEATED_MASK] = shared.mask
    converted: dict[str, Conversion] = {}
    for number in layers:
        cache = shared.caches[number]
        for kind, encoding in (("key", cache.key), ("value", cache.value)):
            names = key_value_names(number, kind)
            encodings |= dict.fromkeys(names, encoding)
            if encoding.dtype == "uint8":
                rotary = (f"layer_{number}.{kind}_rotary.{part}" for part in _ROTARY_PARTS)
                tensors = [it for it in (*rotary, f"{names[1]}.by_row") if it in ranges.by_name]
                converted |= dict.fromkeys(tensors, Conversion(encoding, names[1]))
            elif kind == "value" or has_bare_keys(config, number):
                # Reshape and Transpose keep an encoding, so it begins where values are computed.
                encodings[f"layer_{number}.{kind[0]}_proj"] = encoding
        low, high = ranges.by_name[scores_name(number)]
        encodings[masked_scores_name(number)] = Encoding.of_range(low + shared.mask_value, high)
    return encodings, converted


_ROTARY_PARTS = ("centred_first", "centred_second", "centred_rest")
