"""Outliers made harmless before a model is rounded: a turned stream, channels of like size.

`rotated`: the residual stream turned by an orthogonal matrix, so that no channel stands out. In: a
checkpoint. Out: one that computes the same, whose residual stream is the other's times an
orthogonal matrix. It rounds nothing itself.

Some models carry a few huge numbers in a few channels of the residual stream, most of all at their
first token (SmolLM2: 24,926 there, 1,185 at others, a few units in most channels). In fixed point
all channels share one step, which those numbers make coarse. Turned, they are spread over all
channels: QuaRot, https://arxiv.org/abs/2404.00456, section 4.1. RMSNorm without its weights
commutes with the turn, so its weights go into the matrices that read it; embedding, matrices that
write and matrices that read take the turn itself. Nothing is left to do at run time. A head that is
tied to the embedding gets weights of its own, because the last norm's weights are in it.

`equalised_channels`: channels in the middle and of like size, so that one step for all of them
suffices. In: the float graph of a layer, and what its channels hold on some text. Out: its
constants changed so that the layer computes the same, and the keys and values that it stores fit 8
bits; and the channels of its feed-forward that are to be computed by themselves, because they
outgrow all others.

A cached tensor has one step for all its channels. In SmolLM2 some channels of keys are ten times as
large as others, and take the 8 bits of those. So each channel is divided by a factor, which is part
of the weights that make it, and what reads it is multiplied by the same: queries for keys, the
output weights of attention for values. The two channels that turn together in rotary embedding
share a factor, which then commutes with the turn; heads that share a key share its factors. In
effect each channel has a step of its own, which costs nothing at run time.

A cached tensor of 8 bits has 127 steps on each side of zero, and zero is where attention needs it:
in the middle. So the middle of each channel is taken off before it is stored, by a difference
behind the turn, or by a bias. Softmax does not see a constant that is taken off all keys; one taken
off all values is a constant of what attention gives. The centre is moved by up to half a step, so
that the first token of a prompt falls on the grid: most of attention's weight lies on it
(StreamingLLM, https://arxiv.org/abs/2309.17453), and its rounding error would be in every row.
Nothing is clipped: with the range of keys cut by a tenth, SmolLM2 chooses another token in 6 % of
all places, with that of values in 4 %.

Texts are short, so keys are turned on to positions up to the end of the context: what stands still
within a text may be a slow turn. The first token is always at position 0.

In the feed-forward, a channel or two make the massive activations of the first token: one of layer
11 of SmolLM2 reaches 3,214 there, where the others have a root mean square of 0.16, so 16 bits lose
more of these than 4-bit weights would. Scaled down, they would take as much from the weights behind
them. So they get a product of their own, of which there is nothing where no channel outgrows.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.families.model_config import ModelConfig, linear_layers
from coordgen_rs.convert.qnn.calibration import Ranges
from coordgen_rs.convert.qnn.graph import centre_names, has_bare_keys, key_value_names

Array = NDArray[np.float32]

_SEED = 1
_FINAL_NORM = "model.norm"
_OF_HEADS = ("query_norm", "key_norm")
"""Norms that do not read the residual stream."""


def rotated(source: Checkpoint) -> Checkpoint:
    """The same model with its residual stream turned.

    Memory: a square matrix as wide as the stream; weights are turned when they are read.

    Args:
        source: A model that the graphs for HTP can do: norms that stand behind matrices would not
            commute with the turn.

    Raises:
        CheckpointError: A tensor is missing, misshaped or damaged.
    """
    config = source.config
    turn = orthogonal_matrix(config.hidden_size)
    tensors = dict(source.tensors)
    for number in range(config.num_layers):
        tensors |= _turned_layer(source, number, turn)
    scale = source.norm_tensor(_FINAL_NORM, config.hidden_size).load()
    tensors |= {
        f"{_FINAL_NORM}.weight": _ones(config.hidden_size),
        # A tied one may be stored under the name of the output layer.
        "model.embed_tokens.weight": _reading(source.embedding_tensor(), turn),
        "lm_head.weight": _reading(source.output_tensor().scaled(scale), turn),
    }
    config = replace(config, norm_offset=0.0, tied_head=False)
    return replace(source, config=config, tensors=tensors)


def orthogonal_matrix(size: int) -> Array:
    """An orthogonal matrix that spreads every channel over all, always the same one.

    The Kronecker product of a Hadamard matrix, as large as divides `size`, and a random orthogonal
    one for the rest, with random signs.

    Returns:
        `(size, size)`
    """
    generator = np.random.default_rng(_SEED)
    factor = size & -size
    hadamard = np.ones((1, 1))
    while len(hadamard) < factor:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    rest, triangle = np.linalg.qr(generator.standard_normal((size // factor, size // factor)))
    rest *= np.sign(np.diag(triangle))
    matrix = np.kron(hadamard / np.sqrt(factor), rest)
    signs = generator.choice([-1.0, 1.0], size)
    return (signs[:, None] * matrix).astype(np.float32)


def _turned_layer(source: Checkpoint, number: int, turn: Array) -> dict[str, Tensor]:
    config, prefix = source.config, f"model.layers.{number}"
    norms, linears = config.norm_names(number), linear_layers(config, number)
    changed: dict[str, Tensor] = {}
    for field, linear in (("attention_norm", "qkv"), ("ffn_norm", "gate_up")):
        scale = source.norm_tensor(norms[field], config.hidden_size).load()
        for part in linears[linear]:
            name = f"{prefix}.{part}.weight"
            changed[name] = _reading(source.tensors[name].scaled(scale), turn)
    for part in (*linears["attention_out"], *linears["down"]):
        name = f"{prefix}.{part}.weight"
        changed[name] = _writing(source.tensors[name], turn)
    for field, norm in norms.items():
        if field in _OF_HEADS:
            changed[f"{norm}.weight"] = source.norm_tensor(norm, config.head_dim)
        else:
            changed[f"{norm}.weight"] = _ones(config.hidden_size)
    return changed


def _ones(size: int) -> Tensor:
    return Tensor("ones", (size,), lambda start, stop: np.ones(stop - start, np.float32))


def _reading(tensor: Tensor, turn: Array) -> Tensor:
    """A matrix `(n, D)` that reads the turned stream."""
    return tensor.computed(lambda rows: rows @ turn)


def _writing(tensor: Tensor, turn: Array) -> Tensor:
    """A matrix `(D, n)` that writes to the turned stream."""

    def read_rows(start: int, stop: int) -> Array:
        rows: Array = turn[:, start:stop].T @ tensor.load()
        return rows

    return Tensor(tensor.name, tensor.shape, read_rows)


_OUTGROWN = 32
"""A channel is outgrown at this many times the size that all but the few largest stay below."""
_MOST_APART = 16
"""Most channels apart; where more are as large, they are no exceptions."""
_POSITIONS = 64
"""Number of positions to which keys are turned."""
_STEPS = np.float32(127)
"""Steps on each side of zero, as `Encoding.symmetric` has them for uint8."""
_LEAST = np.float32(1e-3)
"""Share of the mean: channels that are smaller than that are not made larger."""


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
