"""Mixtures of experts that layers have as feed-forward: sizes, how rows choose, and tensors.

In: the fields of a config.json in the words of Qwen3-MoE; the tensors of a checkpoint. Out: an
`Experts`; the matrices of a layer. All experts of a layer are in one matrix, one below the other,
whether a checkpoint holds them one by one or all together.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from coordgen_rs.convert.containers.tensor import Tensor, stacked
from coordgen_rs.convert.families.config.fields import positive
from coordgen_rs.errors import CheckpointError

Scoring = Literal["softmax", "sigmoid"]
"""How a router's logits become shares: over all experts together, or of each by itself."""
ExpertGate = Literal["silu", "gelu_tanh", "clamped_swiglu"]

ROUTER = "mlp.gate"
CHOICE_BIAS = "mlp.expert_bias"
BESIDE_GATE = "mlp.shared_expert_gate"
_GATES_AND_UPS = "mlp.experts.gate_up_proj.weight"
"""Of each expert, its gate, then its up."""
PARTS = ("gate_proj", "up_proj", "down_proj")
"""What the matrices of a layer are called, `mlp.experts.{part}.weight`: the first two
`(num * size, hidden_size)`, the last `(num * hidden_size, size)`."""

_MOST_EXPERTS = 1 << 12
"""No known model has more in a layer; a damaged file may."""
_ONE_EXPERT = re.compile(r"(.*\.mlp\.experts\.)(\d{1,5})\.(\w+\.weight)")
_ALL_EXPERTS = re.compile(r"(.*\.mlp\.experts\.(?:gate_up_proj|down_proj))(?:\.weight)?")


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


def read_experts(config: Mapping[str, Any], layers: Iterable[int], **switches: Any) -> Experts:
    """The sizes that all families tell, and what they differ in.

    Raises:
        CheckpointError: A field is malformed, or out of range.
    """
    num, chosen = positive(config, "num_experts"), positive(config, "num_experts_per_tok")
    if num > _MOST_EXPERTS or chosen > num:
        raise CheckpointError(
            f"config.json: num_experts is {num} and num_experts_per_tok {chosen}, expected at most "
            f"{_MOST_EXPERTS}, and no more than there are"
        )
    size = positive(config, "moe_intermediate_size")
    return Experts(frozenset(layers), num, chosen, size, **switches)


def matrices_of_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with all experts of a layer as matrices.

    Raises:
        CheckpointError: An expert is missing, or has another shape than others.
    """
    found: dict[str, Tensor] = {}
    experts = defaultdict[str, dict[int, Tensor]](dict)
    for name, tensor in tensors.items():
        one, all_of_them = _ONE_EXPERT.fullmatch(name), _ALL_EXPERTS.fullmatch(name)
        if one is not None:
            experts[one[1] + one[3]][int(one[2])] = tensor
        elif all_of_them is not None and len(tensor.shape) == 3:
            found[f"{all_of_them[1]}.weight"] = tensor.as_matrix()
        else:
            found[name] = tensor
    for name, its in experts.items():
        for number in range(len(its)):
            if number not in its:
                raise CheckpointError(f"{name}: the checkpoint has no expert {number}")
        found[name] = stacked(name, [its[number] for number in range(len(its))])
    return found


def halved_experts(tensors: Mapping[str, Tensor], num: int) -> dict[str, Tensor]:
    """The tensors with gates and ups of so many experts apart, where they are one matrix.

    Raises:
        CheckpointError: There are not as many of each in it.
    """
    found = dict(tensors)
    for name, both in tensors.items():
        if name.endswith(_GATES_AND_UPS):
            if both.shape[0] % (2 * num):
                raise CheckpointError(f"{name} has the shape {both.shape}, expected {num} experts")
            del found[name]
            prefix, rows = name.removesuffix(_GATES_AND_UPS), both.shape[0] // num
            for part, first, last in (("gate_proj", 0, rows // 2), ("up_proj", rows // 2, rows)):
                spans = [(start + first, start + last) for start in range(0, num * rows, rows)]
                found[f"{prefix}mlp.experts.{part}.weight"] = both.joined(spans)
    return found
