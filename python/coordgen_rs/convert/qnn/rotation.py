"""The residual stream of a model turned by an orthogonal matrix, so that no channel stands out.

In: a checkpoint. Out: one that computes the same, whose residual stream is the other's times an
orthogonal matrix. It rounds nothing itself.

Some models carry a few huge numbers in a few channels of the residual stream, most of all at their
first token (SmolLM2: 24,926 there, 1,185 at others, a few units in most channels). In fixed point
all channels share one step, which those numbers make coarse. Turned, they are spread over all
channels: QuaRot, https://arxiv.org/abs/2404.00456, section 4.1. RMSNorm without its weights
commutes with the turn, so its weights go into the matrices that read it; embedding, matrices that
write and matrices that read take the turn itself. Nothing is left to do at run time. A head that is
tied to the embedding gets weights of its own, because the last norm's weights are in it.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.layers import linear_layers

_Array = NDArray[np.float32]

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


def orthogonal_matrix(size: int) -> _Array:
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


def _turned_layer(source: Checkpoint, number: int, turn: _Array) -> dict[str, Tensor]:
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


def _reading(tensor: Tensor, turn: _Array) -> Tensor:
    """A matrix `(n, D)` that reads the turned stream."""
    return tensor.computed(lambda rows: rows @ turn)


def _writing(tensor: Tensor, turn: _Array) -> Tensor:
    """A matrix `(D, n)` that writes to the turned stream."""

    def read_rows(start: int, stop: int) -> _Array:
        rows: _Array = turn[:, start:stop].T @ tensor.load()
        return rows

    return Tensor(tensor.name, tensor.shape, read_rows)
