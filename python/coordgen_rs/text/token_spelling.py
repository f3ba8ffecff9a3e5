"""The bytes that a token adds to a text, told by a tokenizer's file.

In: a parsed `tokenizer.json`. Out: for each token its bytes, which need not be whole characters.
What a decoder takes away at the beginning of a text, such as a first space, is left in.
"""

from collections.abc import Iterable
from typing import Any


class TokenSpelling:
    """How tokens are spelt.

    Args:
        tokenizer: A parsed `tokenizer.json`.
        strings: The vocabulary's strings and their ids, added tokens left out.
    """

    def __init__(self, tokenizer: dict[str, Any], strings: dict[str, int]) -> None:
        self._strings = {token: string for string, token in strings.items()}
        added = tokenizer.get("added_tokens") or []
        self._added = {token["id"]: str(token["content"]) for token in added}
        self._special = {token["id"] for token in added if token.get("special")}
        decoders = [*_parts(tokenizer.get("decoder"))]
        kinds = {decoder.get("type") for decoder in decoders}
        self._bytes = {shown: byte for byte, shown in byte_characters().items()}
        self._is_byte_level, self._has_bytes = "ByteLevel" in kinds, "ByteFallback" in kinds
        self._replaced = [*_replaced(decoders)]

    def is_special(self, token_id: int) -> bool:
        """Whether a token is no part of a text, such as an end token."""
        return token_id in self._special

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of a token; of a special one its name, and none of one that has no string."""
        if token_id in self._added:
            return self._added[token_id].encode()
        string = self._strings.get(token_id, "")
        if self._is_byte_level and all(character in self._bytes for character in string):
            return bytes(self._bytes[character] for character in string)
        if self._has_bytes and len(string) == 6 and string[:3] == "<0x" and string[5] == ">":
            return bytes.fromhex(string[3:5])
        for mark, content in self._replaced:
            string = string.replace(mark, content)
        return string.encode()


def byte_characters() -> dict[int, str]:
    """The characters that stand for bytes in byte-level vocabularies, as in GPT-2."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(0x100) if byte not in shown]
    moved = {byte: 0x100 + number for number, byte in enumerate(others)}
    return {byte: chr(moved.get(byte, byte)) for byte in range(0x100)}


def _parts(decoder: dict[str, Any] | None) -> Iterable[dict[str, Any]]:
    """A decoder, or those of which it is a sequence."""
    if decoder is None:
        return
    if decoder.get("type") != "Sequence":
        yield decoder
        return
    for part in decoder["decoders"]:
        yield from _parts(part)


def _replaced(decoders: Iterable[dict[str, Any]]) -> Iterable[tuple[str, str]]:
    """What the decoders put in place of which string."""
    for decoder in decoders:
        if decoder.get("type") == "Metaspace":
            yield decoder.get("replacement", "▁"), " "
        if decoder.get("type") == "Replace" and (mark := decoder["pattern"].get("String")):
            yield mark, decoder["content"]
