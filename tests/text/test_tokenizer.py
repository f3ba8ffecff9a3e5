"""Tokenizers: every token of a prompt and no other, and the text of tokens piece by piece."""

import json
import os
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models

from checkpoints import CHECKPOINTS, character_tokenizer
from coordgen_rs.errors import BundleError
from coordgen_rs.text.tokenizer import Tokenizer

TRUNCATION = {"direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0}
PADDING = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None}
PADDING |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"}


@pytest.mark.parametrize("options", [{"truncation": TRUNCATION}, {"padding": PADDING}], ids=list)
def test_a_prompt_is_neither_cut_nor_padded(tmp_path, options):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(character_tokenizer(128)))
    expected = Tokenizer(path).encode("a prompt of 23 letters!")
    assert len(expected) == 23
    path.write_text(json.dumps(character_tokenizer(128) | options))
    assert Tokenizer(path).encode("a prompt of 23 letters!").tolist() == expected.tolist()


def test_what_a_tokenizer_cannot_do_is_named_with_its_file(tmp_path):
    path = tmp_path / "tokenizer.json"
    model = {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "[UNK]"}
    model |= {"max_input_chars_per_word": 9, "continuing_subword_prefix": "##"}
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    tokenizer = Tokenizer(path)
    assert tokenizer.encode("a").tolist() == [0]
    with pytest.raises(BundleError, match=r"tokenizer\.json cannot encode the text: .*UNK"):
        tokenizer.encode("b")


def test_what_is_no_tokenizer_is_refused_with_its_file(tmp_path):
    path = tmp_path / "tokenizer.json"
    for content in (b"", b"[" * 200_000, b'{"model":' * 200_000, b"\xff", b'{"model": 7}'):
        path.write_bytes(content)
        with pytest.raises(BundleError, match=r"tokenizer\.json"):
            Tokenizer(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BundleError, match="is a pipe"):
        Tokenizer(path)


def test_other_threads_run_while_a_long_text_is_tokenized(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(character_tokenizer(128)))
    tokenizer, may_run, has_run = Tokenizer(path), threading.Lock(), []

    def other():
        with may_run:
            has_run.append(True)

    may_run.acquire()
    thread = threading.Thread(target=other)
    thread.start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # from here on, nobody runs who is not let
    try:
        may_run.release()
        for _ in range(500):
            tokenizer.encode("hello world " * 400)
            if has_run:
                break
        assert has_run
    finally:
        sys.setswitchinterval(before)
        thread.join()


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
    parts = (decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse())
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
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
