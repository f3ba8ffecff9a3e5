"""Answers held to calls by a model: the same with and without drafts, and read to the end."""

import json

import pytest

pytest.importorskip("llguidance", reason="the extra grammar is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")

import jsonschema

from call_marks import marked_tokens
from call_templates import read_calls
from coordgen_rs import Lark, Model
from coordgen_rs.server.tools.calls import CallConstraint
from coordgen_rs.server.tools.formats import FORMATS
from coordgen_rs.server.tools.syntax import Lexicon

LAMP = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green"]},
        "power": {"type": "integer", "minimum": 0, "maximum": 99},
        "is_on": {"type": "boolean"},
    },
    "required": ["colour"],
    "additionalProperties": False,
}
FUNCTIONS = {"paint": LAMP, "wait": {"type": "object", "properties": {}}}
CHOICES = {
    "auto": CallConstraint(FUNCTIONS),
    "one": CallConstraint(FUNCTIONS, is_parallel=False),
    "required": CallConstraint(FUNCTIONS, is_required=True, is_parallel=False),
    "or JSON": CallConstraint(
        FUNCTIONS, answer={"type": "object", "properties": {"a": {"enum": [1, 2]}}}
    ),
}
OPTIONS = ({}, {"temperature": 1.4, "seed": 3})


@pytest.fixture(scope="module")
def model(bundle_of):
    with Model.open(bundle_of("embedded", "fp32")) as model:
        yield model


@pytest.mark.parametrize(
    ("form", "choice"),
    [
        pytest.param(form, choice, id=f"{form.name}-{choice}")
        for form in FORMATS
        for choice in CHOICES
        if choice in ("auto", "required") or form.name in ("hermes", "gemma")
    ],
)
def test_drafts_change_no_token(model, form, choice):
    if form.name == "harmony":
        said = '<|channel|>commentary to=functions.paint json<|message|>{"colour": "red"}<|call|>'
    else:
        said = f'{form.opening}{form.first}{form.before}paint{form.after}"colour": "red"'
    lexicon = Lexicon(model.tokenizer.added_tokens(), model.end_token_ids)
    grammar = Lark(form.grammar(CHOICES[choice], lexicon))
    for options in OPTIONS:
        asked = {"grammar": grammar, "max_new_tokens": 90, **options}
        answer = model.generate(f"{said}\n" * 4, **asked)
        alone = model.generate(f"{said}\n" * 4, drafts=False, **asked)
        assert (answer.token_ids, answer.finish_reason) == (alone.token_ids, alone.finish_reason)
        _, calls, is_open = read_calls(form, [answer.text], FUNCTIONS)
        assert calls or choice in ("auto", "one", "or JSON")
        for name, arguments in calls[: len(calls) - is_open]:
            jsonschema.validate(json.loads(arguments), FUNCTIONS[name])
        if choice == "required" and answer.finish_reason == "grammar":
            assert not is_open


def test_special_tokens_are_in_the_text_where_they_are_asked_for(model):

    tokenizer = marked_tokens(("<|mark|>",)).tokenizer
    ids = tokenizer.encode("a<|mark|>\u65e5<|im_end|>").tolist()
    for shown, text in (((), "a\u65e5"), (("<|mark|>", "unknown"), "a<|mark|>\u65e5")):
        stream = tokenizer.stream(shown=shown)
        assert "".join(map(stream, ids)) == text
    answer = model.generate("Hello", max_new_tokens=4, special_tokens=("<|mark|>",))
    assert answer.text == model.generate("Hello", max_new_tokens=4).text
