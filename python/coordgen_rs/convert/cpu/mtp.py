"""The head for further tokens (MTP) that comes with some checkpoints, in a bundle for CPU.

In: a checkpoint that has one. Out: its weights, and two graphs. It is a decoder layer with
attention, which reads the target's state behind a token together with the token that comes next,
and gives a state from which the output layer tells the token after that. From its own state it goes
on to further tokens.

The layer's graph has the inputs of a block (`graph.py`), where `hidden` are embedded tokens, and
besides: previous (1, M, D), the state before each of them; is_own (1, M, 1), uint8, 1 where that is
one that the head has given. States of the target are normed as its output layer norms them, as
published checkpoints want it (ggml-org/llama.cpp#24025). Its output hidden_out is normed, too. The
second graph takes that to logits, of the first tokens of the vocabulary alone: those that merges
made first are the most frequent, and a draft need not know the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx
from onnx import TensorProto, helper

from coordgen_rs.bundle.panels import OUTPUTS, num_bytes
from coordgen_rs.convert.cpu.graph import OPSET, decoder, head_product
from coordgen_rs.convert.cpu.linear import ROWS, LayerGraph, Norm, Rows
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.graph_builder import float_info
from coordgen_rs.convert.stored import StoredLayer, WriteExperts, write_layer
from coordgen_rs.convert.weight_file import Bits, StoredLinear, StoredTensor, WeightWriter

MOST_SCORED = 1 << 15
"""Tokens that the head scores."""

_PREFIX, _LAYER, _USUAL = "mtp.", "mtp.layers.0.", "model.layers.0."
_NORMS = {
    "embedding": "mtp.pre_fc_norm_embedding",
    "previous": "mtp.pre_fc_norm_hidden",
    "own": "mtp.norm",
    "final": "model.norm",
}


@dataclass(frozen=True)
class StoredMtp:
    """The head's weights in a bundle."""

    norms: dict[str, StoredTensor]
    joined: StoredLinear
    """From an embedded token and a state, one after the other."""
    layer: StoredLayer


def layer_of(source: Checkpoint) -> Checkpoint | None:
    """The head's layer as a checkpoint of one layer; None where there is no such head."""
    if f"{_PREFIX}fc.weight" not in source.tensors:
        return None
    renamed = {
        _USUAL + name.removeprefix(_LAYER): tensor
        for name, tensor in source.tensors.items()
        if name.startswith(_LAYER)
    }
    experts = source.config.experts
    config = replace(
        source.config,
        num_layers=1,
        recurrent=None,
        recurrent_layers=frozenset(),
        experts=experts and replace(experts, layers=frozenset([0])),
    )
    others = {name: it for name, it in source.tensors.items() if ".layers." not in name}
    return replace(source, config=config, tensors=others | renamed)


def write_mtp(
    layer: Checkpoint, writer: WeightWriter, bits: Bits, write_experts: WriteExperts
) -> StoredMtp:
    """Appends the weights of the head; `write_experts` those of its experts.

    Raises CheckpointError for a tensor that is missing, misshaped or damaged, and ExportError if
    the disk is full.
    """
    hidden = layer.config.hidden_size
    joined = layer.tensor(f"{_PREFIX}fc.weight", hidden, 2 * hidden)
    return StoredMtp(
        {key: writer.tensor(layer.norm_tensor(name, hidden)) for key, name in _NORMS.items()},
        writer.linear([joined], bits),
        write_layer(layer, writer, 0, bits, write_experts),
    )


def layer_graph(model: ModelConfig, stored: StoredMtp) -> onnx.ModelProto:
    """The graph from embedded tokens and states to states, normed."""
    graph = LayerGraph()

    def normed(x: str, key: str) -> str:
        return graph.normed(x, Norm(f"{key}_norm", stored.norms[key], model.rms_norm_eps))

    is_own = graph.node("Cast", ["is_own"], "is_own_state", to=TensorProto.BOOL)
    states = ["previous", normed("previous", "final")]
    before = graph.node("Where", [is_own, *states], "state")
    both = [normed("hidden", "embedding"), normed(before, "previous")]
    rows = Rows(graph.node("Concat", both, "both", axis=-1))
    stream = graph.product("joined", rows, stored.joined)
    stream, inputs, outputs = decoder(graph, model, [stored.layer], 0, stream)
    normed(stream, "own")
    graph.rename_last("hidden_out")
    hidden = model.hidden_size
    inputs += [
        float_info("previous", 1, ROWS, hidden),
        helper.make_tensor_value_info("is_own", TensorProto.UINT8, [1, ROWS, 1]),
    ]
    return graph.model("mtp", inputs, outputs, OPSET)


def logits_graph(model: ModelConfig, output: StoredLinear) -> onnx.ModelProto:
    """The graph from its states to logits of the first tokens."""
    return head_product("mtp_head", model.hidden_size, first_outputs(output, MOST_SCORED))


def first_outputs(layer: StoredLinear, most: int) -> StoredLinear:
    """The first outputs of a layer: whole panels of the same file."""
    kept = list(_first_segments(layer, most))
    segments, types, sizes = zip(*kept, strict=True)
    return StoredLinear(layer.in_features, segments, types, sizes)


def _first_segments(layer: StoredLinear, most: int) -> Iterator[tuple[StoredTensor, str, int]]:
    parts = zip(layer.segments, layer.types, layer.sizes, strict=True)
    for segment, weight_type, size in parts:
        if most <= 0:
            return
        if size > most:
            size = most // OUTPUTS * OUTPUTS
            length = num_bytes(weight_type, size, layer.in_features)
            segment = replace(segment, num_bytes=length, shape=(length,))
        most -= size
        yield segment, weight_type, size
