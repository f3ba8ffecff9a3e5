"""Layer after layer of a float model, run on texts and rounded.

In: a checkpoint and texts. Out: what `resume.py` keeps of each layer and of the head. One layer is
in memory at a time, as float32, with the hidden states of all texts; of the head some rows are. It
chooses no encodings, and not how many bits a matrix gets.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.gptq import (
    ColumnIntegers,
    may_have_blocks,
    output_error,
    rounded,
    rounded_in_blocks,
)
from coordgen_rs.convert.graph_builder import float_info
from coordgen_rs.convert.qnn.calibration import Ranges, WatchedGraph
from coordgen_rs.convert.qnn.graph import block_graph, key_value_names, text_inputs
from coordgen_rs.convert.qnn.outliers import (
    Channels,
    channels_apart,
    equalised_channels,
    key_channels,
    usual_first,
    value_channels,
    widen_ranges,
)
from coordgen_rs.convert.qnn.report import normed
from coordgen_rs.convert.qnn.resume import Matrix, PreparedGraph, WorkFolder
from coordgen_rs.convert.texts import CalibrationTexts, by_text, check_finite, first_states

Array = NDArray[np.float32]

HEAD = "head"
HEAD_MATRIX = "logits.weight"
HEAD_BITS = 8
"""The head is more sensitive."""
_HEAD_ROWS = 1024
"""Rows on which the range of the logits is found."""
_MARGIN = 1.1
"""Factor by which that is widened, for rows that were not looked at."""


def layer_name(number: int) -> str:
    """What a layer is called in the work folder."""
    return f"layer_{number:03}"


@dataclass(frozen=True)
class Preparation:
    """How a checkpoint is prepared.

    Attributes:
        source: The checkpoint.
        texts: Token ids of the texts.
        bits: Numbers of bits that the matrices of layers may get.
        context: Most tokens of a request.
        work: Where results are kept.
        ends: The last layer of each block, behind which held-out states are kept.
        on_progress: Called with what comes next, and steps done.
    """

    source: Checkpoint
    texts: CalibrationTexts
    bits: Sequence[int]
    context: int
    work: WorkFolder
    ends: frozenset[int]
    on_progress: Callable[[str, int], None]

    def run(self) -> None:
        """Prepare what is not yet prepared.

        Raises:
            CheckpointError: A tensor is missing, misshaped or damaged, or a layer gives what is not
                finite.
            ExportError: The work folder cannot be written.
        """
        num_layers = self.source.config.num_layers
        for number in range(num_layers):
            if not self.work.has(layer_name(number)):
                self.on_progress(f"layer {number}", number)
                self._prepare_layer(number)
        if not self.work.has(HEAD):
            self.on_progress("head", num_layers)
            self._prepare_head()

    @property
    def _texts(self) -> list[list[int]]:
        return [*self.texts.calibration, *self.texts.held_out]

    def first_states(self) -> Array:
        """The embedding of all tokens of all texts, calibration first: `(tokens, D)`."""
        return first_states(self.source, self._texts)

    def held_out(self, states: Array) -> list[Array]:
        """The states of each text that was not calibrated on, of those of all texts."""
        return by_text(states, self._texts)[len(self.texts.calibration) :]

    def _prepare_layer(self, number: int) -> None:
        name = layer_name(number)
        states = self.work.states(layer_name(number - 1)) if number else self.first_states()
        texts = by_text(states, self._texts)
        calibrated = texts[: len(self.texts.calibration)]
        graph, apart, channels = self._equalised_graph(number, calibrated)
        streams = {f"layer_{number}.attended_rows": f"layer_{number}.after_attention"}
        for activated in ("activated", "activated_apart")[: 2 if apart else 1]:
            streams[f"layer_{number}.{activated}"] = "hidden_out"
        watched, after = WatchedGraph(graph, streams), []
        for index, text in enumerate(texts):
            run = watched.watch if index < len(calibrated) else watched.run
            after.append(run(self._inputs(number, text))["hidden_out"][0])
        check_finite(number, after)
        watched.close()
        widen_ranges(self.source.config, number, watched.ranges, *channels)
        self.work.save(name, _prepared(graph, watched, self.bits, apart), np.concatenate(after))
        if number and number - 1 not in self.ends:
            self.work.forget_states(layer_name(number - 1))

    def _inputs(self, number: int, text: Array) -> dict[str, Array]:
        layers = range(number, number + 1)
        return {"hidden": text[np.newaxis], **text_inputs(self.source.config, layers, len(text))}

    def _equalised_graph(
        self, number: int, texts: Sequence[Array]
    ) -> tuple[onnx.ModelProto, list[int], tuple[Channels, Channels]]:
        """The float graph of a layer whose channels are of like size, and those that are apart.

        Then what is known of the channels of its keys and values.
        """
        config, layers = self.source.config, range(number, number + 1)
        activated = f"layer_{number}.activated"
        graph = block_graph(self.source, layers)
        graph.graph.output.append(float_info(activated, 1, "rows", "n"))
        watched = WatchedGraph(graph)
        sizes, keys, values = np.zeros(config.ffn_size, np.float32), [], []
        for text in texts:
            outputs = watched.run(self._inputs(number, text))
            sizes = np.maximum(sizes, np.abs(outputs[activated][0]).max(0))
            keys.append(outputs[key_value_names(number, "key")[1]][0])
            values.append(outputs[key_value_names(number, "value")[1]][0])
        del watched, graph.graph.output[-1]
        apart = channels_apart(sizes)
        if apart:
            graph = block_graph(self.source, layers, apart={number: apart})
        first = usual_first(self.texts.calibration)
        channels = (
            key_channels(config, number, self.context, keys, first),
            value_channels(values, first),
        )
        equalised_channels(config, number, graph, *channels)
        return graph, apart, channels

    def _prepare_head(self) -> None:
        config, ranges = self.source.config, Ranges()
        num_rows = sum(map(len, self.texts.calibration))
        states = self.work.states(layer_name(config.num_layers - 1))[:num_rows]
        scale = self.source.final_norm_tensor().load()
        rows = normed(states, scale, config.rms_norm_eps)
        for name, values in (("hidden", states), ("norm", rows)):
            ranges.add(name, float(values.min()), float(values.max()))
        products, few = rows.T @ rows, rows[:: max(1, num_rows // _HEAD_ROWS)]
        parts = []
        for piece in self.source.output_tensor().pieces():
            weight = np.ascontiguousarray(piece.T)
            logits = few @ weight * np.float32(_MARGIN)
            ranges.add("logits", float(logits.min()), float(logits.max()))
            parts.append(rounded(weight, products, HEAD_BITS))
        integers = ColumnIntegers(
            np.concatenate([part.values for part in parts], 1),
            np.concatenate([part.steps for part in parts]),
            HEAD_BITS,
        )
        matrix = Matrix({HEAD_BITS: integers}, {HEAD_BITS: 0.0}, integers.values.shape)
        constants = {"norm.weight": scale}
        self.work.save(HEAD, PreparedGraph(ranges, {HEAD_MATRIX: matrix}, constants, []))


def _prepared(
    graph: onnx.ModelProto, watched: WatchedGraph, bits: Sequence[int], apart: list[int]
) -> PreparedGraph:
    """The constants of a layer's graph, its matrices rounded."""
    constants = {it.name: numpy_helper.to_array(it) for it in graph.graph.initializer}
    products = (node for node in graph.graph.node if node.op_type == "MatMul")
    entering = {node.input[1]: node.input[0] for node in products if node.input[1] in constants}
    shares = dict.fromkeys(entering, 0.0)  # where nothing is to be chosen, nothing is compared
    if len(bits) > 1:
        shares = _shares(graph, watched, entering, constants)
    matrices = {
        name: _rounded(
            constants.pop(name), watched.products[it], bits, shares[name], watched.num_rows
        )
        for name, it in entering.items()
    }
    floats = {name: it for name, it in constants.items() if it.dtype == np.float32}
    return PreparedGraph(watched.ranges, matrices, floats, apart)


def _shares(
    graph: onnx.ModelProto,
    watched: WatchedGraph,
    entering: Mapping[str, str],
    constants: Mapping[str, Array],
) -> dict[str, float]:
    """Factors, by matrix, from squared errors of its output to losses of the residual stream."""
    sizes = {}  # squared, of all outputs
    for name, it in entering.items():
        given = watched.products[it] @ constants[name], constants[name]
        sizes[name] = float(np.einsum("io,io->", *given, dtype=np.float64)) or 1.0
    num_values = watched.num_rows * graph.graph.output[0].type.tensor_type.shape.dim[-1].dim_value
    return {name: sizes[_writer(name)] / num_values / sizes[name] for name in entering}


def _writer(name: str) -> str:
    """The matrix through which the output of matrix `name` joins the residual stream."""
    layer, part, weight = name.split(".")
    if part in ("q_proj", "k_proj", "v_proj"):
        return f"{layer}.attention_out.{weight}"
    return f"{layer}.{part.replace('gate', 'down').replace('up', 'down')}.{weight}"


def _rounded(
    weight: Array, products: Array, bits: Sequence[int], share: float, num_rows: int
) -> Matrix:
    """A matrix in each number of bits; `share` turns squared errors of what it gives into losses.

    The loss of one that does not write to the residual stream is taken to be the same share of what
    comes of it there.
    """
    forms = {
        number: rounded_in_blocks(weight, products, number, num_rows)
        if may_have_blocks(len(weight), number)
        else rounded(weight, products, number)
        for number in bits
    }
    losses = {
        number: share and output_error(weight, products, integers) * share
        for number, integers in forms.items()
    }
    return Matrix(forms, losses, weight.shape)
