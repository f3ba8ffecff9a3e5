"""Equalisation: large channels of activations are made smaller, and their weights larger.

In: a checkpoint, and token ids of some texts. Out: a checkpoint of the same function in float32,
which loses less when weights and activations are rounded to 8 bits with a scale per row. It rounds
nothing itself.

Each channel of a linear layer's input is divided by a factor, and the weights that read it are
multiplied by the same (SmoothQuant, https://arxiv.org/abs/2211.10438, section 4.1). The division is
part of whatever makes the channel: the norm before queries, keys and values and before gate and
up; the rows of the value weights before the output of attention, where heads that share a value
share the factor; the rows of the up weights before the down weights, because silu(gate) * up is
linear in up. Factors are powers of two, so that float32 weights lose no bit: only numbers too small
for float32's normal range may.
A factor is largest^alpha / largest weight^(1 - alpha), where alpha is the one of ten that gives
the least error of the layer's outputs on rows of the texts, each row counting the same. It has to
be a quarter less than without equalisation: a smaller gain did not outlast a change of texts.
Inputs of 16 bits (`w8a8.py`) lose nothing, so that only the weights' rounding counts before the
down weights, the output of attention and the head, and a channel's mean size instead of its
largest: on SmolLM2 the divergence from float that the down weights cost falls from 0.0021 to 0.0014
(simulated, 1,307 tokens that it was not equalised on).
On SmolLM2, whose errors are mostly those of rounded rows, they fall to a third before queries, keys
and values and to a half before gate and up, and 300 tokens of any text do as well as 1,500 of the
same kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.tools.export.bundle import Progress, no_progress
from coordgen_rs.tools.export.calibration.activations import LayerInputs, LinearInput, watch_inputs
from coordgen_rs.tools.export.checkpoints.checkpoint import Checkpoint
from coordgen_rs.tools.export.checkpoints.tensor import Tensor
from coordgen_rs.tools.export.cpu.int4 import inverse

_Array = NDArray[np.float32]

_ALPHAS = tuple(step / 10 for step in range(10))
_ROWS = 128
"""Rows of the texts on which the factors of a layer are chosen."""
_OUTPUTS = 512
"""Outputs of a layer, evenly taken, on whose error its factors are chosen."""
_HEAD_OUTPUTS = 4096
"""Outputs of the head, evenly taken, that tell the largest weight of each channel."""
_LEAST_GAIN = 0.75
"""Factors are taken where they leave less than this share of the squared error."""
_MOST = 20
"""A factor is at most 2 to this power, and at least 1 / that."""


@dataclass(frozen=True)
class _LayerFactors:
    """What the channels of one decoder layer are divided by."""

    qkv: _Array
    value: _Array
    """`(num_kv_heads * head_dim,)`"""
    gate_up: _Array
    down: _Array


def equalised(
    source: Checkpoint,
    texts: Sequence[Sequence[int]],
    on_progress: Progress | None = None,
    *,
    is_turned: bool = False,
) -> Checkpoint:
    """The same model with channels of like size.

    Memory: one layer, and its inputs on all texts. The result has an output layer of its own,
    unless it is to be turned.

    Args:
        source: The checkpoint.
        texts: Token ids to calibrate on; at least one text, none of them empty.
        on_progress: Called with what comes next, steps done, and steps in all.
        is_turned: Whether the residual stream will be turned (`../rotation.py`): that takes what
            norms multiply by into the weights behind them, so factors there would undo themselves.

    Raises:
        CheckpointError: A tensor is missing, misshaped or damaged.
        OSError: The temporary directory cannot be written.
    """
    source = _without_offset(source)
    tensors, report = dict(source.tensors), on_progress or no_progress
    for number, inputs in enumerate(watch_inputs(source, texts)):
        report("equalising", number, source.config.num_layers + 1)
        if isinstance(inputs, LayerInputs):
            factors = _layer_factors(source, number, inputs, behind_norms=not is_turned)
            tensors |= _folded(source, number, factors)
        else:
            head = inputs
    equal = replace(source, tensors=tensors)
    return equal if is_turned else _with_head(equal, head)


def _without_offset(source: Checkpoint) -> Checkpoint:
    """The same model whose norms multiply by what is stored, so that scaling it loses no bit."""
    config = source.config
    names = {
        f"{it}.weight" for n in range(config.num_layers) for it in config.norm_names(n).values()
    }
    changed = {
        name: source.tensors[name].times(1.0, plus=config.norm_offset)
        for name in names | {"model.norm.weight"}
        if name in source.tensors
    }
    config = replace(config, norm_offset=0.0)
    return replace(source, config=config, tensors={**source.tensors, **changed})


def channel_factors(
    entering: LinearInput,
    weight: _Array,
    repeats: Sequence[int] | None = None,
    *,
    is_fine: bool = False,
) -> _Array:
    """What to divide each channel of a linear layer's input by, powers of two.

    Args:
        entering: What enters the layer.
        weight: `(out_features, in_features)`.
        repeats: `(kv_heads, group, size)` where the channels of a group of heads share a factor.
        is_fine: Whether the input is rounded so finely that only the weights' rounding counts.

    Returns:
        `(in_features,)`, or `(kv_heads * size,)` with `repeats`.
    """
    magnitudes = _mean_sizes(entering.rows) if is_fine else np.abs(entering.rows).max(0)
    heights = np.abs(weight).max(0), magnitudes
    if repeats is not None:
        heights = (
            heights[0].reshape(repeats).max(1).ravel(),
            heights[1].reshape(repeats).max(1).ravel(),
        )
    of_weights, of_rows = heights
    weight = weight[:: max(1, len(weight) // _OUTPUTS)]
    rows = entering.sample(_ROWS)
    exact = rows @ weight.T
    rounded = _as_it_is if is_fine else round_rows
    best: _Array = np.ones_like(of_rows)
    least = _LEAST_GAIN * _relative_error(rounded(rows) @ round_rows(weight).T, exact)
    for alpha in _ALPHAS:
        factors = _factors(of_rows, of_weights, alpha)
        spread = factors if repeats is None else _spread(factors, repeats)
        got = rounded(rows / spread) @ round_rows(weight * spread).T
        error = _relative_error(got, exact)
        if error < least:
            best, least = factors, error
    return best


def _as_it_is(matrix: _Array) -> _Array:
    return matrix


def _mean_sizes(rows: _Array) -> _Array:
    """The root mean square of each column; in float64, as squares may be too large for float32."""
    squares = np.einsum("ij,ij->j", rows, rows, dtype=np.float64)
    return np.asarray(np.sqrt(squares / len(rows)), np.float32)


def round_rows(matrix: _Array) -> _Array:
    """Each row in 255 steps around zero, as far as its largest magnitude; float32."""
    steps = np.abs(matrix).max(-1, keepdims=True) / np.float32(127)
    rounded: _Array = np.rint(matrix * inverse(steps)) * steps
    return rounded


def _factors(of_rows: _Array, of_weights: _Array, alpha: float) -> _Array:
    """largest^alpha / largest weight^(1 - alpha), 1 for channels that are always 0."""
    factors = np.ones_like(of_rows)
    is_used = (of_rows > 0) & (of_weights > 0)
    if not is_used.any():
        return factors
    exponents = alpha * np.log2(of_rows[is_used]) - (1 - alpha) * np.log2(of_weights[is_used])
    exponents = np.rint(exponents - exponents.mean()).clip(-_MOST, _MOST)
    factors[is_used] = np.exp2(exponents)
    return factors


def _relative_error(got: _Array, exact: _Array) -> float:
    """Squared error of each row over its squared length, in the mean of the rows."""
    lengths = np.square(exact, dtype=np.float64).sum(-1)
    errors = np.square(got - exact, dtype=np.float64).sum(-1)
    is_used = lengths > 0
    return float((errors[is_used] / lengths[is_used]).sum())


def _spread(factors: _Array, repeats: Sequence[int]) -> _Array:
    """Factors of values `(kv_heads * size,)` as those of all heads `(kv_heads * group * size,)`."""
    kv_heads, _, size = repeats
    by_head = factors.reshape(kv_heads, 1, size)
    spread: _Array = np.broadcast_to(by_head, repeats).reshape(-1)
    return spread


def _groups(source: Checkpoint) -> tuple[int, int, int]:
    config = source.config
    return config.num_kv_heads, config.num_heads // config.num_kv_heads, config.head_dim


def _layer_factors(
    source: Checkpoint, number: int, inputs: LayerInputs, *, behind_norms: bool
) -> _LayerFactors:
    """The factors of a layer; 1 for what norms give unless `behind_norms`."""

    def weight(*parts: str) -> _Array:
        return np.concatenate([source.weight_tensor(number, part).load() for part in parts])

    out, down = weight("self_attn.o_proj"), weight("mlp.down_proj")
    qkv = gate_up = np.ones(source.config.hidden_size, np.float32)
    if behind_norms:
        qkv = channel_factors(inputs.qkv, weight(*(f"self_attn.{part}_proj" for part in "qkv")))
        gate_up = channel_factors(inputs.gate_up, weight("mlp.gate_proj", "mlp.up_proj"))
    return _LayerFactors(
        qkv=qkv,
        value=channel_factors(inputs.attention_out, out, _groups(source), is_fine=True),
        gate_up=gate_up,
        down=channel_factors(inputs.down, down, is_fine=True),
    )


def _folded(source: Checkpoint, number: int, factors: _LayerFactors) -> Mapping[str, Tensor]:
    """The tensors of a layer that change."""
    config, prefix = source.config, f"model.layers.{number}"
    key = config.num_kv_heads * config.head_dim
    query, ffn = config.num_heads * config.head_dim, config.ffn_size
    norms = config.norm_names(number)
    changed: dict[str, Tensor] = {}

    def change(name: str, rows: _Array | None = None, columns: _Array | None = None) -> None:
        changed[name] = source.tensors[name].scaled(rows=rows, columns=columns)

    for field, divisors in (("attention_norm", factors.qkv), ("ffn_norm", factors.gate_up)):
        change(f"{norms[field]}.weight", np.reciprocal(divisors))
    ones = {"qk": np.ones(query + key, np.float32), "gate": np.ones(ffn, np.float32)}
    of_values, of_up = np.reciprocal(factors.value), np.reciprocal(factors.down)
    qkv_rows: dict[str, _Array | None]
    gate_up_rows: dict[str, _Array | None]
    if config.is_fused:
        qkv_rows = {"qkv_proj": np.concatenate([ones["qk"], of_values])}
        gate_up_rows = {"gate_up_proj": np.concatenate([ones["gate"], of_up])}
    else:
        qkv_rows = {"q_proj": None, "k_proj": None, "v_proj": of_values}
        gate_up_rows = {"gate_proj": None, "up_proj": of_up}
    for part, rows in qkv_rows.items():
        change(f"{prefix}.self_attn.{part}.weight", rows, factors.qkv)
        if config.qkv_bias and rows is not None:
            change(f"{prefix}.self_attn.{part}.bias", rows)
    for part, rows in gate_up_rows.items():
        change(f"{prefix}.mlp.{part}.weight", rows, factors.gate_up)
    change(f"{prefix}.self_attn.o_proj.weight", None, _spread(factors.value, _groups(source)))
    change(f"{prefix}.mlp.down_proj.weight", None, factors.down)
    return changed


def _with_head(source: Checkpoint, inputs: LinearInput) -> Checkpoint:
    """The model with an equalised output layer of its own."""
    output = source.output_tensor()
    step = max(1, output.shape[0] // _HEAD_OUTPUTS)
    sampled = np.concatenate(
        [output.read_rows(row, row + 1) for row in range(0, output.shape[0], step)]
    )
    factors = channel_factors(inputs, sampled, is_fine=True)
    norm = source.tensors["model.norm.weight"]
    changed = {
        # A tied one may be stored under the name of the output layer.
        "model.embed_tokens.weight": source.embedding_tensor(),
        "model.norm.weight": norm.scaled(rows=np.reciprocal(factors)),
        "lm_head.weight": replace(output, name="lm_head.weight").scaled(columns=factors),
    }
    config = replace(source.config, tied_head=False)
    return replace(source, config=config, tensors={**source.tensors, **changed})
