"""Layers that keep a state in place of keys and values, as a manifest tells of them.

In: what an exporter knows of its graphs. Out: which layers they are, and how large what they keep
is; the names of the graphs' inputs. What a state is, and how it follows the tokens, stands in
`src/kernels/recurrent/mod.rs`.
"""

from dataclasses import dataclass
from typing import Literal

RecurrentKind = Literal["short_convolution", "gated_delta_net", "selective_state"]

SHOWN_KINDS: dict[RecurrentKind, str] = {
    "short_convolution": "short convolutions",
    "gated_delta_net": "gated delta nets",
    "selective_state": "Mamba-2",
}
"""What people call them."""

HEADER_BYTES = 64
"""What a state, a node's update and all updates begin with."""


@dataclass(frozen=True)
class StateSizes:
    """What one operator of a recurrent layer keeps, in float32 numbers."""

    name: str
    """What its inputs are called: `{name}_state_{layer}` and `{name}_updates_{layer}`."""
    numbers: int
    """Of a sequence's state."""
    node_numbers: int
    """Of a node's update."""

    @property
    def num_bytes(self) -> int:
        """Bytes of a state."""
        return HEADER_BYTES + 4 * self.numbers

    def updates_bytes(self, num_nodes: int) -> int:
        """Bytes of the updates of so many nodes."""
        return HEADER_BYTES + num_nodes * (HEADER_BYTES + 4 * self.node_numbers)

    @property
    def updates_name(self) -> str:
        """What graphs call the size of updates, which differs with the nodes."""
        return f"nodes_of_{self.node_numbers}"

    def inputs(self, layer: int) -> tuple[str, str]:
        """The inputs of a layer: its state, and its updates; outputs have `_out` behind."""
        return f"{self.name}_state_{layer}", f"{self.name}_updates_{layer}"


@dataclass(frozen=True)
class RecurrentLayers:
    """The recurrent layers of a model, all of one kind."""

    kind: RecurrentKind
    layers: list[int]
    """Their numbers, ascending; all others have attention."""
    states: list[StateSizes]
    """What each of them keeps, in the order of its operators."""

    @property
    def state_bytes(self) -> int:
        """Bytes of all states of all layers."""
        return len(self.layers) * sum(sizes.num_bytes for sizes in self.states)

    def described(self, num_layers: int) -> str:
        """What people are told of the layers of a model with so many."""
        return f"{num_layers}, {len(self.layers)} of them {SHOWN_KINDS[self.kind]}"
