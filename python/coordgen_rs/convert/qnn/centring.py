"""The range of each channel of keys and values at any position, and the middle of it.

In: what the float graph of a layer computes on some texts. Out: for each channel a centre and a
size; it changes no graph (`channels.py`).

A cached tensor of 8 bits has 127 steps on each side of zero, and zero is where attention needs it:
in the middle. So the middle of each channel is taken off before it is stored. Softmax does not see
a constant that is taken off all keys; one taken off all values is a constant of what attention
gives. The centre is moved by up to half a step, so that the first token of a prompt falls on the
grid: most of attention's weight lies on it (StreamingLLM, https://arxiv.org/abs/2309.17453), and
its rounding error would be in every row. Nothing is clipped: with the range of keys cut by a tenth,
SmolLM2 chooses another token in 6 % of all places, with that of values in 4 %.

Texts are short, so keys are turned on to positions up to the end of the context: what stands still
within a text may be a slow turn. The first token is always at position 0.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.convert.families.config.model import ModelConfig

Array = NDArray[np.float32]

_POSITIONS = 64
"""Number of positions to which keys are turned."""
_STEPS = np.float32(127)
"""Steps on each side of zero, as `Encoding.symmetric` has them for uint8."""


@dataclass(frozen=True)
class Channels:
    """A centre and a largest distance from it for each channel, `(kv_heads, head_dim)` each."""

    centre: Array
    largest: Array

    @property
    def factors(self) -> Array:
        """What each channel is divided by, so that all have the same size, which is the mean."""
        mean = self.size
        if not mean:
            return np.ones_like(self.largest)
        factors: Array = np.maximum(self.largest / mean, _LEAST)
        return factors

    @property
    def size(self) -> float:
        """The size of all channels, once they are divided."""
        return float(self.largest.mean())


_LEAST = np.float32(1e-3)
"""Share of the mean: channels that are smaller than that are not made larger."""


def usual_first(texts: Sequence[Sequence[int]]) -> int:
    """The index of a text that begins with the token that most texts begin with."""
    starts = [text[0] for text in texts]
    return starts.index(Counter(starts).most_common(1)[0][0])


def value_channels(values: Sequence[Array], first: int) -> Channels:
    """Channels of a layer's values, `(kv_heads, tokens, head_dim)` per text; `first` is an index.

    Raises:
        ValueError: There is no text.
    """
    low, high = _bounds(values)
    return _channels(low, high, _half(low, high), values[first][:, 0])


def key_channels(
    config: ModelConfig, number: int, context: int, keys: Sequence[Array], first: int
) -> Channels:
    """Channels of a layer's rotated keys, as in `value_channels`, at all positions of a context.

    The two channels that turn together have one size.

    Raises:
        ValueError: There is no text.
    """
    low, high = _bounds(keys)
    half = 0 if number in config.unrotated_layers else len(config.inv_freq)
    if half and (turned := _turned_bounds(config, context, keys)) is not None:
        low[:, : 2 * half] = np.minimum(low[:, : 2 * half], turned[0])
        high[:, : 2 * half] = np.maximum(high[:, : 2 * half], turned[1])
    largest = _half(low, high)
    pairs = np.maximum(largest[:, :half], largest[:, half : 2 * half])
    largest[:, :half], largest[:, half : 2 * half] = pairs, pairs
    if config.qk_norm:  # one norm for all heads
        largest[:] = largest.max(0)
        if not half:  # nowhere to take a centre off
            largest[:] = np.maximum(np.abs(low), np.abs(high)).max(0)
            return Channels(np.zeros_like(low), largest)
    return _channels(low, high, largest, keys[first][:, 0])


def _bounds(rows: Iterable[Array]) -> tuple[Array, Array]:
    """Lowest and highest value of each channel."""
    bounds = [(it.min(1), it.max(1)) for it in rows]
    low: Array = np.min([low for low, _ in bounds], 0)
    high: Array = np.max([high for _, high in bounds], 0)
    return low, high


def _half(low: Array, high: Array) -> Array:
    half: Array = (high - low) * np.float32(0.5)
    return half


def _turned_bounds(
    config: ModelConfig, context: int, keys: Sequence[Array]
) -> tuple[Array, Array] | None:
    """Bounds of rotated channels of tokens after the first, at any position; None without any."""
    half = len(config.inv_freq)
    speeds = np.asarray(config.inv_freq, np.float32)
    positions = np.concatenate([np.arange(1, it.shape[1], dtype=np.float32) for it in keys])
    if not len(positions):
        return None
    rows = np.concatenate([it[:, 1:, : 2 * half] for it in keys], 1)
    at_zero = _turned(rows, -positions[:, np.newaxis] * speeds)
    reached = np.unique(np.linspace(1, max(1, context - 1), _POSITIONS, dtype=np.float32).round())
    return _bounds(_turned(at_zero, position * speeds) for position in reached)


def _turned(rows: Array, angles: Array) -> Array:
    """Rows `(kv_heads, tokens, 2 * half)`, of which element i turns with i + half."""
    first, second = np.split(rows, 2, -1)
    cos, sin = np.cos(angles), np.sin(angles)
    turned: Array = np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
    return turned


def _channels(low: Array, high: Array, largest: Array, first: Array) -> Channels:
    """The channels of some bounds; `first` is what falls on the grid."""
    largest = largest * (_STEPS / (_STEPS - np.float32(0.5)))  # room for half a step
    step = np.maximum(largest, largest.mean() * _LEAST) / _STEPS
    steps = np.rint((first - (low + high) / 2) / np.where(step, step, 1))
    return Channels(first - steps * step, largest)
