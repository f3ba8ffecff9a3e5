"""The published drafter of a target, beside it in a bundle.

In: what an exporter has written. Out: which files it is, and which of the target's keys and values
it reads. How it drafts is in `runtime/heads/assistant.py`.
"""

from dataclasses import dataclass

from coordgen_rs.bundle.panels import WeightType


@dataclass(frozen=True)
class ClusterFiles:
    """An output layer that scores the tokens of the likeliest clusters alone."""

    num: int
    """Clusters, each of as many tokens."""
    chosen: int
    """Clusters whose tokens are scored."""
    ordering: str
    """Token ids, cluster after cluster: `(vocab_size,)`, u32, little-endian."""
    output: str
    """Weights of the output layer in panels, `(vocab_size, hidden_size)`, in this order."""
    dtype: WeightType


@dataclass(frozen=True)
class AssistantFiles:
    """A drafter that reads the target's states, keys and values: one graph for any width.

    Inputs and outputs are named in `convert/cpu/heads.py`.
    """

    weights: list[str]
    graph: str
    num_layers: int
    hidden_size: int
    reads: list[int]
    """The target's layers whose keys and values it reads, ascending."""
    clusters: ClusterFiles | None = None
    """None where its graph scores every token."""

    @property
    def described(self) -> str:
        """What people are told of it."""
        reads = ", ".join(map(str, self.reads))
        scored = "all tokens"
        if self.clusters is not None:
            scored = f"the tokens of {self.clusters.chosen} in {self.clusters.num:,} clusters"
        return (
            f"a drafter beside the model, {self.num_layers} layers, hidden {self.hidden_size}, "
            f"that reads keys and values of layers {reads} and scores {scored}"
        )
