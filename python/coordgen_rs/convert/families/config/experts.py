"""Mixtures of experts that layers have as feed-forward: sizes, how rows choose, and tensors.

In: sizes and switches, as a family's config.json tells them (`mixtures.py`). Out: an `Experts`, and
which tensors a layer has for it. All experts of a layer are in one matrix, one below the other;
`usual_names.py` makes it of what checkpoints have.
"""

from dataclasses import dataclass
from typing import Literal

from coordgen_rs.convert.containers.tensor import Tensor

Scoring = Literal["softmax", "sigmoid"]
"""How a router's logits become shares: over all experts together, or of each by itself."""
ExpertGate = Literal["silu", "gelu_tanh", "clamped_swiglu"]

ROUTER = "mlp.gate"
CHOICE_BIAS = "mlp.expert_bias"
BESIDE_GATE = "mlp.shared_expert_gate"
PARTS = ("gate_proj", "up_proj", "down_proj")
"""What the matrices of a layer are called, `mlp.experts.{part}.weight`: the first two
`(num * size, hidden_size)`, the last `(num * hidden_size, size)`."""


@dataclass(frozen=True)
class Experts:
    """The mixtures of experts of a model, one for each of some layers."""

    layers: frozenset[int]
    """Those that have one; others have a dense feed-forward."""
    num: int
    """Experts of a layer."""
    chosen: int
    """Those that a row is given to."""
    size: int
    """Of an expert's feed-forward."""
    scoring: Scoring = "softmax"
    is_normed: bool = True
    """Whether the shares of the chosen add up to 1."""
    share_epsilon: float = 0.0
    """What is added to their sum before they are divided by it."""
    share_scale: float = 1.0
    """What they are multiplied by at last."""
    has_choice_bias: bool = False
    """Whether a bias is added to scores for choosing alone."""
    shared_size: int = 0
    """Of the feed-forward that every row gets beside its experts; 0 where there is none."""
    gates_shared: bool = False
    """Whether that is multiplied by the sigmoid of a gate of its own."""
    gate: ExpertGate = "silu"
    has_biases: bool = False
    """Whether the router and the experts' layers have biases."""

    def shapes(self, hidden_size: int) -> dict[str, tuple[int, int]]:
        """The shape of each of a layer's `PARTS`."""
        up = (self.num * self.size, hidden_size)
        return dict(zip(PARTS, (up, up, (self.num * hidden_size, self.size)), strict=True))


def gates_and_ups(both: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """The gates of all experts, and their ups, of a matrix that has those of each together."""
    rows = both.shape[0] // num
    firsts = range(0, num * rows, rows)
    gates = both.joined([(first, first + rows // 2) for first in firsts])
    return gates, both.joined([(first + rows // 2, first + rows) for first in firsts])
