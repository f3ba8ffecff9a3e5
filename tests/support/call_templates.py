"""Chat templates in the formats of families, and how their models write calls.

Written for this repository, as those in `tests/text/templates`: each puts the marks of one family
around tools and calls; wording and structure are our own.
"""

from checkpoints import ROOT
from coordgen_rs.server.tools.calls import Content
from coordgen_rs.server.tools.formats import Calling, call_reader

_FAMILIES = ROOT / "tests" / "text" / "templates"


def _chatml(calls, told="{{ tools | tojson }}"):
    """A template of messages between two marks, whose assistant writes `calls`."""
    return (
        "{%- if tools %}<|im_start|>system\n" + told + "<|im_end|>\n{% endif -%}"
        "{%- for turn in messages -%}<|im_start|>{{ turn.role }}\n{{ turn.content or '' -}}"
        "{%- if turn.tool_calls -%}" + calls + "{%- endif -%}<|im_end|>\n{% endfor -%}"
        "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}"
    )


_QWEN_XML = """
{%- for call in turn.tool_calls -%}
{{- '\\n' if not loop.first }}<tool_call>
<function={{ call.function.name }}>
{% for name, value in call.function.arguments | items -%}
<parameter={{ name }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor -%}
</function>
</tool_call>
{%- endfor -%}"""

_LFM2 = """
{%- macro one(value) -%}
{%- if value is true %}True{% elif value is false %}False{% elif value is none %}None
{%- else %}{{ value | tojson }}{% endif -%}
{%- endmacro -%}
<|tool_call_start|>[
{%- for call in turn.tool_calls -%}
{{- ', ' if not loop.first }}{{ call.function.name }}(
{%- for name, value in call.function.arguments | items -%}
{{- ', ' if not loop.first }}{{ name }}={{ one(value) }}
{%- endfor -%})
{%- endfor -%}]<|tool_call_end|>"""

_GEMMA = """
{%- macro one(value) -%}
{%- if value is string %}QUOTE{{ value }}QUOTE
{%- elif value is mapping -%}{{ '{' }}{% for name, inner in value | items -%}
{{- ',' if not loop.first }}{{ name }}:{{ one(inner) }}
{%- endfor %}{{ '}' }}
{%- elif value is iterable -%}[{% for inner in value %}{{ ',' if not loop.first }}{{ one(inner) }}
{%- endfor %}]
{%- else %}{{ value | tojson }}{% endif -%}
{%- endmacro -%}
{%- for call in turn.tool_calls -%}
OPENcall:{{ call.function.name }}{{ '{' }}
{%- for name, value in call.function.arguments | items -%}
{{- ',' if not loop.first }}{{ name }}:{{ one(value) }}
{%- endfor %}{{ '}' }}CLOSE
{%- endfor -%}"""


def _gemma(opening, closing, quote):
    return _chatml(
        _GEMMA.replace("OPEN", opening).replace("CLOSE", closing).replace("QUOTE", quote)
    )


_FUNCTIONS = "turn.tool_calls | map(attribute='function') | list | tojson"
_BAR, _BLOCK = "\N{FULLWIDTH VERTICAL LINE}", "\N{LOWER ONE EIGHTH BLOCK}"


def _deepseek_mark(words):
    return f"<{_BAR}{words.replace(' ', _BLOCK)}{_BAR}>"


_DEEPSEEK = (
    _deepseek_mark("tool calls begin")
    + "{%- for call in turn.tool_calls -%}{{ '\\n' if not loop.first }}"
    + _deepseek_mark("tool call begin")
    + "function"
    + _deepseek_mark("tool sep")
    + "{{ call.function.name }}\n```json\n{{ call.function.arguments | tojson }}\n```"
    + _deepseek_mark("tool call end")
    + "{%- endfor -%}"
    + _deepseek_mark("tool calls end")
)

TEMPLATES = {
    "deepseek": _chatml(_DEEPSEEK),
    "function-gemma": _gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma": _gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
    "granite": (_FAMILIES / "granite3.jinja").read_text(),
    "harmony": (_FAMILIES / "gpt-oss.jinja").read_text(),
    "hermes": (_FAMILIES / "qwen2.5.jinja").read_text(),
    "lfm2": _chatml(_LFM2),
    "llama": (_FAMILIES / "llama3.jinja").read_text(),
    "mistral-listed": (_FAMILIES / "mistral.jinja").read_text(),
    "mistral-named": _chatml(
        "{%- for call in turn.tool_calls -%}[TOOL_CALLS]{{ call.function.name }}[ARGS]"
        "{{ call.function.arguments | tojson }}{%- endfor -%}"
    ),
    "phi": _chatml("<|tool_call|>{{ " + _FUNCTIONS + " }}<|/tool_call|>"),
    "qwen-xml": _chatml(_QWEN_XML),
}
"""A template for each form, by the form's name."""

ENDS = {
    "granite": ("<|end_of_text|>",),
    "harmony": ("<|call|>", "<|return|>"),
    "llama": ("<|eot_id|>",),
}
"""Tokens that end answers of these families, besides `<|im_end|>`."""


def read_calls(call_format, parts, functions, *, is_constrained=True, is_cut=False):
    """Content of an answer that comes in parts, its calls, and whether the last is cut.

    A call is a name and arguments, which come in parts of their own; None for no format: all is
    content.
    """
    calling = call_format and Calling(call_format, functions, is_constrained)
    reader, text, calls = call_reader(calling), "", []
    found = [one for part in parts for one in reader.read(part)]
    for one in [*found, *reader.end(is_cut=is_cut)]:
        if isinstance(one, Content):
            text += one.text
        elif one.name is not None:
            assert one.number == len(calls)
            calls.append((one.name, one.arguments))
        else:
            name, before = calls.pop()
            calls.append((name, before + one.arguments))
    assert reader.num_calls == len(calls)
    return text, calls, reader.is_open
