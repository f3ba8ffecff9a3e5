"""What is printed of a name does not steer the terminal."""

from hypothesis import given
from hypothesis import strategies as st

from coordgen_rs.cli.terminal.formatting import printable


def test_control_characters_are_escaped_and_others_kept():
    assert printable("mail/Ägypten 你好") == "mail/Ägypten 你好"
    assert printable("\x1b[31m\r\n\x9b\u202e\ud800\0") == r"\x1b[31m\r\n\x9b\u202e\ud800\x00"


@given(st.text())
def test_every_text_is_printable_and_stays_so(text):
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)
