"""The published drafter of a target, in a bundle for CPU.

In: a drafter that fits its target. Out: its weights, and a graph. It reads a token, embedded as the
target embeds it, together with the target's state behind the token before, and gives a state of the
same size, from which it goes on to the next token. Its layers attend to the target's own keys and
values, and write none.

The graph's inputs, M rows: embedded and previous (1, M, D), D being the target's hidden size;
is_own (1, M, 1), uint8, 1 where `previous` is a state that the drafter has given; rotations, a
path, and key_i, value_i of the layers of the target that it reads, all as in `graph.py`. A state of
the target is normed as its output layer norms it. Outputs: state (1, M, D), and either logits
(1, M, vocab_size), or, where tokens are in clusters, hidden (1, M, d), its own state before its
output layer, and cluster_scores (1, M, clusters): the tokens of the likeliest ones are scored on
the host.
"""

import math
from typing import cast

import numpy as np
import onnx
from onnx import TensorProto, helper

from coordgen_rs.bundle.assistant import AssistantFiles, ClusterFiles
from coordgen_rs.bundle.panels import WeightType
from coordgen_rs.convert.cpu.graph import OPSET, decoder
from coordgen_rs.convert.cpu.linear import ROWS, LayerGraph, Norm, Rows
from coordgen_rs.convert.cpu.quantize import BITS_OF_TYPES
from coordgen_rs.convert.families.assistant import Assistant, Clusters
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.graph_builder import float_info
from coordgen_rs.convert.stored import StoredLayer, write_layer
from coordgen_rs.convert.weight_file import (
    Bits,
    StoredExperts,
    StoredLinear,
    StoredTensor,
    WeightWriter,
    written_type,
)
from coordgen_rs.convert.writer import Staging
from coordgen_rs.errors import CheckpointError

_NAME = "assistant"


def weight_bytes(assistant: Assistant, bits: tuple[Bits, Bits]) -> int:
    """What the weights take with such bits of the layers and of the output layer."""
    layers, output = bits
    source = assistant.source
    products = [(tensor, layers) for name, tensor in source.tensors.items() if ".layers." in name]
    products += [(assistant.before, layers), (assistant.behind, layers)]
    products.append((source.output_tensor(), output))
    if assistant.clusters is not None:
        products.append((assistant.clusters.centroids, layers))
    found = sum(
        math.prod(tensor.shape) * BITS_OF_TYPES[written_type(tensor, its)]
        for tensor, its in products
    )
    return int(found / 8)


def write_assistant(
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
    source = assistant.source
    with staging.create(f"{_NAME}.weights") as file:
        writer = WeightWriter(f"{_NAME}.weights", file)
        layers = [
            write_layer(source, writer, number, bits[0], _no_experts) for number in assistant.layers
        ]
        parts = _Parts(assistant, target, writer, bits)
    clusters = assistant.clusters
    files = None if clusters is None else _write_clusters(clusters, source, staging, bits[1])
    graph = _graph(assistant, target, layers, parts, context)
    staging.write(f"{_NAME}.onnx", graph.SerializeToString())
    return AssistantFiles(
        [f"{_NAME}.weights"],
        f"{_NAME}.onnx",
        assistant.num_layers,
        source.config.hidden_size,
        assistant.reads,
        files,
    )


class _Parts:
    """What lies around its layers, appended to their file."""

    def __init__(
        self,
        assistant: Assistant,
        target: Checkpoint,
        writer: WeightWriter,
        bits: tuple[Bits, Bits],
    ) -> None:
        source, clusters = assistant.source, assistant.clusters
        self.targets_norm: StoredTensor = writer.tensor(
            target.norm_tensor("model.norm", target.config.hidden_size)
        )
        self.norm = writer.tensor(source.final_norm_tensor())
        self.before: StoredLinear = writer.linear([assistant.before], bits[0])
        self.behind = writer.linear([assistant.behind], bits[0])
        if clusters is None:
            self.output = writer.linear([source.output_tensor()], bits[1])
        else:
            self.output = writer.linear([clusters.centroids], bits[0])


def _no_experts(parts: object, num: int) -> StoredExperts:
    """Experts, which no drafter has.

    Raises:
        CheckpointError: Always.
    """
    raise CheckpointError(f"a drafter has {num} experts")


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
        stored = WeightWriter(output, file).linear([ordered], bits)
    staging.write(ordering, np.ascontiguousarray(clusters.ordering, "<u4").tobytes())
    weight_type = cast("WeightType", stored.types[0])
    return ClusterFiles(clusters.num, clusters.chosen, ordering, output, weight_type)


def _graph(
    assistant: Assistant,
    target: Checkpoint,
    layers: list[StoredLayer],
    parts: _Parts,
    context: int,
) -> onnx.ModelProto:
    """The graph from embedded tokens and states to states and scores."""
    model, backbone = assistant.source.config.within(context), target.config
    graph = LayerGraph()
    is_own = graph.node("Cast", ["is_own"], "is_own_state", to=TensorProto.BOOL)
    targets = Norm("targets_norm", parts.targets_norm, backbone.rms_norm_eps)
    before = graph.node("Where", [is_own, "previous", graph.normed("previous", targets)], "before")
    both = graph.node("Concat", ["embedded", before], "both", axis=-1)
    stream = graph.product("joined", Rows(both), parts.before)
    stream, inputs, _ = decoder(graph, model, layers, assistant.layers.start, stream)
    hidden = graph.normed(stream, Norm("hidden", parts.norm, model.rms_norm_eps))
    graph.product("state", Rows(hidden), parts.behind)
    size = sum(parts.output.sizes)
    scores = "logits" if assistant.clusters is None else "cluster_scores"
    graph.product(scores, Rows(hidden), parts.output)
    outputs = [
        float_info("state", 1, ROWS, backbone.hidden_size),
        float_info(scores, 1, ROWS, size),
    ]
    if assistant.clusters is not None:
        outputs.append(float_info("hidden", 1, ROWS, model.hidden_size))
    states = [float_info(it, 1, ROWS, backbone.hidden_size) for it in ("embedded", "previous")]
    own = helper.make_tensor_value_info("is_own", TensorProto.UINT8, [1, ROWS, 1])
    others = [info for info in inputs if info.name != "hidden"]
    return graph.model(_NAME, [*states, own, *others], outputs, OPSET)
