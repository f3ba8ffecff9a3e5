"""The bytes of tokens: those that a text of them has."""

import json

import pytest

from coordgen_rs.text.token_bytes import TokenSpelling, byte_characters
from coordgen_rs.text.tokenizer import Tokenizer

TEXTS = ("Once upon a time", " the lamp,  red\n\tand green", "Größe: 日本 \U0001f600", "")


def test_the_bytes_of_a_texts_tokens_are_those_of_the_text(bundle_of):
    for name in ("embedded", "stories260K"):
        tokenizer = Tokenizer(bundle_of(name, "fp32") / "tokenizer.json")
        for text in TEXTS:
            ids = tokenizer.encode(text, special_tokens=False).tolist()
            spelt = b"".join(map(tokenizer.spelling.bytes_of, ids)).decode()
            # SentencePiece puts a space before a text, and its decoder takes it away.
            assert spelt in (text, f" {text}")


def test_marks_bytes_and_added_tokens_are_told_apart():
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    added = [{"id": 5, "content": "<s>", "special": True}, {"id": 6, "content": "▁"}]
    tokenizer = {"decoder": {"type": "Sequence", "decoders": decoders}, "added_tokens": added}
    spelling = TokenSpelling(tokenizer, {"▁a▁b": 0, "<0xC3>": 1, "<0x": 2})
    assert [spelling.bytes_of(token) for token in (0, 1, 2, 5, 6, 7)] == [
        *(b" a b", b"\xc3", b"<0x", b"<s>", "▁".encode(), b"")
    ]
    assert [spelling.is_special(token) for token in (0, 5, 6, 7)] == [False, True, False, False]


@pytest.mark.parametrize("decoder", [{"type": "ByteLevel"}, None])
def test_characters_stand_for_bytes_only_in_byte_level_vocabularies(decoder):
    spelling = TokenSpelling({"decoder": decoder}, {"ĠÃ": 0, "日": 1})
    assert spelling.bytes_of(0) == (b" \xc3" if decoder else "ĠÃ".encode())
    assert spelling.bytes_of(1) == "日".encode()
    assert json.dumps(byte_characters()[ord(" ")], ensure_ascii=False) == '"Ġ"'
