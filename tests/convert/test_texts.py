"""Files to calibrate with: which texts are taken of them, and what is refused."""

import json

import pytest

from coordgen_rs.convert.texts import CalibrationTexts, read_texts
from coordgen_rs.errors import OptionError


def codes(text: str) -> list[int]:
    return list(map(ord, text))


def texts_of(tmp_path, name, content, encode=codes) -> CalibrationTexts:
    if content is not None:
        (tmp_path / name).write_text(content, "utf-8")
    return read_texts(tmp_path / name, encode, 100)


def test_every_fourth_piece_is_held_out(tmp_path):
    lines = [json.dumps({"id": i, "prompt": chr(97 + i) * 3, "answer": "z"}) for i in range(8)]
    texts = texts_of(tmp_path, "a.jsonl", "\n".join(lines))
    assert [chr(piece[0]) for piece in texts.held_out] == ["d", "h"]
    assert len(texts.calibration) == 6
    assert texts.calibration[0] == codes("aaaz")


@pytest.mark.parametrize(
    ("name", "content"), [("a.txt", "abc"), ("a.jsonl", '"abc"\n' * 12)], ids=["alone", "repeated"]
)
def test_a_single_piece_is_calibrated_with_and_not_compared_with_itself(tmp_path, name, content):
    texts = texts_of(tmp_path, name, content)
    assert texts.calibration == [codes("abc")]
    assert texts.held_out
    assert texts.calibration[0] not in texts.held_out


def test_a_file_is_read_as_far_as_pieces_are_taken(tmp_path):
    encoded = []

    def encode(text):
        encoded.append(text)
        return codes(text)

    lines = "".join(f'"text {number}"\n' for number in range(1000))
    texts = texts_of(tmp_path, "a.jsonl", lines, encode)
    assert len(texts.calibration + texts.held_out) == len(encoded) == 64


def test_lines_are_cut_at_line_feeds_only_after_a_byte_order_mark(tmp_path):
    texts = texts_of(tmp_path, "a.jsonl", '\ufeff"a\u2028b"\r\n"c"\n')
    assert texts.calibration + texts.held_out == [codes("a\u2028b"), codes("c")]


def test_the_messages_of_a_chat_are_one_text(tmp_path):
    messages = [{"role": "system", "content": "ab"}, {"role": "user", "content": "c"}]
    content = json.dumps({"id": "chat", "messages": messages})
    assert texts_of(tmp_path, "a.jsonl", content).calibration == [codes("ab\nc")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "holds no text"),
        ("a.txt", " \n\n", "holds no text"),
        ("a.jsonl", '{"text": ""}\n', "holds no text"),
        ("a.jsonl", "", "holds no text"),
        ("a.jsonl", "not json", "line 1"),
        ("a.jsonl", '{"id": "a"}', "line 1 holds no text"),
        ("a.jsonl", '{"messages": [{"content": 1}, 2]}', "line 1 holds no text"),
        ("a.jsonl", "[1]", "line 1 holds no text"),
        ("a.jsonl", "[" * 200_000, "line 1"),
        ("a.jsonl", r'"\ud800"', "line 1"),
        ("absent.txt", None, "cannot be read"),
    ],
    ids=range(11),
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, name, content, message):
    """Also where a tokenizer adds tokens to no text."""
    with pytest.raises(OptionError, match=rf"{name}.* {message}"):
        texts_of(tmp_path, name, content, lambda text: [1, *codes(text)])
