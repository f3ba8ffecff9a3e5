"""Legacy checkpoints of llama2.c: a header of seven numbers, then float32 weights.

In: the path of a `.bin` file with `tok*.bin` beside it. Out: what a Hugging Face directory of the
same model would hold: config.json, tensors and tokenizer.json. llama2.c rotates neighbouring pairs
(2i, 2i + 1) where our graphs rotate halves (i, i + head_dim / 2), so the rows of the query and key
weights are reordered. Its tokenizer puts a space before the text, makes bytes of characters that
are no piece, and of all neighbours whose join is a piece joins those with the best score first.
"""

import json
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.convert.containers.tensor import Tensor, read_numbers
from coordgen_rs.errors import CheckpointError

_HEADER_BYTES = 7 * 4
_MAX_SIZE = 1 << 24
"""A larger number in the header means that the file is something else."""

_BOS, _EOS = 1, 2
_SPECIAL = ("<unk>", "<s>", "</s>")
_PLAIN = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
"""How a special token is found in a text."""
_FIRST_PIECE = len(_SPECIAL) + 256
"""Ids below are the special tokens and the 256 bytes."""


class Llama2cFile(NamedTuple):
    """An opened checkpoint, in the words of Hugging Face."""

    config: dict[str, Any]
    """What its config.json would hold."""
    tensors: dict[str, Tensor]
    read_tokenizer: Callable[[], str]
    """The text of a tokenizer.json; may raise CheckpointError."""


def read_llama2c(path: Path) -> Llama2cFile:
    """Reads a legacy checkpoint (the format of llama2.c's `run.c`).

    Raises:
        CheckpointError: The header makes no sense, or the file has another length than it says.
    """
    sizes = _read_sizes(path)
    # Known before millions of layers of a damaged header are listed.
    a_layer = sum(math.prod(shape) for _, shape in _per_layer(sizes))
    others = sum(math.prod(shape) for _, shape in _layout(replace(sizes, num_layers=0)))
    expected = _HEADER_BYTES + 4 * (sizes.num_layers * a_layer + others)
    num_bytes = path.stat().st_size
    if num_bytes != expected:
        raise CheckpointError(f"{path} has {num_bytes} bytes, its header says {expected}")
    tensors: dict[str, Tensor] = {}
    offset = _HEADER_BYTES
    for name, shape in _layout(sizes):
        if name:
            tensor = Tensor(name, shape, partial(_read_rows, path, name, shape, offset))
            is_rotated = ".q_proj." in name or ".k_proj." in name
            tensors[name] = tensor.halves(sizes.head_dim, sizes.head_dim) if is_rotated else tensor
        offset += 4 * math.prod(shape)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": sizes.dim,
        "intermediate_size": sizes.hidden,
        "num_hidden_layers": sizes.num_layers,
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": sizes.num_kv_heads,
        "vocab_size": sizes.num_tokens,
        "max_position_embeddings": sizes.num_positions,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": sizes.vocab_size > 0,
        "bos_token_id": _BOS,
        # Stories are delimited by the begin token, and run.c stops there.
        "eos_token_id": [_BOS, _EOS],
    }
    return Llama2cFile(config, tensors, partial(convert_tokenizer, path.parent, sizes.num_tokens))


@dataclass(frozen=True)
class _Sizes:
    """The header."""

    dim: int
    hidden: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    """Negative where the head is not the embedding."""
    num_positions: int

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    @property
    def num_tokens(self) -> int:
        return abs(self.vocab_size)


def _read_sizes(path: Path) -> _Sizes:
    """The header of a file.

    Raises:
        CheckpointError: It cannot be read, or is none.
    """
    try:
        header = np.fromfile(path, "<i4", 7)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    sizes = [int(size) for size in header]
    if len(sizes) == 7 and all(0 < size < _MAX_SIZE for size in [*sizes[:5], sizes[6]]):
        found = _Sizes(*sizes)
        are_grouped = found.dim % found.num_heads == 0 == found.num_heads % found.num_kv_heads
        if are_grouped and found.head_dim % 2 == 0 and found.vocab_size != 0:
            return found
    raise CheckpointError(f"{path} is not a legacy checkpoint of llama2.c")


def _layout(sizes: _Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """All tensors in the order of the file; the name is empty for what is not used."""
    yield "model.embed_tokens.weight", (sizes.num_tokens, sizes.dim)
    for part, shape in _per_layer(sizes):
        for layer in range(sizes.num_layers):
            yield f"model.layers.{layer}.{part}.weight", shape
    yield "model.norm.weight", (sizes.dim,)
    yield "", (sizes.num_positions, sizes.head_dim)  # cosines and sines of the rotary embedding
    if sizes.vocab_size < 0:
        yield "lm_head.weight", (sizes.num_tokens, sizes.dim)


def _per_layer(sizes: _Sizes) -> list[tuple[str, tuple[int, ...]]]:
    dim, ffn, kv = sizes.dim, sizes.hidden, sizes.num_kv_heads * sizes.head_dim
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


def _read_rows(
    path: Path, name: str, shape: tuple[int, ...], offset: int, start: int, stop: int
) -> NDArray[np.float32]:
    """Rows `start..stop` of a tensor that begins at a byte of the file."""
    row_elements = math.prod(shape[1:])
    first, count = offset + 4 * start * row_elements, (stop - start) * row_elements
    rows = read_numbers(path, name, np.dtype("<f4"), first, count)
    return rows.astype(np.float32, copy=False).reshape(stop - start, *shape[1:])


def convert_tokenizer(directory: Path, vocab_size: int) -> str:
    """The tokenizer.json for the only `tok*.bin` in a directory.

    Raises:
        CheckpointError: There is none, or more than one, or it is damaged.
    """
    found = sorted(directory.glob("tok*.bin"))
    if len(found) != 1:
        raise CheckpointError(f"{directory} holds {len(found)} tok*.bin files, expected one")
    (path,) = found
    try:
        pieces = _read_pieces(path.read_bytes(), vocab_size)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except (ValueError, struct.error) as error:
        raise CheckpointError(f"{path} is not a llama2.c tokenizer: {error}") from error
    vocabulary = {piece: token_id for token_id, (piece, _) in enumerate(pieces)}
    if len(vocabulary) != len(pieces):
        raise CheckpointError(f"{path} holds a piece twice")
    return json.dumps(_document(vocabulary, _merges(pieces, vocabulary)), ensure_ascii=False)


def _read_pieces(raw: bytes, vocab_size: int) -> list[tuple[str, float]]:
    """Text and score of each piece.

    Raises:
        ValueError: The bytes are none, or hold another number of pieces.
    """
    pieces: list[tuple[str, float]] = []
    offset = 4
    while offset < len(raw):
        score, length = struct.unpack_from("<fi", raw, offset)
        offset += 8 + length
        if length < 0 or offset > len(raw):
            raise ValueError(f"it ends inside piece {len(pieces)}")
        pieces.append((raw[offset - length : offset].decode("utf-8"), score))
    if len(pieces) != vocab_size or vocab_size < _FIRST_PIECE:
        raise ValueError(f"{len(pieces)} pieces, expected {vocab_size}")
    # The file writes the two delimiters with line breaks around them, for printing.
    special = [(name, 0.0) for name in _SPECIAL]
    return special + pieces[len(_SPECIAL) :]


def _merges(pieces: list[tuple[str, float]], vocabulary: dict[str, int]) -> list[list[str]]:
    """Every way to join two pieces to a piece, best score first."""
    joinable = {piece for piece, _ in pieces[_FIRST_PIECE:]}
    ordered = sorted(pieces[_FIRST_PIECE:], key=lambda piece: -piece[1])
    return [
        [piece[:cut], piece[cut:]]
        for piece, _ in ordered
        for cut in range(1, len(piece))
        if piece[:cut] in joinable and piece[cut:] in joinable
    ]


def _document(vocabulary: dict[str, int], merges: list[list[str]]) -> dict[str, Any]:
    begin = {"id": "<s>", "type_id": 0}
    text = {"id": "A", "type_id": 0}
    single: list[dict[str, Any]] = [{"SpecialToken": begin}, {"Sequence": text}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": vocabulary[name], "content": name, **_PLAIN, "special": True}
            for name in _SPECIAL
        ],
        "normalizer": {"type": "Prepend", "prepend": " "},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {**text, "id": "B"}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": merges,
        },
    }
