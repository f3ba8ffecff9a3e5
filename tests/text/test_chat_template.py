"""Chat templates: found where checkpoints have them, and harmless whoever wrote them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coordgen_rs.errors import ChatTemplateError, OptionError
from coordgen_rs.text.chat_template import ChatTemplate, ChatTemplates, read_templates

HELLO = [{"role": "user", "content": "Hello"}]
BOTH = [*HELLO, {"role": "assistant", "content": "Hi"}]
HOSTILE = json.loads(Path(__file__).with_name("hostile_templates.json").read_text("utf-8"))
"""They run for ever, grow beyond measure, or reach for what is not theirs."""


def rendered(source, messages=HELLO, **options):
    return ChatTemplate(source).render(messages, **options)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{% for m in messages %}{% generation %}<{{ m.content }}>{% endgeneration %}"
            "{% endfor %}",
            "<Hello><Hi>",
        ),
        ("{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{% endfor %}.", "."),
        ("{{ dict([('a', 1)], b=2) }}", "{'a': 1, 'b': 2}"),
        ("{{ messages|join(', ', attribute='role') }}", "user, assistant"),
        ("{{ messages|join('-', 'content') }}", "Hello-Hi"),
        (
            "{% for k, v in (messages + messages)|groupby('role') %}{{ k }}{{ v|length }},"
            "{% endfor %}",
            "assistant2,user2,",
        ),
        ("{% for m in messages %}{{ (loop|default(0)).index }}{% endfor %}", "12"),
        ("{{ documents or 'none' }}", "none"),
    ],
)
def test_a_template_renders_as_in_transformers(source, text):
    assert rendered(source, BOTH) == text


def test_documents_reach_the_template():
    assert rendered("{{ documents or 'none' }}", variables={"documents": "some"}) == "some"


def test_a_long_description_of_a_tool_can_be_indented():
    tool = {"function": {"description": "d" * 450_000, "parameters": {"properties": {}}}}
    text = rendered("{{ tools[0]|tojson(indent=4) }}", tools=[tool])
    assert text == json.dumps(tool, indent=4)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused(name):
    with pytest.raises(ChatTemplateError, match=r"the chat template (cannot be|is malformed)"):
        rendered(HOSTILE[name])
    assert rendered("{{ messages[0].content }}") == "Hello"


def test_nothing_that_a_template_can_call_takes_more_than_its_limits():
    pytest.importorskip("resource", reason="no limit of memory here")
    attacks = Path(__file__).parents[1] / "support" / "template_attacks.py"
    command = [sys.executable, str(attacks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=True)
    told = json.loads(done.stdout)
    assert told["found"] == {}
    assert told["number"] > 4000


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{% if %}", "malformed in line 1"),
        ("\n{% unknown %}", "malformed in line 2"),
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ nothing.content }}", "`nothing` is undefined"),
        ("{{ dict.__class__.__mro__ }}", "undefined"),
        ("{{ 'x'|unknown }}", "filter unknown is unknown"),
        ("{{ 1 < 2 < messages|length }}", "malformed in line 1: comparisons in a chain"),
        (
            "{% set n = namespace(x=[''] * 20000) %}{% for i in range(20) %}{% set n.x = [n.x] %}"
            "{% endfor %}{{ n.x|tojson(indent=100)|length }}",
            "too long a text",
        ),
        (
            "{{ ([''] * 100000)|tojson(separators=(' ' * 100, ''))|length }}",
            "too long a text",
        ),
        (
            "{% set a = namespace(x='x' * 9999) %}{% set b = namespace(x=[a] * 9999) %}"
            "{% set c = namespace(x=[b] * 9999) %}{{ c }}",
            "only JSON's types",
        ),
    ],
)
def test_what_is_wrong_with_a_template_is_said(source, named):
    with pytest.raises(ChatTemplateError, match=named):
        rendered(source)


def user(content, **more):
    return {"messages": [{"role": "user", "content": content, **more}]}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"messages": "Hello"}, "messages must be a list"),
        ({"messages": []}, "messages is empty"),
        ({"messages": ["Hello"]}, r"messages\[0\] must be like"),
        ({"messages": [{"content": "Hello"}]}, r"messages\[0\] must be like"),
        (user(3), r"messages\[0\].content must be text"),
        (user([{"type": "image", "url": "x"}]), "a part that is not text"),
        (user("\ud800"), "not valid Unicode"),
        (user("x", more={1}), "which is no JSON"),
        ({"tools": 3}, "tools must be a list, but is 3"),
        ({"tools": {"name": "f"}}, "tools must be a list"),
        ({"variables": 3}, "template_variables must be a dict, but is 3"),
        ({"variables": {"messages": []}}, "cannot hold messages, which is given otherwise"),
        ({"variables": {"note": int}}, r"template_variables\.note holds"),
    ],
    ids=str,
)
def test_malformed_messages_tools_and_variables_are_named(given, named):
    with pytest.raises(OptionError, match=named):
        rendered("{{ messages }}", **given)


JOINED = "{{ '<' + messages[0].content + '>' }}"
READING = """<{% if messages[0].content is string %}{{ messages[0].content }}{% else -%}
{% for part in messages[0].content %}{{ part.text }}{% endfor %}{% endif %}>"""
ONLY_PARTS = "<{% for part in messages[0].content %}{{ part['text'] | upper }}{% endfor %}>"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (JOINED, "<Be short.\nIs a lion an animal?>"),
        ("<{{ messages[0].content }}>", "<Be short.\nIs a lion an animal?>"),
        (READING, "<Be short.Is a lion an animal?>"),
        (ONLY_PARTS, "<BE SHORT.IS A LION AN ANIMAL?>"),
    ],
)
def test_parts_of_text_are_lines_where_the_template_reads_no_parts(source, expected):
    texts = ("Be short.", "Is a lion an animal?")
    content = [{"type": "text", "text": text} for text in texts]
    template = ChatTemplate(source)
    assert template.render(template.readable([{"role": "user", "content": content}])) == expected
    assert template.readable(HELLO) is HELLO


def test_parts_of_other_kinds_are_refused_by_name():
    part = {"type": "input_audio", "text": "what is said"}
    with pytest.raises(OptionError, match="input_audio"):
        ChatTemplate(JOINED).readable([{"role": "user", "content": [part]}])


CONFIG = "tokenizer_config.json"


def write(folder, files):
    """The templates of a folder with these files more."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return read_templates(folder)


def test_templates_are_found_where_checkpoints_have_them(tmp_path):
    assert write(tmp_path, {}).sources == {}
    listed = [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]
    assert write(tmp_path, {CONFIG: {"chat_template": listed}}).sources == {
        "default": "a",
        "rag": "b",
    }
    config = {"chat_template": "c", "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    config |= {"add_bos_token": True}
    found = write(tmp_path, {CONFIG: config, "special_tokens_map.json": {"bos_token": "?"}})
    assert found.sources == {"default": "c"}
    assert found.tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    found = write(tmp_path, {"chat_template.json": {"chat_template": "d"}})
    assert found.sources == {"default": "d"}
    more = {"chat_template.jinja": "e", "additional_chat_templates/tool_use.jinja": "f"}
    found = write(tmp_path, more)
    assert found.sources == {"default": "e", "tool_use": "f"}
    assert (found.template(for_tools=True).source, found.template().source) == ("f", "e")


@pytest.mark.parametrize(
    "config", [{"chat_template": 3}, {"chat_template": [{"name": 3}]}, [], "{"]
)
def test_damaged_files_are_named(tmp_path, config):
    with pytest.raises(ChatTemplateError, match="tokenizer_config"):
        write(tmp_path, {CONFIG: config})


def test_without_a_template_it_is_said_what_to_do():
    with pytest.raises(ChatTemplateError, match="--chat-template FILE"):
        ChatTemplates(place="bundle").template()


def test_a_list_without_a_default_is_refused_where_that_is_asked_for_alone(tmp_path):
    listed = [{"name": name, "template": name} for name in ("rag", "tool_use")]
    found = write(tmp_path, {CONFIG: {"chat_template": listed}})
    assert found.template(for_tools=True).source == "tool_use"
    with pytest.raises(ChatTemplateError, match="no chat template called default, but rag, tool_"):
        found.template()
