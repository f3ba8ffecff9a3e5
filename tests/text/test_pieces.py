"""Text piece by piece: it joins to what decoding all at once gives, and no token stops it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models

from checkpoints import CHECKPOINTS
from coordgen_rs import Tokenizer

WORDS = ["▁lo", "lo", "▁", "▁hello", "日"]
END = "</s>"


@pytest.fixture(scope="module")
def fallback(tmp_path_factory):
    """A tokenizer as of Llama 2: bytes that no word covers are tokens of their own."""
    names = ["<unk>", END, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    vocab = {name: number for number, name in enumerate(names)}
    tokenizer = HuggingFaceTokenizer(
        models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.add_special_tokens([END])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    path = tmp_path_factory.mktemp("fallback") / "tokenizer.json"
    tokenizer.save(str(path))
    return Tokenizer(path)


def ids_of(parts):
    """Bytes and words as ids of `fallback`."""
    return [2 + part if isinstance(part, int) else _word(part) for part in parts]


def _word(word):
    return 1 if word == END else 258 + WORDS.index(word)


def joined(tokenizer, ids):
    piece = tokenizer.stream()
    return "".join(map(piece, ids))


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((0x0A, 0xE2, "▁lo"), "\n� lo"),
        ((0xE6, 0x97, 0xA5, 0xE2, "▁lo"), "日� lo"),
        ((0xE2, 0xE2, 0xE2, 0xE2, 0xE2, "lo"), "�����lo"),
        (("▁hello", 0xE2, END), "hello�"),
        (("▁hello", 0xE6, 0x97), "hello"),
        (("▁", END, "▁lo", END, "▁lo"), " lo lo"),
        ((END, "▁lo"), "lo"),
    ],
)
def test_broken_bytes_are_shown_and_do_not_end_the_stream(fallback, parts, text):
    assert joined(fallback, ids_of(parts)) == text


whole = st.lists(st.sampled_from(WORDS) | st.sampled_from("é日😀\n").map(lambda c: [*c.encode()]))


@settings(deadline=None)
@given(whole)
def test_whole_characters_join_to_what_decoding_gives(fallback, parts):
    flat = [p for part in parts for p in (part if isinstance(part, list) else [part])]
    ids = ids_of(flat)
    assert joined(fallback, ids) == fallback.decode(ids)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0x0A, 0xE2, 0x97, 0xA5, 0xF0, "lo", "▁lo", END]), max_size=30))
def test_any_tokens_give_text_and_nothing_waits_long(fallback, parts):
    ids = ids_of(parts)
    # A character has four bytes at most, and as many tokens; three may still wait at the end.
    num_said = len(parts) - parts.count(END)
    assert 4 * len(joined(fallback, ids)) >= num_said - 3
    piece = fallback.stream()
    silent = 0
    for part, token_id in zip(parts, ids, strict=True):
        silent = 0 if piece(token_id) or part == END else silent + 1
        assert silent < 4


@settings(deadline=None)
@given(st.text(max_size=40))
def test_bytes_of_a_byte_level_tokenizer_join_too(text):
    tokenizer = Tokenizer(CHECKPOINTS["embedded"] / "tokenizer.json")
    ids = tokenizer.encode(text, special_tokens=False).tolist()
    expected = tokenizer.decode(ids)
    assert joined(tokenizer, ids) == expected
    for end in range(len(ids)):
        assert expected.startswith(joined(tokenizer, ids[:end]))
