"""Thinking as chat templates and tokenizers show it."""

from dataclasses import replace
from pathlib import Path

import pytest

from checkpoints import CHECKPOINTS
from coordgen_rs import Tokenizer
from coordgen_rs.text.chat_template import ChatTemplate
from coordgen_rs.text.thinking import (
    CHANNELS,
    Thinking,
    ThinkingMarks,
    marks_of,
    num_thinking,
    thinking_of,
)

TEMPLATES = Path(__file__).parent / "templates"
TAGS = marks_of("</think>")
HELLO = [{"role": "user", "content": "What is <think>?"}]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(CHECKPOINTS["embedded"] / "tokenizer.json")


def template(name):
    return ChatTemplate((TEMPLATES / f"{name}.jinja").read_text())


@pytest.mark.parametrize(
    ("name", "marks", "variables"),
    [
        ("qwen3", TAGS, {"enable_thinking"}),
        ("smollm3", TAGS, {"enable_thinking"}),
        ("deepseek-r1", TAGS, set()),
        ("gpt-oss", CHANNELS, {"reasoning_effort"}),
        ("qwen2.5", None, set()),
        ("llama3", None, set()),
    ],
)
def test_a_template_tells_how_its_model_thinks(name, marks, variables):
    found = template(name)
    assert marks_of(found.source) == marks
    known = {"enable_thinking", "thinking", "reasoning_effort"}
    assert found.variables & known == variables
    assert found.names("developer") == (name == "gpt-oss")


@pytest.mark.parametrize(
    ("name", "variables", "thinking"),
    [
        ("qwen3", {}, Thinking(TAGS)),
        ("qwen3", {"enable_thinking": False}, None),
        ("smollm3", {"enable_thinking": False}, None),
        ("deepseek-r1", {}, Thinking(TAGS, is_open=True)),
        ("gpt-oss", {}, Thinking(CHANNELS)),
    ],
)
def test_a_prompt_opens_or_closes_thinking(tokenizer, name, variables, thinking):
    found = template(name)
    prompt = found.render(HELLO, variables=variables)
    ids = tokenizer.encode(prompt, special_tokens=False).tolist()
    assert thinking_of(marks_of(found.source), tokenizer, ids) == thinking


def test_thinking_is_counted_with_its_marks(tokenizer):
    marks = ThinkingMarks("<", ".", ())

    def count(text, *, is_open=False, marks=marks):
        ids = tokenizer.encode(text, special_tokens=False).tolist()
        return num_thinking(Thinking(marks, is_open), tokenizer, ids), len(ids)

    num, whole = count("so it is", is_open=True)
    assert num == whole
    assert count("so it is.", is_open=True)[0] == count("so it is.")[1]
    begun = count("so it is.", is_open=True)[0]
    assert count("so it is. And more", is_open=True)[0] == begun
    assert count("no thinking at all")[0] == 0
    assert count("<so.")[0] == count("<so. It is <so.")[0] == count("<so.")[1]
    assert count("It is <so.")[0] == count("so. It is <so.", is_open=False)[0] == 0
    assert count("so. It is <so.", is_open=True)[0] == count("so.")[1]
    again = replace(marks, is_repeated=True)
    assert count("<so. It <is.", marks=again)[0] == count("<so.")[1] + count(" <is.")[1]
    assert num_thinking(None, tokenizer, [1, 2]) == 0
