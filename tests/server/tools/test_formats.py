"""The forms of calls: each read as its template writes it, and held to from a call's beginning."""

import json
import re

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")
from hypothesis import given
from hypothesis import strategies as st

from call_marks import marked_tokens
from call_templates import ENDS, TEMPLATES, read_calls
from checkpoints import ROOT
from coordgen_rs.server.tools.calls import CallConstraint
from coordgen_rs.server.tools.formats import FORMATS, HERMES, Calling, call_reader, format_of
from coordgen_rs.server.tools.syntax import Lexicon
from coordgen_rs.text.chat_template import ChatTemplate

BY_NAME = {form.name: form for form in FORMATS}
UNITS = {"type": "string", "enum": ["C", "F"]}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": UNITS,
        "tags": {"type": "array", "items": {"type": "string"}},
        "is_long": {"type": "boolean"},
        "place": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "name": {"type": ["string", "null"]}},
            "required": ["x"],
        },
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTIONS = {"get.weather": WEATHER, "time": NOTHING}
ARGUMENTS = {
    "city": "Köln, the 'big' one",
    "days": 3,
    "unit": "C",
    "tags": ["a b", "c"],
    "is_long": True,
    "place": {"x": 1.5, "name": "here"},
}
WRITTEN = [("get.weather", ARGUMENTS), ("time", {})]
ONE_ALONE = ("harmony", "llama")
"""Forms whose template writes one call a message."""


def written(name, calls, content=""):
    """What the model of a family says to make calls, by its template."""
    template = ChatTemplate(TEMPLATES[name], {"bos_token": "", "eos_token": ""})
    asked = [{"role": "user", "content": "Hi"}]
    listed = [
        {"type": "function", "id": f"abcdefg{number:02}", "function": {"name": f, "arguments": a}}
        for number, (f, a) in enumerate(calls)
    ]
    said = {"role": "assistant", "content": content, "tool_calls": listed}
    before = template.render(asked, tools=[])
    whole = template.render([*asked, said], tools=[], add_generation_prompt=False)
    assert whole.startswith(before)
    text = whole[len(before) :]
    for end in ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>"):
        text = text.split(end)[0]
    return text


def spoken(name, calls):
    """The same without what templates write and models do not, or the reverse."""
    text = re.sub(r', "id": "abcdefg0."', "", written(name, calls))
    return text.replace("commentary json", "commentary <|constrain|>json")


def read(form, parts, *, is_constrained, functions=FUNCTIONS, is_cut=False):
    """Content, and calls with the parts of each put together."""
    return read_calls(form, parts, functions, is_constrained=is_constrained, is_cut=is_cut)[:2]


def parsed(found):
    text, calls = found
    return text, [(name, json.loads(arguments)) for name, arguments in calls]


def calls_of(name):
    return WRITTEN[:1] if name in ONE_ALONE else WRITTEN


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_tells_the_form_of_its_models(name):
    assert format_of(TEMPLATES[name]).name == name
    assert {*TEMPLATES} == {*BY_NAME}


def test_a_template_of_no_known_form_gets_that_of_hermes():
    for family in ("gemma", "phi3", "smollm2", "qwen3", "smollm3"):
        source = (ROOT / "tests" / "text" / "templates" / f"{family}.jinja").read_text()
        assert format_of(source) is HERMES


@pytest.mark.parametrize("is_constrained", [True, False], ids=["held", "free"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_are_read_as_the_template_writes_them(name, is_constrained):
    for calls in (calls_of(name), [("time", {})]):
        text = spoken(name, calls) if is_constrained else written(name, calls)
        for parts in ([text], text):
            found = read(BY_NAME[name], parts, is_constrained=is_constrained)
            assert parsed(found) == ("", calls)


class Held:
    """A form, and what holds a model to it; its marks are tokens of their own, or plain text.

    Args:
        name: Of the form.
        tokens: Of the model.
    """

    def __init__(self, name, tokens):
        self.name, self.form, self.tokens = name, BY_NAME[name], tokens

    def lark(self, functions=FUNCTIONS, **choice):
        lexicon = Lexicon(self.tokens.added(), self.tokens.ends)
        return self.form.grammar(CallConstraint(functions, **choice), lexicon)

    def refused_at(self, lark, text):
        """Where a grammar refuses a text, which may end with the family's own token."""
        for end in ("<|call|>", "<|return|>"):
            text = text.removesuffix(end)
        return self.tokens.refused_at(lark, text)

    def allows(self, lark, text):
        return self.refused_at(lark, text) is None


@pytest.fixture(scope="module", params=["marks", "text"])
def held_to(request):
    """A function from a form's name to what holds a model to it."""
    pytest.importorskip("llguidance", reason="the extra grammar is not installed")

    def made(name):
        ends = ENDS.get(name, ())
        if request.param == "text" and name not in ("harmony", "gemma"):
            return Held(name, marked_tokens((), ends))
        marks = tuple(m for m in BY_NAME[name].marks if m not in ends)
        return Held(name, marked_tokens(marks, ends))

    return made


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_may_be_text_and_calls_that_fit_or_follow_a_schema(name, held_to):
    held = held_to(name)
    lark, text = held.lark(), spoken(name, calls_of(name))
    said = "<|channel|>final<|message|>Hi <b>." if name == "harmony" else "Hi <b>, {x}.\n"
    assert held.allows(lark, text)
    assert held.allows(lark, said)
    if name not in ("harmony", "llama"):
        assert held.allows(lark, said + text)
    required = held.lark(is_required=True)
    assert held.allows(required, text)
    assert not held.allows(required, said)
    answer = {"type": "object", "properties": {"sun": {"type": "boolean"}}, "required": ["sun"]}
    either = held.lark(answer=answer)
    head = "<|channel|>final<|message|>" if name == "harmony" else ""
    assert held.allows(either, head + '{"sun": true}')
    assert not held.allows(either, head + '{"sun": 1}')
    assert not held.allows(either, head + "Hi")
    assert held.allows(either, spoken(name, [("time", {})]))


@pytest.mark.parametrize("name", TEMPLATES)
def test_from_a_calls_beginning_on_it_fits_the_function(name, held_to):
    held = held_to(name)
    lark = held.lark()
    right = spoken(name, [("get.weather", {"city": "Ulm", "days": 3, "unit": "C"})])
    assert held.allows(lark, right)
    for old, new in (("3", "x"), ("C", "K"), ("city", "town"), ("get.weather", "get.news")):
        at = held.refused_at(lark, new.join(right.rsplit(old, 1)))
        if name == "llama" and new == "get.news":
            assert at is None  # JSON that names no function is text
        else:
            assert at is not None
            assert at >= right.rindex(old)
    assert not held.allows(lark, spoken(name, [("get.weather", {"unit": "C"})]))
    loose = held.lark(FUNCTIONS | {"get.weather": {"type": "object"}})  # it cannot be held to
    for values in ({}, ARGUMENTS, {"town": "Ulm", "more": [1, True]}):
        text = spoken(name, [("get.weather", values)])
        assert held.allows(loose, text)
        found = parsed(read(held.form, [text], is_constrained=True))
        assert found == ("", [("get.weather", values)])
    assert not held.allows(loose, spoken(name, [("time", {"town": "Ulm"})]))


@pytest.mark.parametrize("name", [form.name for form in FORMATS if getattr(form, "begin", "")])
def test_a_mark_that_is_only_mentioned_is_text(name, held_to):
    held = held_to(name)
    text = f"Calls stand behind {held.form.opening} marks, {held.form.opening}"
    assert held.allows(held.lark(), text)
    for is_constrained in (True, False):
        assert read(held.form, text, is_constrained=is_constrained) == (text, [])


@pytest.mark.parametrize("name", TEMPLATES)
def test_with_one_call_alone_the_answer_ends_behind_it(name, held_to):
    held, one = held_to(name), spoken(name, [("time", {})])
    lark = held.lark(is_parallel=False)
    assert held.allows(lark, one)
    if name != "harmony":
        assert not held.allows(lark, one + one)


@pytest.mark.parametrize("is_parallel", [True, False], ids=["several", "one"])
@pytest.mark.parametrize("is_required", [True, False], ids=["required", "auto"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_behind_a_call_white_space_may_follow_and_then_the_end(
    name, is_required, is_parallel, held_to
):
    held = held_to(name)
    lark = held.lark(is_required=is_required, is_parallel=is_parallel)
    calls = calls_of(name) if is_parallel else WRITTEN[:1]
    text = spoken(name, calls)
    for end in ENDS.get(name, ()):
        text = text.removesuffix(end)
    for white in ("", "\n", "\n\n", " \n"):
        assert held.allows(lark, text + white)
        for parts in ([text + white], text + white):
            assert parsed(read(held.form, parts, is_constrained=True)) == ("", calls)
    if is_required:
        assert not held.allows(lark, text + "\nSo")


def test_in_channels_white_space_around_the_mark_behind_a_call_is_not_for_the_client():
    pytest.importorskip("llguidance", reason="the extra grammar is not installed")

    held = Held("harmony", marked_tokens(BY_NAME["harmony"].marks))  # the mark ends no answer
    text = spoken("harmony", WRITTEN[:1]).removesuffix("<|call|>") + "\n<|call|>\n"
    assert held.tokens.refused_at(held.lark(), text) is None
    returned = text.replace("<|call|>", "<|return|>")
    for whole, is_constrained in ((text, True), (text, False), (returned, False)):
        for parts in ([whole], whole):
            found = read(held.form, parts, is_constrained=is_constrained)
            assert parsed(found) == ("", WRITTEN[:1])


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_may_follow_does_not_depend_on_what_was_drafted(name, held_to):
    held, before = held_to(name), "" if name in ("harmony", "llama") else "So <b>: "
    for choice, calls in (({}, calls_of(name)), ({"is_parallel": False}, [("time", {})])):
        lark, text = held.lark(**choice), before + spoken(name, calls)
        for end in ENDS.get(name, ()):
            text = text.removesuffix(end)
        alone = held.tokens.masks(lark, text)
        for widths in ((1,), (3, 8, 5), (len(text),)):
            assert held.tokens.masks_of_drafts(lark, text, widths) == alone


texts = st.text(st.sampled_from("aÄ日 ,.;:='\\\n{}[]()/-"), max_size=8).filter(
    lambda text: text == text.strip()
)
arguments = st.fixed_dictionaries(
    {"city": texts, "unit": st.sampled_from(["C", "F"])},
    optional={
        "days": st.integers(-99, 99),
        "tags": st.lists(texts, max_size=3),
        "is_long": st.booleans(),
        "place": st.fixed_dictionaries({"x": st.integers(0, 9)}, optional={"name": texts}),
    },
)


@given(st.data(), st.sampled_from(sorted(TEMPLATES)), arguments, st.booleans())
def test_however_an_answer_is_cut_the_same_is_read(data, name, given, is_constrained):
    calls = [("get.weather", given), ("time", {})][: len(calls_of(name))]
    text = spoken(name, calls) if is_constrained else written(name, calls)
    before = data.draw(st.sampled_from(["", "So: ", "See <tool", "\n"]))
    if name not in ("harmony", "llama"):
        text = before + text
    else:
        before = ""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]
    found = read(BY_NAME[name], parts, is_constrained=is_constrained)
    assert found == read(BY_NAME[name], [text], is_constrained=is_constrained)
    assert parsed(found) == (before if before.strip() else "", calls)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_held_call_is_told_as_it_is_made(name):
    form, given = BY_NAME[name], {"city": "a long name of a city", "days": 3, "unit": "C"}
    text = spoken(name, [("get.weather", given)])
    reader, told = call_reader(Calling(form, FUNCTIONS, is_constrained=True)), []
    for character in text:
        told += reader.read(character)
        if told and json.dumps(given, ensure_ascii=False) != "".join(c.arguments for c in told):
            assert reader.is_open
    told += reader.end()
    assert (told[0].name, told[0].arguments) == ("get.weather", "")
    assert len(told) > 3
    assert all(one.name is None for one in told[1:])
    assert not reader.is_open


@pytest.mark.parametrize("is_constrained", [True, False], ids=["held", "free"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_white_space_before_a_call_is_not_told_however_the_answer_is_cut(name, is_constrained):
    text = "\n" + spoken(name, [("time", {})])
    for end in range(len(text)):
        found = read(BY_NAME[name], [text[:end], text[end:]], is_constrained=is_constrained)
        assert parsed(found) == ("", [("time", {})]), text[:end]


@pytest.mark.parametrize("name", TEMPLATES)
def test_of_a_call_that_is_cut_no_mark_is_text(name):
    text = spoken(name, calls_of(name))
    for end in range(len(text) + 1):
        said, calls = read(BY_NAME[name], text[:end], is_constrained=True, is_cut=True)
        assert (said, len(calls) <= len(calls_of(name))) == ("", True), text[:end]
    assert len(calls) == len(calls_of(name))


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_only_looks_like_the_beginning_of_a_call_is_text(name):
    for said in ("t", " to=", "a <", "Hi\n", "so <|", "t o", "\n"):
        for is_cut in (False, True):
            text, calls = read(BY_NAME[name], said, is_constrained=False, is_cut=is_cut)
            assert (text, calls) == (said, [])
        answer = f"It is so. {said}"
        assert read(BY_NAME[name], answer, is_constrained=True, is_cut=True) == (answer, [])


def test_a_call_that_goes_on_as_none_may_stays_open():
    reader = call_reader(Calling(HERMES, FUNCTIONS, is_constrained=True))
    reader.read('<tool_call>\n{"name": "time", "arguments": {"x" nonsense')
    assert (reader.num_calls, reader.is_open) == (1, True)
    reader.end(is_cut=False)
    assert reader.is_open


def test_in_channels_the_end_of_an_answer_is_no_header():
    final = "<|channel|>final<|message|>Hi<|end|>"
    for said in ("t", " to=", "\n", "to=functions.x"):
        assert read(BY_NAME["harmony"], final + said, is_constrained=False) == (f"Hi{said}", [])
    assert read(BY_NAME["harmony"], final + "<|start|>assist", is_constrained=False) == ("Hi", [])


@pytest.mark.parametrize("before", ["", "Hello.", "<|start|> begins.", "Hello.<|end|>"])
def test_in_channels_what_has_no_header_swallows_no_call(before):
    text = f"{before}<|start|>assistant{spoken('harmony', WRITTEN[:1])}"
    for parts in ([text], text):
        found = read(BY_NAME["harmony"], parts, is_constrained=False)
        assert parsed(found) == (before.removesuffix("<|end|>"), WRITTEN[:1])


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_that_is_cut_has_the_beginning_of_its_arguments(name):
    text = spoken(name, calls_of(name))
    [*_, (_, whole)], longest = read(BY_NAME[name], [text], is_constrained=True)[1][:1], 0
    for end in range(len(text)):
        content, calls = read(BY_NAME[name], [text[:end]], is_constrained=True)
        begun = (*BY_NAME[name].marks, text[:end])  # of a mark, too: no call has begun with it
        assert any(mark.startswith(content) for mark in begun)
        if calls:
            assert whole.startswith(calls[0][1])
            longest = max(longest, len(calls[0][1]))
    assert longest == len(whole)


@pytest.mark.parametrize("is_constrained", [True, False], ids=["held", "free"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_value_that_goes_on_opening_lists_ends_no_answer(name, is_constrained):
    text = spoken(name, [("get.weather", {"city": "Ulm", "days": 12345, "unit": "C"})])
    for deep in ("[" * 9000, "[" * 9000 + "]" * 9000):
        said, calls = read(
            BY_NAME[name], [text.replace("12345", deep)], is_constrained=is_constrained
        )
        assert "[" * 9000 in said + "".join(arguments for _, arguments in calls)


@pytest.mark.parametrize("white", ["", " ", "\n"])
@pytest.mark.parametrize("name", ["granite", "mistral-listed"])
def test_the_calls_of_a_list_that_has_no_end_are_calls(name, white):
    call = '{"name": "get.weather", "arguments": {"city": "Ulm"}}'
    text = f"{BY_NAME[name].opening}[{white}{call}"
    for parts in ([text], text):
        found = read(BY_NAME[name], parts, is_constrained=False)
        assert parsed(found) == ("", [("get.weather", {"city": "Ulm"})])


def test_arguments_of_python_are_read_in_either_quotes():
    text = "<|tool_call_start|>[get.weather(city='Kö\\'ln', unit=\"C\", is_long=true)]"
    said = read(BY_NAME["lfm2"], [text + "<|tool_call_end|>"], is_constrained=False)
    assert parsed(said) == ("", [("get.weather", {"city": "Kö'ln", "unit": "C", "is_long": True})])


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ('"\\ud83d\\ude00"', "\N{GRINNING FACE}"),
        ("'a\\ud83d\\ude00b\\u00e9'", "a\N{GRINNING FACE}bé"),
        ('"\\ude00 \\ud83d"', "\N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}"),
        (r"'\\\''", "\\'"),
        (r'"\\"', "\\"),
    ],
)
@pytest.mark.parametrize("is_constrained", [True, False], ids=["held", "free"])
def test_escapes_in_arguments_of_python_are_text_that_can_be_sent(said, text, is_constrained):
    whole = f"<|tool_call_start|>[get.weather(city={said})]<|tool_call_end|>"
    for parts in ([whole], whole):
        found = read(BY_NAME["lfm2"], parts, is_constrained=is_constrained)
        assert parsed(found) == ("", [("get.weather", {"city": text})])
        assert found[1][0][1].encode()


@pytest.mark.parametrize("said", ["<", "<|", '<|"<|', '|"|>', '<<|"', "'", '\\"', "\n"])
def test_texts_between_marks_have_all_but_the_mark(said):
    whole = f'<|tool_call>call:get.weather{{city:<|"|>{said}<|"|>}}<tool_call|>'
    for parts in ([whole], whole):
        found = read(BY_NAME["gemma"], parts, is_constrained=True)
        assert parsed(found) == ("", [("get.weather", {"city": said})])


@pytest.mark.parametrize("value", ["[,]", "{,}", "[1,,]", "[[,],1]"])
def test_a_comma_alone_makes_no_list(value):
    whole = f"<|tool_call_start|>[get.weather(tags={value})]<|tool_call_end|>"
    assert read(BY_NAME["lfm2"], [whole], is_constrained=False) == (whole, [])
    said = whole.replace(value, "[1,]")
    calls = [("get.weather", {"tags": [1]})]
    assert parsed(read(BY_NAME["lfm2"], [said], is_constrained=False)) == ("", calls)
