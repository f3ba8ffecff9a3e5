"""The tokenizer.bin of llama2.c as a tokenizer.json.

In: a directory with a tokenizer.bin (longest length, then score, length and bytes of each piece).
Out: JSON for the tokenizers package that encodes as llama2.c does: a space is put before the text,
characters that are no piece become bytes, and of all neighbours whose join is a piece those with
the best score are joined first. Pieces keep their plain spaces.
"""

import json
import struct
from pathlib import Path
from typing import Any

from coordgen_rs.errors import CheckpointError

_SPECIAL = ("<unk>", "<s>", "</s>")
_FIRST_PIECE = len(_SPECIAL) + 256
"""Ids below are the special tokens and the 256 bytes."""


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
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": vocabulary[name],
                "content": name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for name in _SPECIAL
        ],
        "normalizer": {"type": "Prepend", "prepend": " "},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": begin}, {"Sequence": text}],
            "pair": [
                {"SpecialToken": begin},
                {"Sequence": text},
                {"Sequence": {**text, "id": "B"}},
            ],
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
