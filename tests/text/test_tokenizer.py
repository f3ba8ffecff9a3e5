"""Tokenizers: every token of a prompt, and no other."""

import json
import os
import sys
import threading

import pytest

from checkpoints import character_tokenizer
from coordgen_rs.errors import BundleError
from coordgen_rs.text.tokenizer import Tokenizer

TRUNCATION = {"direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0}
PADDING = {
    "strategy": {"Fixed": 64},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "<unk>",
}


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
    model = {
        "type": "WordPiece",
        "vocab": {"a": 0},
        "unk_token": "[UNK]",
        "max_input_chars_per_word": 9,
    }
    path.write_text(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "model": {**model, "continuing_subword_prefix": "##"},
            }
        )
    )
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
