"""The recurrent layers that a model may have in place of attention: their sizes and their tensors.

In: sizes, as a family's config.json tells them; the tensors of a checkpoint. Out: which tensors a
layer has and how large they are, under the names of transformers but for `A`, which is
-exp(A_log). What no layer of a family can be is refused, with the model and the layer named.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.layers import RecurrentKind
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.config.fields import positive, refuse_field
from coordgen_rs.errors import CheckpointError

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
