"""What is shown first is what is right for most: a chat, weights that stay near float."""

import ast
import re
from collections import Counter

import pytest

from checkpoints import ROOT
from coordgen_rs.cli import main
from coordgen_rs.cli.commands import generate
from coordgen_rs.convert import export
from documents import DOCUMENTS, Block, parse_error, simple_commands, typed

FIRST = (
    "README.md",
    "docs/own-model.md",
    "docs/chat.md",
    "docs/python-api.md",
    "docs/grammar.md",
)
"""Pages that lead a newcomer to ask a model."""

ASKS = ("generate", "stream", "chat", "stream_chat")


def examples(page: str) -> list[Block]:
    return list(typed((ROOT / page).read_text("utf-8"), page))


def commands(page: str) -> list[list[str]]:
    """The calls of `coordgen` on a page, in order."""
    shell = (example.text for example in examples(page) if example.language == "sh")
    calls = (call for text in shell for call in simple_commands(text))
    return [call for call in calls if call[0] == "coordgen"]


def asked(text: str) -> list[tuple[str, str]]:
    """Method and first argument of each request of a model in an example, in order."""
    calls = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ASKS
        and ast.unparse(node.func.value) == "model"
    ]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    return [(call.func.attr, ast.unparse(call.args[0])) for call in calls]


@pytest.mark.parametrize("page", FIRST)
def test_the_first_example_of_a_model_is_a_chat(page):
    answers = [call for call in commands(page) if call[1] in ("generate", "chat")]
    assert all(call[1] == "chat" or "--chat" in call for call in answers[:1])
    requests = [
        one
        for example in examples(page)
        if example.language == "python"
        for one in asked(example.text)
    ]
    assert requests[0][0] in ("chat", "stream_chat")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_instruct_model_is_not_led_without_its_template(path):
    page = str(path.relative_to(ROOT))
    bare = [
        call
        for call in commands(page)
        if call[1] == "generate" and re.match("path/|bundle$", call[call.index("--model") + 1])
        if "--chat" not in call
    ]
    assert bare == []


def test_the_first_export_keeps_the_files_weights_or_takes_int8():
    first = next(call for call in commands("docs/own-model.md") if call[1] == "export")
    assert "--weights" not in first or first[first.index("--weights") + 1] in ("int8", "keep")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_shows_its_speed_asks_each_question_once(path):
    for example in examples(str(path.relative_to(ROOT))):
        if example.language == "python" and "stats" in example.text:
            times = Counter(question for _, question in asked(example.text))
            assert max(times.values(), default=0) <= 1, example.place


def test_readme_says_which_environment_to_be_in():
    text = (ROOT / "README.md").read_text("utf-8")
    assert text.index(". .venv/bin/activate") < text.index("pip install")
    assert "In an environment of your own" in text


def examples_of_help(text: str, command: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if f"coordgen {command}" in line]


@pytest.mark.parametrize("text", [main.FIRST_STEPS, generate.EXAMPLES], ids=["first", "generate"])
def test_the_help_begins_with_a_chat_too(text):
    assert "--chat" in examples_of_help(text, "generate")[0]


@pytest.mark.parametrize("text", [main.FIRST_STEPS, export.EXAMPLES], ids=["first", "export"])
def test_the_help_begins_with_int8_too(text):
    assert "--weights int8" in examples_of_help(text, "export")[0]


@pytest.mark.parametrize("line", examples_of_help(generate.EXAMPLES + export.EXAMPLES, ""))
def test_an_example_of_the_help_parses(line):
    for call in simple_commands(line):
        assert call[0] != "coordgen" or parse_error(call[1:]) is None
