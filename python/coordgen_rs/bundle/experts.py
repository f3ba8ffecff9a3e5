"""Mixtures of experts, as a manifest tells of them.

In: what an exporter has written. Out: which layers have experts, and where in the bundle's files
each of them is. They are in files of their own, which graphs do not read: they get a layer's part
as an input, so what is to be in memory is for others to decide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordgen_rs.bundle.panels import WeightType, num_bytes
from coordgen_rs.errors import BundleError

PAGE = 4096
"""Experts begin at a multiple of it, in bytes: a page of most systems; others' are larger."""
_MOST_EXPERTS, _MOST_SIZE = 1 << 12, 1 << 24
"""No known model has more of them, or larger ones; a damaged manifest may."""
_MATRICES = 3
"""Of an expert."""


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

    def row_bytes(self, layers: Sequence[int]) -> int:
        """Bytes of experts that a row reads in some layers of the model."""
        held = (region.num_bytes for region in self.layers if region.layer in layers)
        return sum(num_bytes // self.num * self.chosen for num_bytes in held)

    def check(
        self,
        others: Sequence[ExpertRegion],
        num_layers: int,
        hidden_size: int,
        file_bytes: Mapping[str, int],
    ) -> None:
        """Refuse what contradicts itself, or the files.

        Args:
            others: Regions that do not belong to layers of the model.
            num_layers: Layers of the model.
            hidden_size: That of the model.
            file_bytes: Bytes of each file of the bundle.

        Raises:
            BundleError: Something does; the message names the field.
        """
        layers = [region.layer for region in self.layers]
        if not layers or layers != sorted(set(layers) & set(range(num_layers))):
            raise BundleError(
                f"manifest.experts.layers are {layers!s:.200}, expected ascending numbers of its "
                f"{num_layers} layers"
            )
        limits = {"num": _MOST_EXPERTS, "chosen": self.num, "size": _MOST_SIZE}
        for name, most in limits.items():
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise BundleError(f"manifest.experts.{name} is {value}, expected 1 to {most}")
        for region in (*self.layers, *others):
            self._check_region(region, hidden_size, file_bytes)

    def _check_region(
        self, region: ExpertRegion, hidden_size: int, file_bytes: Mapping[str, int]
    ) -> None:
        name, held = f"experts of layer {region.layer}", file_bytes.get(region.file)
        if len(region.types) != _MATRICES:
            raise BundleError(f"manifest: {name} have {len(region.types)} types, expected 3")
        if held is None:
            raise BundleError(f"manifest.files lacks {region.file}")
        expected = self.num * self.stride(region, hidden_size)
        is_inside = 0 <= region.offset <= held - expected and region.offset % PAGE == 0
        if region.num_bytes != expected or not is_inside:
            raise BundleError(
                f"manifest: {name} are {region.num_bytes} bytes at {region.offset} of "
                f"{region.file}, which has {held}: expected {expected} at a multiple of {PAGE}"
            )

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
