"""The formats in which models write calls, which of them a model has, and how it is told of tools.

In: a chat template, a model; messages with calls and results in OpenAI's form. Out: a format, and a
reader of calls; messages as the template reads them. A family of models whose calls stand between
marks is a row here, and its signs below. For a template that knows no tools, messages are plain: a
description of the tools in the system message, calls and results between marks, as Hermes models
were trained on. Some templates refuse ids of calls that are not as long as their own. How an answer
is held to the format stands in `dialects/request.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from coordgen_rs.model import Model
from coordgen_rs.server.tools.calls import CallReader, Parameters
from coordgen_rs.server.tools.functions import Tools
from coordgen_rs.server.tools.harmony import HARMONY, Harmony, HarmonyReader
from coordgen_rs.server.tools.marked import MarkedFormat, MarkedReader
from coordgen_rs.server.tools.pairs import PYTHON, gemma_syntax
from coordgen_rs.server.tools.syntax import as_json
from coordgen_rs.server.tools.xml import XML

ToolCallFormat = MarkedFormat | Harmony

HERMES = MarkedFormat("hermes", "<tool_call>", "</tool_call>", gap="\n", is_bare=True)
"""Hermes 2 and 3, Qwen2.5, Qwen3, SmolLM3, Granite 4; models whose template knows no tools are
told of it in words, below."""

LLAMA = MarkedFormat(
    "llama",
    opening="<|python_tag|>",
    call='{"name": "NAME", "parameters": ARGUMENTS}',
    between="; ",
    is_bare=True,
    prefers_bare=True,
)
"""Llama 3.1 to 3.3: an answer that is nothing but JSON, now and then behind the mark. The code that
these models may write behind it for tools of their own stays content."""

QWEN_XML = MarkedFormat(
    "qwen-xml",
    opening="<tool_call>",
    closing="</tool_call>",
    call="<function=NAME>ARGUMENTS</function>",
    begin="<function=",
    gap="\n",
    syntax=XML,
)
"""Qwen3-Coder, Qwen3.5 and Qwen3.6: a function with its parameters as tags."""

MISTRAL_NAMED = MarkedFormat(
    "mistral-named",
    opening="[TOOL_CALLS]",
    call="NAME[ARGS]ARGUMENTS",
    begin="",
    between="[TOOL_CALLS]",
    hidden=("[ARGS]",),
    id_len=9,
)
"""Newer Mistral models: the name, and JSON."""

MISTRAL_LISTED = MarkedFormat(
    "mistral-listed", "[TOOL_CALLS]", begin="[", first="[", between=", ", last="]", id_len=9
)
"""Mistral: a list in JSON."""

GRANITE = replace(MISTRAL_LISTED, name="granite", opening="<|tool_call|>", id_len=None)
"""Granite 3: a list in JSON, up to the end of the answer."""

PHI = replace(GRANITE, name="phi", closing="<|/tool_call|>")
"""Phi-4-mini: a list in JSON between two marks."""

LFM2 = replace(
    GRANITE,
    name="lfm2",
    opening="<|tool_call_start|>",
    closing="<|tool_call_end|>",
    call="NAME(ARGUMENTS)",
    syntax=PYTHON,
)
"""LFM2 and LFM2.5: calls as a list in Python."""


def _gemma(name: str, opening: str, closing: str, quote: str) -> MarkedFormat:
    """Calls between two marks, with texts between quotes of their own."""
    call, syntax = "call:NAME{ARGUMENTS}", gemma_syntax(quote)
    return MarkedFormat(name, opening, closing, call, begin="call:", syntax=syntax, hidden=(quote,))


GEMMA = _gemma("gemma", "<|tool_call>", "<tool_call|>", '<|"|>')
"""Gemma 4."""

FUNCTION_GEMMA = _gemma(
    "function-gemma", "<start_function_call>", "<end_function_call>", "<escape>"
)
"""FunctionGemma, a Gemma 3."""


def _deepseek_mark(*words: str) -> str:
    """A mark: its bars are of full width, and its words are joined by a block."""
    joined = "\N{LOWER ONE EIGHTH BLOCK}".join(("tool", *words))
    return f"<\N{FULLWIDTH VERTICAL LINE}{joined}\N{FULLWIDTH VERTICAL LINE}>"


_CALL, _SEPARATOR = _deepseek_mark("call", "begin"), _deepseek_mark("sep")
_CALL_END = _deepseek_mark("call", "end")

DEEPSEEK = MarkedFormat(
    "deepseek",
    opening=_deepseek_mark("calls", "begin"),
    closing=_deepseek_mark("calls", "end"),
    call=f"{_CALL}function{_SEPARATOR}NAME\n```json\nARGUMENTS\n```{_CALL_END}",
    begin="",
    between="\n",
    hidden=(_CALL, _SEPARATOR, _CALL_END),
)
"""DeepSeek-V3 and R1: for each call a mark, the name, and JSON in a block of code."""

_SIGNS: tuple[tuple[ToolCallFormat, tuple[str, ...]], ...] = (
    (HARMONY, ("<|channel|>", "<|message|>")),
    (GEMMA, (GEMMA.opening,)),
    (FUNCTION_GEMMA, (FUNCTION_GEMMA.opening,)),
    (QWEN_XML, ("<function=", "<parameter=")),
    (MISTRAL_NAMED, ("[TOOL_CALLS]", "[ARGS]")),
    (MISTRAL_LISTED, (MISTRAL_LISTED.opening,)),
    (LFM2, (LFM2.opening,)),
    (LFM2, ("<|tool_list_start|>",)),
    (PHI, (PHI.closing,)),
    (PHI, ("<|tool|>",)),
    (GRANITE, (GRANITE.opening,)),
    (DEEPSEEK, (DEEPSEEK.opening,)),
    (HERMES, (HERMES.opening,)),
    (LLAMA, ("<|start_header_id|>", "parameters")),
)
"""Texts in chat templates; the first format of which a template has all is its models'."""

FORMATS = tuple(dict.fromkeys(one for one, _ in _SIGNS))
"""All of them."""


def format_of(template: str) -> ToolCallFormat:
    """The format in which the models of a chat template write calls; Hermes' if it has none.

    Args:
        template: The template's source.
    """
    found = (one for one, signs in _SIGNS if all(sign in template for sign in signs))
    return next(found, HERMES)


@dataclass(frozen=True)
class Calling:
    """How the calls of one answer are told.

    Attributes:
        format: How the model writes them.
        parameters: The functions that may be called.
        is_constrained: Whether the answer is constrained to the format: calls are given as they are
            made.
    """

    format: ToolCallFormat
    parameters: Parameters
    is_constrained: bool = False


def call_reader(calling: Calling | None) -> CallReader:
    """A reader of one answer.

    Args:
        calling: What may be called, and how; None for nothing: all is content.
    """
    if calling is None:
        return CallReader()
    parameters, is_constrained = calling.parameters, calling.is_constrained
    if isinstance(calling.format, Harmony):
        return HarmonyReader(parameters, is_constrained=is_constrained)
    return MarkedReader(calling.format, parameters, is_constrained=is_constrained)


def format_for(model: Model) -> ToolCallFormat:
    """The format in which a model writes calls: its template's, or the one that it is told of."""
    return format_of(model.tools_template) if model.reads_tools else HERMES


_ABOUT = """\
You may call functions to answer. They are listed here as JSON schemas:
<tools>
{tools}
</tools>
To call one, answer with its name and arguments as JSON between these marks:
<tool_call>
{{"name": "NAME", "arguments": {{}}}}
</tool_call>"""


def described(messages: list[dict[str, Any]], tools: Tools | None) -> list[dict[str, Any]]:
    """Messages for a template that knows no tools."""
    plain = [_plain(message) for message in messages]
    if tools is None:
        return plain
    about = _ABOUT.format(tools="\n".join(as_json(tool) for tool in tools.listed))
    if plain[0]["role"] == "system":
        first = plain[0] | {"content": f"{plain[0]['content']}\n\n{about}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": about}, *plain]


def with_short_ids(messages: list[dict[str, Any]], length: int) -> list[dict[str, Any]]:
    """Messages whose calls have ids of a length, for a template that refuses others.

    Args:
        messages: The messages; they are not changed.
        length: How many letters and digits an id is to have.
    """
    found = _with_calls(messages, lambda call: call | {"id": _short(call.get("id", ""), length)})
    return [
        message | {"tool_call_id": _short(identity, length)}
        if isinstance(identity := message.get("tool_call_id"), str)
        else message
        for message in found
    ]


def with_mapped_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose calls have objects for arguments, for a template that reads no text there.

    Args:
        messages: The messages; they are not changed.
    """
    return _with_calls(messages, _mapped)


def _with_calls(
    messages: list[dict[str, Any]], changed: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    return [
        message | {"tool_calls": [changed(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def _mapped(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if isinstance(arguments, dict):
        return call
    return call | {"function": call["function"] | {"arguments": {"arguments": arguments}}}


def _short(identity: str, length: int) -> str:
    """The same id for the same id."""
    if len(identity) == length and identity.isalnum():
        return identity
    return sha256(identity.encode(errors="replace")).hexdigest()[:length]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": content}
    if "tool_calls" not in message:
        return message
    begin, end = HERMES.opening, HERMES.closing
    calls = [f"{begin}\n{as_json(call['function'])}\n{end}" for call in message["tool_calls"]]
    parts = [message["content"]] if message.get("content") else []
    return {"role": message["role"], "content": "\n".join([*parts, *calls])}
