"""What layers have in place of attention, or of a dense feed-forward: sizes, and their tensors.

In: the fields of a config.json, in the words of Qwen3-MoE for mixtures of experts; the tensors of a
checkpoint. Out: an `Experts`, or one of the kinds of recurrent layers; which tensors a layer has,
and how large they are. All experts of a layer are in one matrix, one below the other, whether a
checkpoint holds them one by one or all together. Tensors of recurrent layers have the names of
transformers but for `A`, which is -exp(A_log).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.layers import RecurrentKind
from coordgen_rs.convert.containers.tensor import Tensor, stacked
from coordgen_rs.convert.families.config.fields import positive, refuse_field
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


_LEAST_TAPS, _MOST_TAPS = 2, 8
"""Of a convolution; those of known models have 3 and 4."""
_MOST_CHANNELS = 1 << 20
_MOST_STATE = 1 << 28
"""Numbers of a layer's state; no known model has as many, a damaged file may."""
_CONVOLUTIONS = (".conv.conv.weight", ".conv1d.weight")
_LOGARITHM, _ITSELF = ".A_log", ".A"


@dataclass(frozen=True)
class MixerTensors:
    """The tensors of a layer's part that mixes tokens, by their names in the layer."""

    into: Mapping[str, int]
    """What rows are projected to, in this order: weights `(size, hidden_size)`."""
    convolution: str
    """A causal convolution: a weight `(channels, taps)`, perhaps with a bias."""
    has_bias: bool
    vectors: Mapping[str, tuple[str, int]]
    """Name and size by the operator's input."""
    out: str
    """What is projected back: a weight `(hidden_size, width)`."""


@dataclass(frozen=True)
class ShortConvolution:
    """LFM2's.

    Of three parts of a projection the first times the third is convolved, and multiplied by the
    second.
    """

    channels: int
    taps: int

    kind: RecurrentKind = "short_convolution"

    @property
    def width(self) -> int:
        """Columns of what the layer projects back."""
        return self.channels

    @property
    def tensors(self) -> MixerTensors:
        """Its tensors."""
        into = {"conv.in_proj.weight": 3 * self.channels}
        return MixerTensors(into, "conv.conv", False, {}, "conv.out_proj.weight")


@dataclass(frozen=True)
class DeltaNet:
    """Qwen3.5's gated delta net, behind a causal convolution."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    is_tiled: bool = False
    """Whether what is projected back has the first value head of every key head first, then the
    second of each; else those of a key head are neighbours, as they are before."""

    kind: RecurrentKind = "gated_delta_net"

    @property
    def channels(self) -> int:
        """Columns that are convolved: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.width

    @property
    def width(self) -> int:
        """Columns of what the layer projects back."""
        return self.value_heads * self.value_dim

    @property
    def tensors(self) -> MixerTensors:
        """Its tensors; what is projected are queries, keys and values, gates, betas and decays."""
        heads = self.value_heads
        return MixerTensors(
            {
                "linear_attn.in_proj_qkv.weight": self.channels,
                "linear_attn.in_proj_z.weight": self.width,
                "linear_attn.in_proj_b.weight": heads,
                "linear_attn.in_proj_a.weight": heads,
            },
            "linear_attn.conv1d",
            False,
            {
                "a": ("linear_attn.A", heads),
                "dt_bias": ("linear_attn.dt_bias", heads),
                "norm": ("linear_attn.norm.weight", self.value_dim),
            },
            "linear_attn.out_proj.weight",
        )


@dataclass(frozen=True)
class SelectiveState:
    """Mamba-2's selective state update, behind a causal convolution."""

    heads: int
    head_dim: int
    groups: int
    state_dim: int
    taps: int
    has_bias: bool
    """Whether the convolution has one."""
    least_step: float
    most_step: float

    kind: RecurrentKind = "selective_state"

    @property
    def channels(self) -> int:
        """Columns that are convolved: inputs, B and C."""
        return self.width + 2 * self.groups * self.state_dim

    @property
    def width(self) -> int:
        """Columns of what the layer projects back."""
        return self.heads * self.head_dim

    @property
    def tensors(self) -> MixerTensors:
        """Its tensors; what is projected are gates, inputs with B and C, and steps."""
        return MixerTensors(
            {"mamba.in_proj.weight": self.width + self.channels + self.heads},
            "mamba.conv1d",
            self.has_bias,
            {
                "a": ("mamba.A", self.heads),
                "dt_bias": ("mamba.dt_bias", self.heads),
                "d": ("mamba.D", self.heads),
                "norm": ("mamba.norm.weight", self.width),
            },
            "mamba.out_proj.weight",
        )


Recurrent = ShortConvolution | DeltaNet | SelectiveState


def read_taps(config: Mapping[str, Any], name: str, default: int) -> int:
    """The taps of a convolution.

    Raises:
        CheckpointError: There are too few or too many.
    """
    taps = positive(config, name, default)
    if not _LEAST_TAPS <= taps <= _MOST_TAPS:
        refuse_field({name: taps}, name, f"{_LEAST_TAPS} to {_MOST_TAPS}")
    return taps


def check_sizes(prefix: str, channels: int, state: int) -> None:
    """Refuse what no model has.

    Raises:
        CheckpointError: The layers are too large to be any.
    """
    if channels > _MOST_CHANNELS or state > _MOST_STATE:
        raise CheckpointError(
            f"config.json: {prefix}* give {channels} channels and a state of {state} numbers, "
            f"expected {_MOST_CHANNELS} and {_MOST_STATE} at most"
        )


def matrices_of_recurrent_layers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, of which convolutions are matrices, and no logarithms decays."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(_CONVOLUTIONS):
            found[name] = tensor.without_ones()
        elif name.endswith(_LOGARITHM):
            found[name.removesuffix(_LOGARITHM) + _ITSELF] = _decay(tensor)
        else:
            found[name] = tensor
    return found


def _decay(logarithms: Tensor) -> Tensor:
    """What a state decays by in a step of 1, as its logarithm: -exp of what is stored."""

    def decays(stored: NDArray[np.float32]) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            found = -np.exp(stored)
        if not np.isfinite(found).all():
            raise CheckpointError(f"{logarithms.name} holds what is no logarithm of a decay")
        return found

    return logarithms.computed(decays)
