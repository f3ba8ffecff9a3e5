"""Chat templates: found where checkpoints have them, and harmless whoever wrote them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coordgen_rs.errors import ChatTemplateError, OptionError
from coordgen_rs.text.chat_template import ChatTemplate, ChatTemplates, read_templates

HELLO = [{"role": "user", "content": "Hello"}]


def rendered(source, messages=HELLO, **options):
    return ChatTemplate(source).render(messages, **options)


def test_what_is_marked_for_training_renders_as_it_is():
    source = (
        "{% for m in messages %}{% generation %}<{{ m.content }}>{% endgeneration %}{% endfor %}"
    )
    assert rendered(source) == "<Hello>"
    source = "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{% endfor %}."
    assert rendered(source) == "."


def test_dict_is_as_in_transformers():
    assert rendered("{{ dict([('a', 1)], b=2) }}") == "{'a': 1, 'b': 2}"
    with pytest.raises(ChatTemplateError, match="undefined"):
        rendered("{{ dict.__class__.__mro__ }}")


def test_filters_join_what_messages_have_by_an_attribute():
    both = [*HELLO, {"role": "assistant", "content": "Hi"}]
    assert rendered("{{ messages|join(', ', attribute='role') }}", both) == "user, assistant"
    assert rendered("{{ messages|join('-', 'content') }}", both) == "Hello-Hi"


def test_groups_are_pairs_and_a_loop_stays_a_loop():
    source = "{% for k, v in messages|groupby('role') %}{{ k }}{{ v|length }},{% endfor %}"
    assert rendered(source, [*HELLO, *HELLO]) == "user2,"
    source = "{% for m in messages %}{{ (loop|default(0)).index }}{% endfor %}"
    assert rendered(source, [*HELLO, *HELLO]) == "12"


def test_a_long_description_of_a_tool_can_be_indented():
    tool = {"function": {"description": "d" * 450_000, "parameters": {"properties": {}}}}
    text = rendered("{{ tools[0]|tojson(indent=4) }}", tools=[tool])
    assert text == json.dumps(tool, indent=4)


ENDLESS = {
    "loops in loops": "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}"
    "{% endfor %}",
    "macros that call two": "{% macro a() %}{{ b() }}{{ b() }}{% endmacro %}"
    "{% macro b() %}{{ c() }}{{ c() }}{% endmacro %}{% macro c() %}{% for i in range(90000) %}"
    "{% for j in range(9) %}{{ i.bit_length() }}{% endfor %}{% endfor %}{% endmacro %}"
    "{{ a() }}{{ a() }}{{ a() }}",
    "a macro that calls itself": "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "a generator": "{% for a in range(90000)|map('string') %}"
    "{% for b in range(90000)|map('string') %}{% endfor %}{% endfor %}",
}
HUGE = {
    "doubled by ~": "{% set n = namespace(x='xx') %}{% for i in range(60) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubled by +": "{% set n = namespace(x='xx') %}{% for i in range(60) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "doubled by join": "{% set n = namespace(x='xx') %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x]|join %}{% endfor %}",
    "doubled by replace": "{% set n = namespace(x='xx') %}{% for i in range(60) %}"
    "{% set n.x = n.x.replace('x', 'xx') %}{% endfor %}",
    "a list doubled by itself": "{% set n = namespace(x=['x']) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "a tuple doubled by itself": "{% set n = namespace(x=('x',)) %}{% for i in range(60) %}"
    "{% set n.x = (n.x, n.x) %}{% endfor %}{{ n.x|tojson }}",
    "a dict doubled by itself": "{% set n = namespace(x={}) %}{% for i in range(60) %}"
    "{% set n.x = {1: n.x, 2: n.x} %}{% endfor %}{{ n.x ~ '' }}",
    "a dict doubled by a call": "{% set n = namespace(x={}) %}{% for i in range(60) %}"
    "{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}{{ n.x|string }}",
    "lists compared": "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
    "a macro's text": "{% macro a() %}{% for i in range(90000) %}{{ 'x' * 900 }}{% endfor %}"
    "{% endmacro %}{{ a()|length }}",
    "much text": "{% for i in range(90000) %}{{ 'x' * 900 }}{% endfor %}",
}
ESCAPES = {
    "a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a class by filter": "{{ (''|attr('__class__')).__mro__ }}",
    "globals of a function": "{{ raise_exception.__globals__['json'] }}",
    "a method's self": "{{ messages.append.__self__.__class__.__base__ }}",
    "a changed message": "{{ messages.append(1) }}",
    "a changed dict": "{{ messages[0].update(x=1) }}",
    "a format's field": "{{ '{0.__class__.__mro__}'.format(1) }}",
}


@pytest.mark.parametrize(
    "source",
    [*ENDLESS.values(), *HUGE.values(), *ESCAPES.values()],
    ids=[*ENDLESS, *HUGE, *ESCAPES],
)
def test_a_hostile_template_is_refused(source):
    with pytest.raises(ChatTemplateError, match=r"the chat template (cannot be|is malformed)"):
        rendered(source)
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
    "source",
    [
        "{% set n = namespace(x=[''] * 20000) %}{% for i in range(20) %}{% set n.x = [n.x] %}"
        "{% endfor %}{{ n.x|tojson(indent=100)|length }}",
        "{{ ([''] * 100000)|tojson(separators=(' ' * 100, ''))|length }}",
    ],
)
def test_json_that_would_be_too_long_is_not_made(source):
    with pytest.raises(ChatTemplateError, match="too long a text"):
        rendered(source)


def test_namespaces_that_hold_each_other_many_times_have_no_text():
    source = (
        "{% set a = namespace(x='x' * 9999) %}{% set b = namespace(x=[a] * 9999) %}"
        "{% set c = namespace(x=[b] * 9999) %}{{ c }}"
    )
    with pytest.raises(ChatTemplateError, match="only JSON's types"):
        rendered(source)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{% if %}", "malformed in line 1"),
        ("\n{% unknown %}", "malformed in line 2"),
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ nothing.content }}", "`nothing` is undefined"),
        ("{{ 'x'|unknown }}", "filter unknown is unknown"),
        ("{{ 1 < 2 < messages|length }}", "malformed in line 1: comparisons in a chain"),
    ],
)
def test_what_is_wrong_with_a_template_is_said(source, named):
    with pytest.raises(ChatTemplateError, match=named):
        rendered(source)


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ("Hello", "messages must be a list"),
        ([], "messages is empty"),
        (["Hello"], r"messages\[0\] must be like"),
        ([{"content": "Hello"}], r"messages\[0\] must be like"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content must be text"),
        ([{"role": "user", "content": [{"type": "image", "url": "x"}]}], "a part that is not text"),
        ([{"role": "user", "content": "\ud800"}], "not valid Unicode"),
        ([{"role": "user", "content": "x", "more": object()}], "which is no JSON"),
    ],
)
def test_malformed_messages_are_named(messages, named):
    with pytest.raises(OptionError, match=named):
        rendered("{{ messages }}", messages)


JOINED, PRINTED = "{{ '<' + messages[0].content + '>' }}", "<{{ messages[0].content }}>"
READING = """<{% if messages[0].content is string %}{{ messages[0].content }}{% else -%}
{% for part in messages[0].content %}{{ part.text }}{% endfor %}{% endif %}>"""
ONLY_PARTS = "<{% for part in messages[0].content %}{{ part['text'] | upper }}{% endfor %}>"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (JOINED, "<Be short.\nIs a lion an animal?>"),
        (PRINTED, "<Be short.\nIs a lion an animal?>"),
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


def write(folder, **files):
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_json", ".json").replace(
            "_jinja", ".jinja"
        )
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return read_templates(folder)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tools": 3}, "tools must be a list, but is 3"),
        ({"tools": {"name": "f"}}, "tools must be a list"),
        ({"variables": 3}, "template_variables must be a dict, but is 3"),
        ({"variables": {"messages": []}}, "cannot hold messages, which is given otherwise"),
        ({"variables": {"note": int}}, r"template_variables\.note holds"),
    ],
    ids=str,
)
def test_malformed_tools_and_variables_are_named(options, named):
    with pytest.raises(OptionError, match=named):
        ChatTemplate("{{ messages }}").render([{"role": "user", "content": "x"}], **options)


def test_documents_reach_the_template():
    template = ChatTemplate("{{ documents or 'none' }}")
    assert template.render([{"role": "user", "content": "x"}]) == "none"
    assert (
        template.render([{"role": "user", "content": "x"}], variables={"documents": "some"})
        == "some"
    )


def test_templates_are_found_where_checkpoints_have_them(tmp_path):
    assert write(tmp_path).sources == {}
    config = {
        "chat_template": [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]
    }
    assert write(tmp_path, tokenizer_config_json=config).sources == {"default": "a", "rag": "b"}
    config = {
        "chat_template": "c",
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "add_bos_token": True,
    }
    found = write(
        tmp_path, tokenizer_config_json=config, special_tokens_map_json={"bos_token": "?"}
    )
    assert found.sources == {"default": "c"}
    assert found.tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert write(tmp_path, chat_template_json={"chat_template": "d"}).sources == {"default": "d"}
    found = write(tmp_path, chat_template_jinja="e", additional_chat_templates__tool_use_jinja="f")
    assert found.sources == {"default": "e", "tool_use": "f"}
    assert found.template(for_tools=True).source == "f"
    assert found.template().source == "e"


@pytest.mark.parametrize(
    "config",
    [
        {"chat_template": 3},
        {"chat_template": [{"name": 3}]},
        [],
        "{",
    ],
)
def test_damaged_files_are_named(tmp_path, config):
    with pytest.raises(ChatTemplateError, match="tokenizer_config"):
        write(tmp_path, tokenizer_config_json=config)


def test_without_a_template_it_is_said_what_to_do():
    with pytest.raises(ChatTemplateError, match="--chat-template FILE"):
        ChatTemplates(place="bundle").template()


def test_a_list_without_a_default_is_refused_where_that_is_asked_for_alone(tmp_path):
    listed = [{"name": name, "template": name} for name in ("rag", "tool_use")]
    found = write(tmp_path, tokenizer_config_json={"chat_template": listed})
    assert found.template(for_tools=True).source == "tool_use"
    with pytest.raises(ChatTemplateError, match="no chat template called default, but rag, tool_"):
        found.template()
