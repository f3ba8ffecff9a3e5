"""A checkpoint of llama2.c with its tokenizer: refused by name, or read to the last tensor.

The input is seven numbers of two bytes, which are the header, and then the tokenizer's file. The
weights are zeros: as many as the header asks for, or where those are many, too few.
"""

import struct

from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.errors import CheckpointError
from coordgen_rs.text.tokenizer import Tokenizer
from scratch import FOLDER, holding

_MOST_WEIGHTS = 1 << 16
_MOST_LAYERS = 4
"""Each has nine tensors; a file of hundreds of tiny layers takes longer and reaches no more."""


def run(data: bytes) -> None:
    """Open the checkpoint, read its tensors and use its tokenizer."""
    numbers = [*struct.unpack("<7h", data[:14].ljust(14, b"\0"))]
    if data[14:15] == b"w":  # wide ones, which a damaged file has
        numbers = [number << 9 for number in numbers]
    num_weights = _num_weights(*numbers)
    if not 0 <= num_weights <= _MOST_WEIGHTS or numbers[2] > _MOST_LAYERS:
        num_weights = 1_000
    holding("model.bin", struct.pack("<7i", *numbers), zeros=4 * num_weights)
    holding("tok.bin", data[15:])
    try:
        checkpoint = open_checkpoint(FOLDER / "model.bin")
        for tensor in checkpoint.tensors.values():
            assert sum(len(piece) for piece in tensor.pieces()) == tensor.shape[0]
        text = checkpoint.read_tokenizer()
    except CheckpointError:
        return
    tokenizer = Tokenizer(holding("tokenizer.json", text.encode()))
    assert tokenizer.vocab_size == checkpoint.config.vocab_size
    tokenizer.decode(tokenizer.encode("a b\n").tolist())


def _num_weights(
    dim: int, ffn: int, layers: int, heads: int, kv_heads: int, vocab: int, positions: int
) -> int:
    if dim <= 0 or heads <= 0:
        return -1
    kv = kv_heads * (dim // heads)
    per_layer = 2 * dim + 2 * dim * dim + 2 * kv * dim + 3 * dim * ffn
    embeddings = abs(vocab) * dim * (1 if vocab > 0 else 2)
    return embeddings + layers * per_layer + dim + positions * (dim // heads)
