"""Methods, operators and filters of chat templates: as Python and its JSON have them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgen_rs._core import render_chat_template

SPACES = " \t\n\r\x0b\x0c\x1c\x1f\x85\u2028\u3000"
TEXTS = st.text(st.sampled_from("ab-+A\u00e4\u00df\U0001f337" + SPACES), max_size=12)
PARTS = st.text(st.sampled_from("ab-" + SPACES), max_size=2)
SMALL = st.integers(-4, 9)


def rendered(expression, **known):
    return json.loads(render_chat_template("{{ (" + expression + ")|tojson }}", known, str))


def expected(function):
    """What Python makes, as JSON has it; None where it refuses."""
    try:
        return json.loads(json.dumps(function()))
    except (ValueError, TypeError):
        return None


def same(expression, function, **known):
    python = expected(function)
    if python is None:
        with pytest.raises(ValueError, match="cannot be applied"):
            rendered(expression, **known)
    else:
        assert rendered(expression, **known) == python


@given(text=TEXTS, part=PARTS, method=st.sampled_from(("strip", "lstrip", "rstrip")))
def test_ends_are_stripped(text, part, method):
    same(f"t.{method}()", getattr(text, method), t=text)
    same(f"t.{method}(p)", lambda: getattr(text, method)(part), t=text, p=part)
    same("t|trim", text.strip, t=text)


@given(text=TEXTS, part=PARTS, most=SMALL, method=st.sampled_from(("split", "rsplit")))
def test_texts_are_split(text, part, most, method):
    split = getattr(text, method)
    same(f"t.{method}()", split, t=text)
    same(f"t.{method}(none, m)", lambda: split(None, most), t=text, m=most)
    same(f"t.{method}(p)", lambda: split(part), t=text, p=part)
    same(f"t.{method}(p, m)", lambda: split(part, most), t=text, p=part, m=most)
    same(f"t.{method}(p, maxsplit=m)", lambda: split(part, maxsplit=most), t=text, p=part, m=most)


@given(text=TEXTS, keeps=st.booleans())
def test_texts_are_split_into_lines(text, keeps):
    same("t.splitlines(k)", lambda: text.splitlines(keeps), t=text, k=keeps)
    same("t.splitlines()", text.splitlines, t=text)


PARTED = ("partition", "rpartition", "removeprefix", "removesuffix", "find", "rfind", "index")
PARTED += ("rindex", "count", "startswith", "endswith")


@given(text=TEXTS, part=PARTS, method=st.sampled_from(PARTED))
def test_parts_are_found(text, part, method):
    if method != "count" or part:
        same(f"t.{method}(p)", lambda: getattr(text, method)(part), t=text, p=part)


@given(text=TEXTS, width=SMALL, method=st.sampled_from(("ljust", "rjust", "center", "zfill")))
def test_texts_are_padded(text, width, method):
    same(f"t.{method}(w)", lambda: getattr(text, method)(width), t=text, w=width)


@given(
    text=TEXTS,
    items=st.lists(st.integers(0, 3), max_size=5),
    ends=st.tuples(*[st.none() | SMALL] * 2),
    step=st.integers(-3, 3),
)
def test_slices(text, items, ends, step):
    first, last = ends
    for value in (text, items):
        same("v[a:b:c]", lambda v=value: v[first:last:step], v=value, a=first, b=last, c=step)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | TEXTS | st.floats(allow_nan=False),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(TEXTS, inside, max_size=3),
    max_leaves=8,
)


@given(value=VALUES, indent=st.none() | st.integers(0, 4), ascii_only=st.booleans())
@settings(max_examples=300)
def test_json(value, indent, ascii_only):
    source = "{{ v|tojson(indent=i, ensure_ascii=a) }}"
    made = render_chat_template(source, {"v": value, "i": indent, "a": ascii_only}, str)
    assert made == json.dumps(value, indent=indent, ensure_ascii=ascii_only)


PLAIN = (
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text("ab'\u00e4\n", max_size=4)
)
SHOWN = st.recursive(
    PLAIN, lambda inside: st.lists(inside, max_size=3) | st.dictionaries(PLAIN, inside, max_size=3)
)


@given(value=SHOWN | st.floats(allow_nan=False))
@settings(max_examples=300)
def test_texts_of_values(value):
    assert render_chat_template("{{ v }}", {"v": value}, str) == str(value)
