"""Channels of like size, so that one step for all of them suffices.

In: the float graph of a layer, and what its channels hold on some text. Out: its constants changed
so that the layer computes the same, and the keys and values that it stores fit 8 bits; and the
channels of its feed-forward that are to be computed by themselves, because they outgrow all others.

A cached tensor has one step for all its channels. In SmolLM2 some channels of keys are ten times as
large as others, and take the 8 bits of those. So each channel is divided by a factor, which is part
of the weights that make it, and what reads it is multiplied by the same: queries for keys, the
output weights of attention for values. The two channels that turn together in rotary embedding
share a factor, which then commutes with the turn; heads that share a key share its factors. In
effect each channel has a step of its own, which costs nothing at run time. The centre of each
(`centring.py`) is taken off by a difference behind the turn, or by a bias.

In the feed-forward, a channel or two make the massive activations of the first token: one of layer
11 of SmolLM2 reaches 3,214 there, where the others have a root mean square of 0.16, so 16 bits lose
more of these than 4-bit weights would. Scaled down, they would take as much from the weights behind
them. So they get a product of their own, of which there is nothing where no channel outgrows.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.qnn.calibration import Ranges
from coordgen_rs.convert.qnn.centring import Channels
from coordgen_rs.convert.qnn.graph import centre_names, has_bare_keys, key_value_names

Array = NDArray[np.float32]

_OUTGROWN = 32
"""A channel is outgrown at this many times the size that all but the few largest stay below."""
_MOST_APART = 16
"""Most channels apart; where more are as large, they are no exceptions."""


def channels_apart(largest: Array) -> list[int]:
    """The channels of a feed-forward that outgrow the others, ascending; mostly none.

    Args:
        largest: Size of each, `(ffn_size,)`.
    """
    if len(largest) <= 2 * _MOST_APART:
        return []
    usual = np.sort(largest)[-_MOST_APART - 1]
    found = np.flatnonzero(largest > _OUTGROWN * usual)
    return [int(number) for number in found]


def equalised_channels(
    config: ModelConfig, number: int, graph: onnx.ModelProto, keys: Channels, values: Channels
) -> None:
    """Change the constants of a layer's graph, by what is known of its keys and values."""
    constants = {tensor.name: tensor for tensor in graph.graph.initializer}
    group, name = config.num_heads // config.num_kv_heads, f"layer_{number}"

    def change(constant: str, changed: Callable[[Array], Array]) -> None:
        if constant in constants:
            array = numpy_helper.to_array(constants[constant])
            replaced = np.asarray(changed(array), np.float32)
            constants[constant].CopyFrom(numpy_helper.from_array(replaced, constant))

    of_keys, of_values = keys.factors, values.factors
    by_head, of_outputs = (np.repeat(it, group, 0).reshape(-1) for it in (of_keys, of_values))
    if config.qk_norm:
        change(f"{name}.q_proj.normed.weight", lambda it: it * of_keys[0])
        change(f"{name}.k_proj.normed.weight", lambda it: it / of_keys[0])
    else:
        for constant in (f"{name}.q_proj.weight", f"{name}.q_proj.bias"):
            change(constant, lambda it: it * by_head)
        change(f"{name}.k_proj.weight", lambda it: it / of_keys.reshape(-1))
        off = keys.centre.reshape(-1) if has_bare_keys(config, number) else np.float32(0)
        change(f"{name}.k_proj.bias", lambda it: (it - off) / of_keys.reshape(-1))
    centre = (keys.centre / of_keys)[:, np.newaxis]
    for constant, part in zip(centre_names(number), _parts(config, centre), strict=True):
        change(constant, partial(np.add, part))
    change(f"{name}.v_proj.weight", lambda it: it / of_values.reshape(-1))
    change(
        f"{name}.v_proj.bias", lambda it: (it - values.centre.reshape(-1)) / of_values.reshape(-1)
    )
    weight, off = f"{name}.attention_out.weight", np.repeat(values.centre, group, 0).reshape(-1)
    outputs = numpy_helper.to_array(constants[weight])
    change(f"{name}.attention_out.bias", lambda it: it + off @ outputs)
    change(weight, lambda it: it * of_outputs[:, np.newaxis])


def _parts(config: ModelConfig, rows: Array) -> list[Array]:
    """First halves of what is rotated, second halves, and the rest."""
    half = len(config.inv_freq)
    return np.split(rows, [half, 2 * half], -1)


def widen_ranges(
    config: ModelConfig, number: int, ranges: Ranges, keys: Channels, values: Channels
) -> None:
    """Make the ranges of a layer's rotary products, keys and values hold for all positions."""

    def widen(name: str, size: float) -> None:
        if name in ranges.by_name:
            ranges.add(name, -size, size)

    name = f"layer_{number}"
    if number not in config.unrotated_layers:
        for kind in ("query", "key"):
            rotary = f"{name}.{kind}_rotary"
            entering = ranges.largest([f"{rotary}.first", f"{rotary}.second"])
            size = entering * max(1.0, config.rope_factor or 1.0)
            for product in ("first_cos", "first_sin", "second_cos", "second_sin"):
                widen(f"{rotary}.{product}", size)
            for part in ("first", "second"):
                widen(f"{rotary}.turned_{part}", size * math.sqrt(2))
        for part in ("first", "second", "rest"):
            widen(f"{name}.key_rotary.centred_{part}", keys.size)
    for kind, channels in (("key", keys), ("value", values)):
        widen(key_value_names(number, kind)[1], channels.size)
