"""File names that a manifest or an index may hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordgen_rs.errors.file_names import is_plain_name


@pytest.mark.parametrize(
    "name", ["block_00.weights", "model-00001-of-00002.safetensors", "a b", "größe", ".x", "a..b"]
)
def test_a_file_name_is_plain(name):
    assert is_plain_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "/", "/x", "a/b", "../x", "..\\x", "C:x", "C:\\x", "\\\\host\\x"),
        *("a\x00", "a\n", "x.", "x ", "NUL", "con.txt", "Com1", "\ud800", "\u202ex", "a*"),
        *("x" * 256, "ä" * 128),
    ],
)
def test_what_leads_elsewhere_is_not(name):
    assert not is_plain_name(name)


@given(st.text())
def test_any_text_is_judged(name):
    if is_plain_name(name):
        assert not set(name) & set("/\\:\0")
