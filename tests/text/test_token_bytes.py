"""The bytes of tokens: those that a text of them has, and how many one can stand for at most."""

import itertools
import json
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer

from coordgen_rs.text.token_bytes import (
    _SHRINKS,
    TokenBound,
    TokenSpelling,
    _byte_characters,
    byte_characters,
    token_bound,
)
from coordgen_rs.text.tokenizer import Tokenizer

SHARED = Path(__file__).parents[2].parent / "shared" / "tokenizers"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}


def added(content, **options):
    told = {"id": 0, "content": content, "single_word": False, "special": True}
    return told | {"lstrip": False, "rstrip": False, "normalized": False} | options


def bpe(tokens, **options):
    vocab = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    return {"type": "BPE", "vocab": vocab, "merges": []} | options


def tokenizer(model, **parts):
    return {"version": "1.0", "added_tokens": [], "model": model} | parts


def replacing(content, **pattern):
    return {"type": "Replace", "pattern": pattern, "content": content}


LETTERS = bpe(["a", "b", "▁", "<unk>"], unk_token="<unk>")
FALLBACK = bpe([*BYTES, "a", "Ä", "<unk>"], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
BYTE_BPE = bpe(_byte_characters().values())
MERGED = bpe([*_byte_characters().values(), "aa", "aaaa"]) | {"merges": ["a a", "aa aa"]}
LACKING = bpe([shown for byte, shown in _byte_characters().items() if byte not in (4, 0xF1)])
UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["aab", -1.0]]}
UNIGRAM_BYTES = UNIGRAM | {
    "byte_fallback": True,
    "vocab": [*UNIGRAM["vocab"], *([token, -5.0] for token in BYTES)],
}

BOUNDED = {
    "unknown characters": tokenizer(LETTERS),
    "bytes of unknown characters": tokenizer(FALLBACK),
    "unigram with bytes": tokenizer(UNIGRAM_BYTES),
    "byte level": tokenizer(BYTE_BPE, pre_tokenizer=LEVEL),
    "byte level, merged": tokenizer(MERGED, pre_tokenizer=LEVEL),
    "byte level, bytes lacking": tokenizer(LACKING, pre_tokenizer=LEVEL),
    "spaces at the ends": tokenizer(LETTERS, normalizer=STRIP),
    "words": tokenizer(LETTERS, pre_tokenizer={"type": "Whitespace"}),
    "shorter": tokenizer(LETTERS, normalizer=replacing("a", String="bbbb")),
    "an added token that takes the spaces": tokenizer(
        LETTERS, added_tokens=[added("<unk>"), added("<end>", id=4, rstrip=True)]
    ),
    "scripts": tokenizer(LETTERS, pre_tokenizer={"type": "UnicodeScripts"}),
    "an added token that is normalized": tokenizer(
        LETTERS,
        normalizer={"type": "Prepend", "prepend": "bbbb"},
        added_tokens=[added("<unk>"), added("bbbb", id=4, normalized=True)],
    ),
    **{
        form: tokenizer(BYTE_BPE, normalizer={"type": form}, pre_tokenizer=LEVEL)
        for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")
    },
}

REMOVES = {"type": "Split", "pattern": {"String": "a"}, "behavior": "Removed", "invert": False}
WITHOUT_TEXT = {"type": "TemplateProcessing", "pair": [], "special_tokens": {}}
WITHOUT_TEXT |= {"single": [{"Sequence": {"id": "B", "type_id": 0}}]}
WORD_PIECE = {"type": "WordPiece", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}
WORD_PIECE |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 9}

UNBOUNDED = {
    "fused unknowns": tokenizer(LETTERS | {"fuse_unk": True}),
    "dropped unknowns": tokenizer(LETTERS | {"unk_token": None}),
    "unigram": tokenizer(UNIGRAM),
    "bytes lacking": tokenizer(bpe(["a", *BYTES[1:]], byte_fallback=True)),
    "word pieces": tokenizer(WORD_PIECE),
    "whole words": tokenizer({"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}),
    "accents": tokenizer(LETTERS, normalizer={"type": "StripAccents"}),
    "a pattern left out": tokenizer(LETTERS, normalizer=replacing("a", Regex="a+")),
    "nothing in its place": tokenizer(LETTERS, normalizer=replacing("", String="a")),
    "spaces in its place, which are left out": tokenizer(
        LETTERS, normalizer=replacing(" ", String="a"), pre_tokenizer={"type": "Whitespace"}
    ),
    "other characters inside a word": tokenizer(
        BYTE_BPE | {"continuing_subword_prefix": "##"}, pre_tokenizer=LEVEL
    ),
    "other characters at a word's end": tokenizer(
        BYTE_BPE | {"end_of_word_suffix": "</w>"}, pre_tokenizer=LEVEL
    ),
    "bytes lacking behind a normalizer": tokenizer(
        LACKING, normalizer={"type": "NFC"}, pre_tokenizer=LEVEL
    ),
    "a split that removes": tokenizer(
        LETTERS, pre_tokenizer={"type": "Sequence", "pretokenizers": [REMOVES]}
    ),
    "a template without the text": tokenizer(LETTERS, post_processor=WITHOUT_TEXT),
    "a form that is not known": tokenizer(LETTERS, normalizer={"type": "Replace"}),
    "what is not known": tokenizer(LETTERS, normalizer={"type": "ToBeInvented"}),
}

PARTS = ["a", "aaaa", "bbbb", " ", "\n\t ", "<end>", "\x04", "Ä", "A\u030a", "\u212b", "\u1fef"]
PARTS += ["ᄀ", "\u1161", "\u11a8", "\U0001d400", "日", "\U00040000", "\u2126", "é", "\u0301"]
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=30).map("".join)


@pytest.mark.parametrize("name", BOUNDED)
def test_a_text_never_has_fewer_tokens_than_the_bound_says(name):
    made = HuggingFaceTokenizer.from_str(json.dumps(BOUNDED[name]))
    bound = token_bound(json.loads(made.to_str()))
    assert bound is not None

    @settings(max_examples=60)
    @given(TEXTS)
    @example("a" * 400)
    @example("bbbb" * 50)
    @example(" " * 400)
    @example("\x04" * 400 + "\U00040000" * 9)
    @example("<end>" + " " * 400)
    @example("\u1fef" * 90 + "\U0001d400" * 50)
    def holds(text):
        assert bound.least_tokens(text) <= len(made.encode(text).ids)

    holds()


@pytest.mark.parametrize("name", UNBOUNDED)
def test_where_a_token_may_stand_for_any_text_no_bound_is_claimed(name):
    if "not known" not in name:
        HuggingFaceTokenizer.from_str(json.dumps(UNBOUNDED[name]))
    assert token_bound(UNBOUNDED[name]) is None


def test_the_bound_is_reached_by_the_longest_token(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(BOUNDED["byte level, merged"]))
    found = Tokenizer(tmp_path / "tokenizer.json")
    assert found.bound == TokenBound(4)
    assert found.least_tokens("a" * 400) == len(found.encode("a" * 400)) == 100


def test_no_form_of_unicode_has_characters_of_more_bytes_than_assumed():
    characters = [chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]
    made_of_others = [c for c in characters if unicodedata.normalize("NFKD", c) != c]
    most = dict.fromkeys(("NFC", "NFD", "NFKC", "NFKD"), 1.0)
    written = {form: {} for form in ("NFD", "NFKD")}  # bytes of what decomposes to a character
    for character, form in itertools.product(made_of_others, most):
        given, made = len(character.encode()), unicodedata.normalize(form, character)
        most[form] = max(most[form], given / len(made.encode()))
        if form in written and len(made) == 1:
            written[form][made] = max(written[form].get(made, 0), given)
    for character, form in itertools.product(made_of_others, ("NFC", "NFKC")):
        if unicodedata.normalize(form, character) == character:  # what may be composed to it
            by = {"NFC": "NFD", "NFKC": "NFKD"}[form]
            parts = unicodedata.normalize(by, character)
            longest = sum(written[by].get(part, len(part.encode())) for part in parts)
            most[form] = max(most[form], longest / len(character.encode()))
    most["Lowercase"] = max(len(c.encode()) / len(c.lower().encode()) for c in characters)
    assert all(size <= _SHRINKS[form] for form, size in most.items()), most


@pytest.mark.parametrize("name", ["llama2", "llama3", "qwen2.5"])
def test_tokenizers_of_today_have_a_bound(name):
    path = SHARED / name / "tokenizer.json"
    if not path.exists():
        pytest.skip("the tokenizer is not here")
    found = Tokenizer(path)
    for text in ("hello world " * 90, " " * 900, "\u1fef" * 300, "日本" * 200, "\x04" * 300):
        assert 0 < found.least_tokens(text) <= len(found.encode(text, special_tokens=False))


@settings(max_examples=60)
@given(text=TEXTS, special=st.booleans())
def test_long_texts_get_the_tokens_that_they_get_with_offsets(text, special):
    given_one = BOUNDED["an added token that takes the spaces"]
    made = HuggingFaceTokenizer.from_str(json.dumps(given_one))
    one = made.encode(text, add_special_tokens=special)
    [other] = made.encode_batch_fast([text], add_special_tokens=special)
    assert one.ids == other.ids
    assert made.decode_batch([one.ids], skip_special_tokens=special) == [
        made.decode(one.ids, skip_special_tokens=special)
    ]


SPELT = ("Once upon a time", " the lamp,  red\n\tand green", "Größe: 日本 \U0001f600", "")


def test_the_bytes_of_a_texts_tokens_are_those_of_the_text(bundle_of):
    for name in ("embedded", "stories260K"):
        tokenizer = Tokenizer(bundle_of(name, "fp32") / "tokenizer.json")
        for text in SPELT:
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
