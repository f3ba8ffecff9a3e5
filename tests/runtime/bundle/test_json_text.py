"""The one reader of JSON, and of dataclasses from it: what is taken, and refused by name."""

import contextlib
import io
import json
import math
import os
import tracemalloc
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgen_rs.errors.json_text import (
    FieldError,
    JsonTextError,
    parse,
    parse_json,
    parse_json_lines,
    read_json,
    read_json_lines,
)

BOM = b"\xef\xbb\xbf"
MOST_DEPTH = 100

DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(document=DOCUMENTS, ascii_only=st.booleans(), bom=st.booleans())
def test_what_json_writes_is_read_as_it_was(document, ascii_only, bom):
    text = json.dumps(document, ensure_ascii=ascii_only)
    assert parse_json(BOM * bom + text.encode(), "it") == document
    assert parse_json("\ufeff" * bom + text, "it") == document


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=60) | st.text('[]{}"\\u019eEd8c+-.,: ').map(str.encode))
def test_any_bytes_are_json_or_refused(raw):
    with contextlib.suppress(JsonTextError):
        value = parse_json(raw, "it")
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON: Expecting value: line 1"),
        ('{"a": 1,\n "b" 2}', "line 2 column 6"),
        ("[" * 200_000, "100 lists and objects inside each other"),
        ('{"a":' * 200_000, "100 lists and objects inside each other"),
        ("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1), "inside each other"),
        ("[NaN]", "NaN"),
        ("[-Infinity]", "-Infinity"),
        ("[1e400]", "1e400, which is too large"),
        ("[-1" + "0" * 400 + ".5]", "too large"),
        ("[18446744073709551616]", "18446744073709551616, which needs more than 64 bits"),
        ("[-9223372036854775809]", "64 bits"),
        ("[1" + "0" * 10_000 + "]", "64 bits"),
        ('{"a": 1, "b": 2, "a": 1}', "the key 'a' twice"),
        (r'["\ud800"]', "half of a surrogate pair"),
        (r'["\udc00\ud800"]', "half of a surrogate pair"),
        (r'["\\\ud800 \udc00"]', "half of a surrogate pair"),
        ('["\ud800"]', "half of a surrogate pair"),
        (b'["\xed\xa0\x80"]', "not UTF-8: byte 0xed at offset 2"),
        (b"\xff\xfe[\x00]\x00", "not UTF-8: byte 0xff at offset 0"),
        (b'["a\xfe"]', "byte 0xfe at offset 3$"),
        (BOM + b'["a\xfe"]', "byte 0xfe at offset 6$"),
        (b"[\x00", "not valid JSON: Expecting value: line 1"),
        (b"\x00[", "not valid JSON: Expecting value: line 1"),
    ],
    ids=range(23),
)
def test_what_readers_disagree_on_is_refused_with_the_reason(text, message):
    with pytest.raises(JsonTextError, match=f"^it .*{message}"):
        parse_json(text, "it")


def test_a_key_that_stands_twice_is_found_among_many():
    names = [f'"{number}": 0' for number in [*range(100_000), 99_999]]
    with pytest.raises(JsonTextError, match=r"^it has the key '99999' twice in an object$"):
        parse_json("{" + ", ".join(names) + "}", "it")


def test_brackets_and_escapes_inside_strings_do_not_count():
    deep = ["[" * 500, '"[{' * 200, "\\" * 7, r"\ud800"]
    assert parse_json(json.dumps(deep), "it") == deep
    assert parse_json(r'["\ud83d\ude00"]', "it") == ["\U0001f600"]
    wide = [[number] for number in range(1_000)]
    assert parse_json(json.dumps(wide), "it") == wide
    many = parse_json('[{"name": 1}, {"name": 2}]', "it")
    assert next(iter(many[0])) is next(iter(many[1]))  # keys are kept once


def test_the_limits_of_numbers_are_inside():
    assert parse_json("[18446744073709551615, -9223372036854775808]", "it") == [
        2**64 - 1,
        -(2**63),
    ]
    assert parse_json("[1.7976931348623157e308, 0.10000000000000000000001]", "it") == [
        1.7976931348623157e308,
        0.1,
    ]
    assert math.copysign(1, parse_json("-0.0", "it")) == -1


def test_longer_integers_are_taken_where_they_are_expected():
    no_limit = "1000000000000000019884624838656"  # tokenizer_config.json's model_max_length
    assert parse_json(f"[{no_limit}]", "it", long_integers=True) == [int(no_limit)]
    with pytest.raises(JsonTextError, match="4300 digits"):
        parse_json("[1" + "0" * 10_000 + "]", "it", long_integers=True)


def test_lines_are_numbered_and_only_the_first_may_have_a_byte_order_mark():
    stream = io.BytesIO(BOM + b'{"a": 1}\r\n\n \n["\xe2\x80\xa8"]')
    assert list(parse_json_lines(stream, "it", most_line_bytes=20)) == [
        (1, {"a": 1}),
        (4, ["\u2028"]),
    ]
    for second, message in ((BOM + b"1", "byte order mark"), (b"[" * 21, "longer"), (b"x", "JSON")):
        with pytest.raises(JsonTextError, match=f"^it, line 2 .*{message}"):
            list(parse_json_lines(io.BytesIO(b"1\n" + second), "it", most_line_bytes=20))


def test_a_file_is_read_up_to_its_limit(tmp_path):
    path = tmp_path / "file.json"
    path.write_bytes(b"[1, 2]")
    tracemalloc.start()
    try:
        assert read_json(path, most_bytes=512 << 20) == [1, 2]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20  # a short file takes little memory
    finally:
        tracemalloc.stop()
    assert read_json(path, most_bytes=6) == [1, 2]
    assert list(read_json_lines(path, most_line_bytes=6)) == [(1, [1, 2])]
    with pytest.raises(JsonTextError, match=r"file\.json is longer than 5 bytes"):
        read_json(path, most_bytes=5)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "missing", most_bytes=5)


@pytest.mark.parametrize("kind", ["a pipe", "a directory", "a device"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "it"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(JsonTextError, match=f"it is {kind}, not a regular file"):
        read_json(path, most_bytes=100)
    with pytest.raises(JsonTextError, match=f"it is {kind}"):
        next(read_json_lines(path, most_line_bytes=100))


def test_a_file_of_which_the_system_does_not_know_the_length_is_read_whole(tmp_path, monkeypatch):
    path = tmp_path / "grows.json"
    path.write_bytes(b"12345")
    really_stat = os.fstat

    def stat_of_an_empty_one(descriptor):
        fields = list(really_stat(descriptor))
        fields[6] = 0
        return os.stat_result(fields)

    monkeypatch.setattr(os, "fstat", stat_of_an_empty_one)
    assert read_json(path, most_bytes=5) == 12345
    with pytest.raises(JsonTextError, match="longer than 4 bytes"):
        read_json(path, most_bytes=4)


@dataclass(frozen=True)
class _Figures:
    theta: float | None = None
    size: int | None = None
    ends: object = None


@pytest.mark.parametrize("field", ["theta", "size"])
@pytest.mark.parametrize(
    "number", ["1" + "0" * 400, "-9223372036854775809", "18446744073709551616"]
)
def test_integers_beyond_64_bits_are_refused_where_a_number_is_expected(field, number):
    document = parse_json(f'{{"{field}": {number}}}', "a file", long_integers=True)
    with pytest.raises(FieldError, match=f"figures.{field} is .*, beyond 64 bits"):
        parse(_Figures, document, "figures")


def test_numbers_of_64_bits_and_what_takes_anything_are_read():
    text = '{"theta": 18446744073709551615, "size": -9223372036854775808, "ends": 1%s}'
    document = parse_json(text % ("0" * 400), "a file", long_integers=True)
    assert parse(_Figures, document, "figures") == _Figures(2.0**64, -(2**63), 10**400)
