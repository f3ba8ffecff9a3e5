"""Mixtures of experts, as a manifest tells of them.

In: what an exporter has written. Out: which layers have experts, and where in the bundle's files
each of them is. They are in files of their own, which graphs do not read: they get a layer's part
as an input, so what is to be in memory is for others to decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coordgen_rs.bundle.panels import WeightType, num_bytes

PAGE = 4096
"""Experts begin at a multiple of it, in bytes."""


@dataclass(frozen=True)
class ExpertRegion:
    """The experts of a layer: one after the other, each whole pages."""

    layer: int
    file: str
    offset: int
    num_bytes: int
    types: list[WeightType]
    """Of an expert's gate, up and down, which stand in this order, in panels."""


@dataclass(frozen=True)
class ExpertLayers:
    """The mixtures of experts of a model."""

    num: int
    """Experts of a layer."""
    chosen: int
    """Those that a row is given to."""
    size: int
    """Of an expert's feed-forward."""
    layers: list[ExpertRegion]
    """Those that have one, ascending; others have a dense feed-forward."""

    def stride(self, region: ExpertRegion, hidden_size: int) -> int:
        """Bytes of an expert."""
        up = (self.size, hidden_size)
        return expert_bytes(region.types, (up, up, (hidden_size, self.size)))

    def described(self, num_layers: int) -> str:
        """What people are told of the experts of a model with so many layers."""
        layers = f"{len(self.layers)} of {num_layers} layers"
        return f"{self.num} of size {self.size} in {layers}, {self.chosen} for each token"


def input_name(layer: int) -> str:
    """What the graph of a layer calls its experts."""
    return f"experts_{layer}"


def expert_bytes(types: Sequence[str], shapes: Sequence[tuple[int, int]]) -> int:
    """Bytes of an expert whose matrices have such types and shapes: whole pages."""
    matrices = zip(types, shapes, strict=True)
    held = sum(num_bytes(weight_type, *shape) for weight_type, shape in matrices)
    return -(-held // PAGE) * PAGE
