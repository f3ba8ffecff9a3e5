"""Legacy checkpoints of llama2.c: a header of seven numbers, then float32 weights.

In: the path of a `.bin` file with `tok*.bin` beside it. Out: configuration, tensors under their
Hugging Face names, and the tokenizer. llama2.c rotates neighbouring pairs (2i, 2i + 1) where our
graphs rotate halves (i, i + head_dim / 2), so the rows of the query and key weights are reordered.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.convert.containers.llama2c_tokenizer import convert_tokenizer
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.families.config.fields import Rotation
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.families.config.rope import read_rope
from coordgen_rs.errors import CheckpointError

_HEADER_BYTES = 7 * 4
_MAX_SIZE = 1 << 24
"""A larger number in the header means that the file is something else."""

_BOS, _EOS = 1, 2


def open_llama2c(path: Path) -> Checkpoint:
    """Opens a legacy checkpoint (the format of llama2.c's `run.c`).

    Raises:
        CheckpointError: The header makes no sense, or the file has another length than it says.
    """
    config, num_positions = _read_header(path)
    num_bytes, expected = path.stat().st_size, _num_bytes(config, num_positions)
    if num_bytes != expected:
        raise CheckpointError(f"{path} has {num_bytes} bytes, its header says {expected}")
    tensors: dict[str, Tensor] = {}
    offset = _HEADER_BYTES
    for name, shape in _layout(config, num_positions):
        if name:
            weights = _Weights(path, name, shape, offset, _rotated_heads(name, config))
            tensors[name] = Tensor(name, shape, weights.read_rows)
        offset += 4 * math.prod(shape)
    return Checkpoint(config, tensors, partial(convert_tokenizer, path.parent, config.vocab_size))


def _read_header(path: Path) -> tuple[ModelConfig, int]:
    try:
        header = np.fromfile(path, "<i4", 7)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    sizes = [int(size) for size in header]
    if len(sizes) != 7 or any(not 0 < size < _MAX_SIZE for size in [*sizes[:5], sizes[6]]):
        raise CheckpointError(f"{path} is not a legacy checkpoint of llama2.c")
    dim, hidden, num_layers, num_heads, num_kv_heads, vocab_size, num_positions = sizes
    if dim % num_heads or num_heads % num_kv_heads or dim // num_heads % 2 or vocab_size == 0:
        raise CheckpointError(f"{path} is not a legacy checkpoint of llama2.c")
    config = ModelConfig(
        family="llama",
        hidden_size=dim,
        ffn_size=hidden,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=dim // num_heads,
        vocab_size=abs(vocab_size),
        max_positions=num_positions,
        rms_norm_eps=1e-5,
        inv_freq=read_rope(Rotation({"rope_theta": 10_000.0}, dim // num_heads)).inv_freq,
        tied_head=vocab_size > 0,
        qkv_bias=False,
        bos_token_id=_BOS,
        # Stories are delimited by the begin token, and run.c stops there.
        end_token_ids=[_BOS, _EOS],
    )
    return config, num_positions


def _layout(config: ModelConfig, num_positions: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """All tensors in the order of the file; the name is empty for what is not used."""
    dim, head_dim = config.hidden_size, config.head_dim
    yield "model.embed_tokens.weight", (config.vocab_size, dim)
    for part, shape in _per_layer(config):
        for layer in range(config.num_layers):
            yield f"model.layers.{layer}.{part}.weight", shape
    yield "model.norm.weight", (dim,)
    yield "", (num_positions, head_dim)  # cosines and sines of the rotary embedding
    if not config.tied_head:
        yield "lm_head.weight", (config.vocab_size, dim)


def _per_layer(config: ModelConfig) -> list[tuple[str, tuple[int, ...]]]:
    dim, ffn, kv = config.hidden_size, config.ffn_size, config.num_kv_heads * config.head_dim
    return [
        ("input_layernorm", (dim,)),
        ("self_attn.q_proj", (dim, dim)),
        ("self_attn.k_proj", (kv, dim)),
        ("self_attn.v_proj", (kv, dim)),
        ("self_attn.o_proj", (dim, dim)),
        ("post_attention_layernorm", (dim,)),
        ("mlp.gate_proj", (ffn, dim)),
        ("mlp.down_proj", (dim, ffn)),
        ("mlp.up_proj", (ffn, dim)),
    ]


def _num_bytes(config: ModelConfig, num_positions: int) -> int:
    """The length of the file, known before millions of layers of a damaged header are listed."""
    a_layer = sum(math.prod(shape) for _, shape in _per_layer(config))
    one = dataclasses.replace(config, num_layers=0)
    others = sum(math.prod(shape) for _, shape in _layout(one, num_positions))
    return _HEADER_BYTES + 4 * (config.num_layers * a_layer + others)


def _rotated_heads(name: str, config: ModelConfig) -> int | None:
    """The number of heads whose rows have to be reordered, None for other tensors."""
    if ".q_proj." in name:
        return config.num_heads
    return config.num_kv_heads if ".k_proj." in name else None


@dataclass(frozen=True)
class _Weights:
    """Where a tensor stands in the file."""

    path: Path
    name: str
    shape: tuple[int, ...]
    offset: int
    num_rotated_heads: int | None

    def read_rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows `start..stop`; raises CheckpointError if the file ends early."""
        if self.num_rotated_heads is None:
            return self._read(start, stop)
        pairs = self._read(0, self.shape[0]).reshape(self.num_rotated_heads, -1, 2, self.shape[1])
        halves = pairs.swapaxes(1, 2).reshape(self.shape)
        return halves[start:stop]

    def _read(self, start: int, stop: int) -> NDArray[np.float32]:
        row_elements = math.prod(self.shape[1:])
        count = (stop - start) * row_elements
        try:
            rows = np.fromfile(
                self.path, "<f4", count, offset=self.offset + 4 * start * row_elements
            )
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error}") from error
        if rows.size != count:
            raise CheckpointError(f"{self.path} ends inside {self.name}")
        return rows.astype(np.float32, copy=False).reshape(stop - start, *self.shape[1:])
