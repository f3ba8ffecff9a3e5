"""Stop strings over pieces of text: where the cut is, and what is held back until then."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordgen_rs.errors import OptionError
from coordgen_rs.text.stop import StopStrings

texts = st.text("ab", max_size=24)
stops = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def cut(text, strings):
    """The naive twin: the whole text, cut where the earliest of the strings begins."""
    found = [text.index(string) for string in strings if string in text]
    return text[: min(found)] if found else text


def pushed(pieces, strings):
    """What comes out for each piece, and at the end."""
    stop, given_out = StopStrings(strings), []
    for piece in pieces:
        given_out.append(stop.push(piece))
        if stop.cut_at is not None:
            return given_out, stop
    return [*given_out, stop.finish()], stop


@given(st.lists(texts), stops)
def test_the_cut_is_that_of_the_whole_text_however_it_is_split(pieces, strings):
    text = "".join(pieces)
    given_out, stop = pushed(pieces, strings)
    assert "".join(given_out) == cut(text, strings)
    found = any(string in text for string in strings)
    assert stop.cut_at == (len(cut(text, strings)) if found else None)


@given(texts, stops, texts)
def test_what_came_out_is_certain_and_nothing_certain_is_held_back(text, strings, more):
    stop = StopStrings(strings)
    given_out = stop.push(text)
    assert cut(text + more, strings).startswith(given_out)
    if stop.cut_at is None:
        held = text[len(given_out) :]
        assert not held or any(string.startswith(held[:1]) for string in strings)
        assert len(held) < max(map(len, strings), default=1)


@pytest.mark.parametrize(
    ("pieces", "strings", "given_out"),
    [
        (["a", "b", "c"], "bc", ["a", "", ""]),
        (["a", "b", "a"], "bc", ["a", "", "ba", ""]),
        (["ab", "c"], ["abc", "b"], ["", ""]),  # the earlier one wins, though completed later
        (["ab", "d"], ["abc", "b"], ["", "a"]),
        (["ab"], ["abc", "b"], ["", "a"]),
        (["ab"], (), ["ab", ""]),
    ],
)
def test_a_beginning_is_held_back_until_it_is_known(pieces, strings, given_out):
    assert pushed(pieces, strings)[0] == given_out


@pytest.mark.parametrize("strings", ["", ["a", ""]])
def test_an_empty_stop_string_is_refused(strings):
    with pytest.raises(OptionError, match="stop"):
        StopStrings(strings)
