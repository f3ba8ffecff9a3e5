"""Mixtures of experts in a graph for CPU.

In: a mixture's sizes, and where its weights are. Out: a node that gives each row to the experts
which a router chooses, and adds what they give to the residual stream. The operator is of this
package's core (`src/ort/mod.rs`).
"""

import onnx

from coordgen_rs.bundle.experts import input_name
from coordgen_rs.convert.cpu.linear import LayerGraph, Rows
from coordgen_rs.convert.families.config.experts import Experts
from coordgen_rs.convert.graph_builder import byte_info
from coordgen_rs.convert.stored import StoredMixture


def experts_info(stored: StoredMixture, layer: int) -> onnx.ValueInfoProto:
    """The input of a layer: the weights of its experts."""
    return byte_info(input_name(layer), stored.experts.place.num_bytes)


def mixture(
    graph: LayerGraph,
    experts: Experts,
    stored: StoredMixture,
    layer: int,
    rows: Rows,
    beside: str,
    residual_scale: float,
) -> str:
    """The stream plus what its experts give for each row.

    Args:
        graph: Grows by it.
        experts: The sizes, and how experts are chosen.
        stored: The weights.
        layer: The layer's number.
        rows: The stream, and the norm that the router and the experts read it with.
        beside: What every row gets besides, named; empty where there is nothing.
        residual_scale: What is added to the stream is multiplied by this.
    """
    name = f"layer_{layer}"
    scores = graph.product(f"{name}.router", rows, stored.router)
    gate = ""
    if stored.beside_gate is not None:
        gate = graph.product(f"{name}.beside_gate", rows, stored.beside_gate)
    beside_experts = {
        "choice_bias": stored.choice_bias,
        "up_bias": stored.up_bias,
        "down_bias": stored.down_bias,
    }
    biases = [
        "" if bias is None else graph.weight(f"{name}.{part}", bias)
        for part, bias in beside_experts.items()
    ]
    norm = rows.norm
    return graph.node(
        "Experts",
        [
            rows.x,
            "" if norm is None else graph.weight(f"{norm.name}.weight", norm.weight),
            scores,
            *biases,
            rows.x,
            beside,
            gate,
            input_name(layer),
            "span",
        ],
        f"{name}.experts",
        columns=stored.router.in_features,
        size=experts.size,
        experts=experts.num,
        chosen=experts.chosen,
        types=",".join(stored.experts.types),
        gate=experts.gate,
        epsilon=0.0 if norm is None else norm.epsilon,
        scoring=experts.scoring,
        normed=int(experts.is_normed),
        share_epsilon=experts.share_epsilon,
        share_scale=experts.share_scale,
        residual_scale=float(residual_scale),
    )
