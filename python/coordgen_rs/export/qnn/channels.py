"""Channels of like size, so that one step for all of them suffices.

In: the float graph of a layer, and what its channels hold on some text. Out: its constants changed
so that the layer computes the same, and the keys and values that it stores fit 8 bits; and the
channels of its feed-forward that are to be computed by themselves, because they outgrow all others.

A cached tensor has one step for all its channels. In SmolLM2 some channels of keys are ten times as
large as others, and take the 8 bits of those. So each channel is divided by a factor, which is part
of the weights that make it, and what reads it is multiplied by the same: queries for keys, the
output weights of attention for values. The two channels that turn together in rotary embedding
share a factor, which then commutes with the turn; heads that share a key share its factors. In
effect each channel has a step of its own, which costs nothing at run time.

In the feed-forward, a channel or two make the massive activations of the first token: one of layer
11 of SmolLM2 reaches 3,214 there, where the others have a root mean square of 0.16, so 16 bits lose
more of these than 4-bit weights would. Scaled down, they would take as much from the weights behind
them. So they get a product of their own, of which there is nothing where no channel outgrows.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from coordgen_rs.export.checkpoints.config import ModelConfig
from coordgen_rs.export.qnn.graph import key_value_names

Array = NDArray[np.float32]

_OUTGROWN = 32
"""Times the size that all but the few largest channels keep below."""
_MOST_APART = 16
"""Channels; where more are as large, they are no exceptions."""
_LEAST = 1e-3
"""Of the mean: channels that are smaller than that are not made larger."""


def largest_channels(config: ModelConfig, number: int, outputs: Mapping[str, Array]) -> list[Array]:
    """Size of each channel of a layer's new keys and values: two arrays `(kv_heads, head_dim)`."""
    keys, values = (
        np.abs(outputs[key_value_names(number, kind)[1]])[0] for kind in ("key", "value")
    )
    half = 0 if number in config.unrotated_layers else len(config.inv_freq)
    turning = np.hypot(keys[..., :half], keys[..., half : 2 * half])
    keys = np.concatenate([turning, turning, keys[..., 2 * half :]], -1)
    return [keys.max(1), values.max(1)]


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
    config: ModelConfig, number: int, graph: onnx.ModelProto, largest: list[Array]
) -> None:
    """Change the constants of a layer's graph; `largest` as `largest_channels` gives it."""
    constants = {tensor.name: tensor for tensor in graph.graph.initializer}
    of_keys, of_values = map(_factors, largest)
    group = config.num_heads // config.num_kv_heads
    by_head, of_outputs = (np.repeat(it, group, 0) for it in (of_keys, of_values))

    def change(name: str, factors: Array, *, is_input: bool = False) -> None:
        if name in constants:
            weight = numpy_helper.to_array(constants[name])
            changed = weight * factors.reshape([-1, 1] if is_input else [-1])
            constants[name].CopyFrom(numpy_helper.from_array(changed, name))

    name = f"layer_{number}"
    if config.qk_norm:  # one norm for all heads
        of_keys = np.broadcast_to(of_keys.max(0), of_keys.shape)
        change(f"{name}.q_proj.normed.weight", of_keys[0])
        change(f"{name}.k_proj.normed.weight", np.reciprocal(of_keys[0]))
    else:
        for part, factors in (("q_proj", by_head), ("k_proj", np.reciprocal(of_keys))):
            change(f"{name}.{part}.weight", factors)
            change(f"{name}.{part}.bias", factors)
    change(f"{name}.v_proj.weight", np.reciprocal(of_values))
    change(f"{name}.v_proj.bias", np.reciprocal(of_values))
    change(f"{name}.attention_out.weight", of_outputs, is_input=True)


def _factors(largest: Array) -> Array:
    mean = largest.mean()
    if not mean:
        return np.ones_like(largest)
    factors: Array = np.maximum(largest / mean, np.float32(_LEAST))
    return factors
