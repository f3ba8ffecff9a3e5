"""The bytes of tokens, told by a tokenizer's file: of each token, and of any token at most.

In: a parsed `tokenizer.json`. Out: a `TokenSpelling`, which gives a token's bytes, which need not
be whole characters; and a `TokenBound`, by which a text that cannot fit is known before it is
tokenized, or None where one token may stand for any text: where runs of unknown characters become
one token or none, and where normalizing leaves characters out.
"""

import math
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

_SHRINKS = {"NFC": 4, "NFD": 3, "NFKC": 4, "NFKD": 4, "Lowercase": 3, "Prepend": 1, "ByteLevel": 1}
"""How many times as many bytes a normalizer may get as it gives: three for `U+212A`, which becomes
K, and four for bold letters, which become plain ones. Composed characters have up to 3.5 times as
many in parts."""

_FORMS: tuple[Literal["NFC", "NFD", "NFKC", "NFKD"], ...] = ("NFC", "NFD", "NFKC", "NFKD")

_KEEPING = {"ByteLevel", "Digits", "FixedLength", "Metaspace"}
"""Pre-tokenizers that leave nothing out."""
_LEAVING_SPACES = {"BertPreTokenizer", "UnicodeScripts", "Whitespace", "WhitespaceSplit"}
"""Pre-tokenizers that leave out white space alone; `UnicodeScripts` only at the beginning."""
_ADDING = {"BertProcessing", "ByteLevel", "RobertaProcessing"}
"""Post-processors that take no token away."""

_LONGEST_CHARACTER = 4
_BYTES_OF_TEXT = (*range(0xC0), *range(0xC2, 0xF5))
"""The bytes that occur in UTF-8."""


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
        decoders = [*_parts(tokenizer.get("decoder"), "decoders")]
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


def _replaced(decoders: Iterable[dict[str, Any]]) -> Iterable[tuple[str, str]]:
    """What the decoders put in place of which string."""
    for decoder in decoders:
        if decoder.get("type") == "Metaspace":
            yield decoder.get("replacement", "▁"), " "
        if decoder.get("type") == "Replace" and (mark := decoder["pattern"].get("String")):
            yield mark, decoder["content"]


@dataclass(frozen=True)
class TokenBound:
    """What a token can stand for at most.

    Attributes:
        bytes_per_token: Bytes of UTF-8.
        counts_spaces: Whether white space is among them; else any amount of it may add no token.
        lost: Bytes that the vocabulary lacks, so that they are left out.
    """

    bytes_per_token: int
    counts_spaces: bool = True
    lost: bytes = b""

    def least_tokens(self, text: str) -> int:
        """How many tokens a text has at least; `text` is valid Unicode."""
        counted = text if self.counts_spaces else "".join(text.split())
        return -(-len(counted.encode().translate(None, self.lost)) // self.bytes_per_token)


def token_bound(tokenizer: dict[str, Any]) -> TokenBound | None:
    """What a token of a parsed `tokenizer.json` can stand for; None for any text, or if unknown."""
    try:
        return _bound(tokenizer)
    except (AttributeError, KeyError, TypeError, ValueError):  # of a form that is not known
        return None


def _bound(tokenizer: dict[str, Any]) -> TokenBound | None:
    normalizers = [*_parts(tokenizer.get("normalizer"), "normalizers")]
    splitters = [*_parts(tokenizer.get("pre_tokenizer"), "pretokenizers")]
    added = tokenizer.get("added_tokens") or []
    is_bytes = any(part["type"] == "ByteLevel" for part in (*normalizers, *splitters))
    longest, lost = _longest(tokenizer["model"], is_bytes=is_bytes)
    shrinks = _shrinks(normalizers)
    if longest is None or shrinks is None or not all(map(_keeps_text, splitters)):
        return None
    if lost and normalizers:  # which bytes come out of them is not known
        return None
    if not all(map(_keeps_tokens, _parts(tokenizer.get("post_processor"), "processors"))):
        return None
    contents = [token["content"] for token in added]
    contents += [_normalized(content, normalizers) for content in contents]
    longest = max(longest, *(len(content.encode()) for content in contents), 1)
    leaves_spaces = (
        any(part["type"] in _LEAVING_SPACES for part in splitters)
        or any(part["type"] == "Strip" for part in normalizers)
        or any(token.get("lstrip") or token.get("rstrip") for token in added)
    )
    if leaves_spaces and any(map(_makes_spaces, normalizers)):
        return None
    return TokenBound(math.ceil(longest * shrinks), not leaves_spaces, lost)


def _parts(component: dict[str, Any] | None, inside: str) -> Iterable[dict[str, Any]]:
    """A component of a tokenizer, or those of which it is a sequence."""
    if component is None:
        return
    if component.get("type") != "Sequence":
        yield component
        return
    for part in component[inside]:
        yield from _parts(part, inside)


def _longest(model: dict[str, Any], *, is_bytes: bool) -> tuple[int | None, bytes]:
    """Bytes of the longest token, and the bytes that no token has.

    There is no longest where unknown text of any length becomes one token, or none.
    """
    if model["type"] not in ("BPE", "Unigram"):
        return None, b""
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None, b""  # which characters are known depends on where they stand
    vocab, is_bpe = model["vocab"], model["type"] == "BPE"
    tokens = set(vocab) if isinstance(vocab, dict) else {piece for piece, _ in vocab}
    if is_bytes and is_bpe and model.get("unk_token") is None:  # characters stand for bytes
        lost = [byte for byte, shown in _byte_characters().items() if shown not in tokens]
        return max(map(len, tokens)), bytes(lost)
    if is_bytes:
        is_complete = all(shown in tokens for shown in _byte_characters().values())
    elif model.get("byte_fallback"):
        is_complete = all(f"<0x{byte:02X}>" in tokens for byte in _BYTES_OF_TEXT)
    else:  # each unknown character is a token of its own
        is_complete = is_bpe and model.get("unk_token") is not None and not model.get("fuse_unk")
    lengths = (len(token.encode()) for token in tokens)
    return (max(*lengths, _LONGEST_CHARACTER) if is_complete else None), b""


def _byte_characters() -> dict[int, str]:
    """The characters that stand for the bytes of text in byte-level vocabularies."""
    shown = byte_characters()
    return {byte: shown[byte] for byte in _BYTES_OF_TEXT}


def _shrinks(normalizers: Iterable[dict[str, Any]]) -> float | None:
    """How many times as many bytes they may get as they give, white space at the ends excepted."""
    found = 1.0
    for part in normalizers:
        if part["type"] == "Replace":
            pattern, content = part["pattern"].get("String"), part["content"]
            if pattern is None or not content:
                return None
            in_bytes = len(pattern.encode()) / len(content.encode())
            found *= max(in_bytes, len(pattern) / len(content), 1.0)
        elif part["type"] != "Strip":
            if part["type"] not in _SHRINKS:
                return None
            found *= _SHRINKS[part["type"]]
    return found


def _normalized(content: str, normalizers: Iterable[dict[str, Any]]) -> str:
    """An added token as it is looked for in a normalized text, of which it may take more."""
    for part in normalizers:
        if part["type"] == "Prepend":
            content = part["prepend"] + content
        elif part["type"] == "Replace":
            content = content.replace(part["pattern"]["String"], part["content"])
        elif part["type"] in _FORMS:
            content = unicodedata.normalize(part["type"], content)
    return content


def _makes_spaces(normalizer: dict[str, Any]) -> bool:
    """Whether something else than white space becomes some."""
    if normalizer["type"] != "Replace":
        return False
    had, has = normalizer["pattern"]["String"], normalizer["content"]
    return bool(had.strip()) and any(character.isspace() for character in has)


def _keeps_text(splitter: dict[str, Any]) -> bool:
    if splitter["type"] in ("Split", "Punctuation"):
        return bool(splitter["behavior"] != "Removed")
    return splitter["type"] in _KEEPING | _LEAVING_SPACES


def _keeps_tokens(processor: dict[str, Any]) -> bool:
    if processor["type"] == "TemplateProcessing":
        return any("A" in part.get("Sequence", {}).values() for part in processor["single"])
    return processor["type"] in _ADDING
