"""Heads that draft further tokens from a target's own states, in a bundle for CPU.

In: a checkpoint that has a head for further tokens (MTP), or a drafter that was published for the
target. Out: weights, and graphs.

Both read a token, embedded as the target embeds it, together with the target's state behind the
token before, and give a state of the same size, from which they go on to the next token. Their
graphs have the inputs of a block (`graph.py`), and besides: previous (1, M, D), the state before
each token, D being the target's hidden size; is_own (1, M, 1), uint8, 1 where that is one that they
have given. A state of the target is normed as its output layer norms it, as published checkpoints
want it (ggml-org/llama.cpp#24025).

A head for further tokens is a decoder layer with attention, of which `hidden` are the embedded
tokens, and hidden_out the state, normed. A second graph takes that to logits, of the first tokens
of the vocabulary alone: those that merges made first are the most frequent, and a draft need not
know the others.

A drafter's layers attend to the target's own keys and values, of the layers that it reads, and
write none; `embedded` are its tokens. Outputs: state (1, M, D), and either logits
(1, M, vocab_size), or, where tokens are in clusters, hidden (1, M, d), its own state before its
output layer, and cluster_scores (1, M, clusters): the tokens of the likeliest ones are scored on
the host.
"""

from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from coordgen_rs.bundle.layers import OUTPUTS, num_bytes
from coordgen_rs.bundle.manifest import AssistantFiles, ClusterFiles
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.cpu.graph import OPSET, decoder, logits_model
from coordgen_rs.convert.cpu.layers import write_layer
from coordgen_rs.convert.families.assistant import Assistant, Clusters
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.families.model_config import ModelConfig
from coordgen_rs.convert.graph_builder import ROWS, LayerGraph, float_info
from coordgen_rs.convert.weight_file import Bits, StoredLinear, Weights, WeightWriter
from coordgen_rs.convert.writer import Staging

MOST_SCORED = 1 << 15
"""Tokens that a head for further tokens scores."""

_PREFIX, _LAYER, _USUAL = "mtp.", "mtp.layers.0.", "model.layers.0."
_NORMS = {
    "embedding_norm": "mtp.pre_fc_norm_embedding",
    "previous_norm": "mtp.pre_fc_norm_hidden",
    "own_norm": "mtp.norm",
    "final_norm": "model.norm",
}
_NAME = "assistant"


def layer_of(source: Checkpoint) -> Checkpoint | None:
    """The layer of a head for further tokens as a checkpoint; None where there is no such head."""
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


def write_mtp(layer: Checkpoint, writer: WeightWriter) -> None:
    """Appends the weights of a head for further tokens.

    Raises CheckpointError for a tensor that is missing, misshaped or damaged, and ExportError if
    the disk is full.
    """
    hidden = layer.config.hidden_size
    joined = layer.tensor(f"{_PREFIX}fc.weight", hidden, 2 * hidden)
    for name, its in _NORMS.items():
        writer.tensor(f"{name}.weight", layer.norm_tensor(its, hidden))
    writer.linear("joined", [joined])
    write_layer(layer, writer, 0)


def mtp_graph(model: ModelConfig, weights: Weights) -> onnx.ModelProto:
    """The graph from embedded tokens and states to states, normed."""
    graph = LayerGraph(weights, model.rms_norm_eps)
    before = _before(graph, "final_norm", "state", model.rms_norm_eps)
    both = [graph.normed("hidden", "embedding_norm"), graph.normed(before, "previous_norm")]
    stream = graph.product("joined", graph.node("Concat", both, "both", axis=-1))
    stream, inputs, outputs = decoder(graph, model, range(1), stream)
    graph.normed(stream, "own_norm")
    graph.rename_last("hidden_out")
    inputs.append(float_info("previous", 1, ROWS, model.hidden_size))
    return graph.model("mtp", [*inputs, _own_info()], outputs, OPSET)


def mtp_logits_graph(model: ModelConfig, output: StoredLinear) -> onnx.ModelProto:
    """The graph from its states to logits of `output`, some of the target's output layer."""
    graph = LayerGraph(Weights(), model.rms_norm_eps)
    graph.product("logits", "hidden", layer=output)
    return logits_model("mtp_head", graph, model, output)


def first_outputs(layer: StoredLinear, most: int) -> StoredLinear:
    """The first outputs of a layer: whole panels of the same file."""
    segments, sizes = [], []
    for segment, weight_type, size in zip(layer.segments, layer.types, layer.sizes, strict=True):
        if most <= 0:
            break
        if size > most:
            size = most // OUTPUTS * OUTPUTS
            length = num_bytes(weight_type, size, layer.in_features)
            segment = replace(segment, num_bytes=length, shape=(length,))
        most -= size
        segments.append(segment)
        sizes.append(size)
    types = layer.types[: len(segments)]
    return StoredLinear(layer.in_features, tuple(segments), types, tuple(sizes))


def drafter_products(assistant: Assistant, bits: tuple[Bits, Bits]) -> list[tuple[Tensor, Bits]]:
    """The linear layers of a drafter, and how each is written; `bits` are as in `write_drafter`."""
    layers, output = bits
    source = assistant.source
    products = [(tensor, layers) for name, tensor in source.tensors.items() if ".layers." in name]
    products += [(assistant.before, layers), (assistant.behind, layers)]
    products.append((source.output_tensor(), output))
    if assistant.clusters is not None:
        products.append((assistant.clusters.centroids, layers))
    return products


def write_drafter(
    assistant: Assistant,
    target: Checkpoint,
    staging: Staging,
    *,
    bits: tuple[Bits, Bits],
    context: int,
) -> AssistantFiles:
    """Write the files of a drafter.

    Args:
        assistant: The drafter.
        target: What it drafts for.
        staging: Where the files go.
        bits: Of its layers, and of its output layer.
        context: Most tokens of a request.

    Raises:
        CheckpointError: A tensor is missing, misshaped or damaged.
        ExportError: The disk is full.
    """
    source, clusters, name = assistant.source, assistant.clusters, f"{_NAME}.weights"
    weights = Weights()
    with staging.create(name) as file:
        of_layers, of_output = (WeightWriter(name, file, its, weights) for its in bits)
        for number in assistant.layers:
            write_layer(source, of_layers, number)
        norm = target.norm_tensor("model.norm", target.config.hidden_size)
        of_layers.tensor("targets_norm.weight", norm)
        of_layers.tensor("hidden.weight", source.final_norm_tensor())
        of_layers.linear("joined", [assistant.before])
        of_layers.linear("state", [assistant.behind])
        if clusters is None:
            of_output.linear("logits", [source.output_tensor()])
        else:
            of_layers.linear("cluster_scores", [clusters.centroids])
    files = None if clusters is None else _write_clusters(clusters, source, staging, bits[1])
    graph = _drafter_graph(assistant, target.config, weights, context)
    staging.write(f"{_NAME}.onnx", graph.SerializeToString())
    return AssistantFiles(
        [name],
        f"{_NAME}.onnx",
        assistant.num_layers,
        source.config.hidden_size,
        assistant.reads,
        files,
    )


def _write_clusters(
    clusters: Clusters, source: Checkpoint, staging: Staging, bits: Bits
) -> ClusterFiles:
    """The output layer, cluster after cluster, and the order of its tokens.

    So a cluster's rows stand side by side: read from all over the layer, they took several times
    as long, longer than a product that scores every token.
    """
    output, ordering = f"{_NAME}_output.weights", f"{_NAME}_tokens.bin"
    with staging.create(output) as file:
        ordered = source.output_tensor().joined([(it, it + 1) for it in clusters.ordering.tolist()])
        stored = WeightWriter(output, file, bits).linear("output", [ordered])
    staging.write(ordering, np.ascontiguousarray(clusters.ordering, "<u4").tobytes())
    return ClusterFiles(clusters.num, clusters.chosen, ordering, output, stored.types[0])


def _drafter_graph(
    assistant: Assistant, target: ModelConfig, weights: Weights, context: int
) -> onnx.ModelProto:
    """The graph from embedded tokens and states to states and scores."""
    model, size = assistant.source.config.within(context), target.hidden_size
    graph = LayerGraph(weights, model.rms_norm_eps)
    before = _before(graph, "targets_norm", "before", target.rms_norm_eps)
    both = graph.node("Concat", ["embedded", before], "both", axis=-1)
    stream = graph.product("joined", both)
    stream, inputs, _ = decoder(graph, model, assistant.layers, stream)
    hidden = graph.normed(stream, "hidden")
    graph.product("state", hidden)
    scores = "logits" if assistant.clusters is None else "cluster_scores"
    graph.product(scores, hidden)
    num_scores = sum(weights.linears[scores].sizes)
    outputs = [float_info("state", 1, ROWS, size), float_info(scores, 1, ROWS, num_scores)]
    if assistant.clusters is not None:
        outputs.append(float_info("hidden", 1, ROWS, model.hidden_size))
    states = [float_info(it, 1, ROWS, size) for it in ("embedded", "previous")]
    others = [info for info in inputs if info.name != "hidden"]
    return graph.model(_NAME, [*states, _own_info(), *others], outputs, OPSET)


def _before(graph: LayerGraph, norm: str, output: str, epsilon: float) -> str:
    """The state before each token: normed where it is the target's."""
    is_own = graph.node("Cast", ["is_own"], "is_own_state", to=TensorProto.BOOL)
    states = ["previous", graph.normed("previous", norm, epsilon)]
    return graph.node("Where", [is_own, *states], output)


def _own_info() -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("is_own", TensorProto.UINT8, [1, ROWS, 1])
