"""The formats in which models write calls, which of them a chat template is for, and their readers.

In: a chat template; functions; an answer's text. Out: a format; a reader of calls. A family of
models whose calls stand between marks is a row here, and its signs below.
"""

from dataclasses import dataclass, replace

from coordgen_rs.server.tools.arguments.pairs import PYTHON, gemma_syntax
from coordgen_rs.server.tools.arguments.xml import XML
from coordgen_rs.server.tools.calls import CallReader, Parameters
from coordgen_rs.server.tools.harmony import HARMONY, Harmony, HarmonyReader
from coordgen_rs.server.tools.marked_format import MarkedFormat
from coordgen_rs.server.tools.marked_reader import MarkedReader

ToolCallFormat = MarkedFormat | Harmony

HERMES = MarkedFormat(
    "hermes", opening="<tool_call>", closing="</tool_call>", gap="\n", is_bare=True
)
"""Hermes 2 and 3, Qwen2.5, Qwen3, SmolLM3, Granite 4; models whose template knows no tools are
told of it in words (`prompts.py`)."""

LLAMA = MarkedFormat(
    "llama",
    opening="<|python_tag|>",
    after='", "parameters": ',
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
    begin="<function=",
    gap="\n",
    before="<function=",
    after=">",
    end="</function>",
    syntax=XML,
)
"""Qwen3-Coder, Qwen3.5 and Qwen3.6: a function with its parameters as tags."""

MISTRAL_NAMED = MarkedFormat(
    "mistral-named",
    opening="[TOOL_CALLS]",
    begin="",
    before="",
    after="[ARGS]",
    end="",
    between="[TOOL_CALLS]",
    hidden=("[ARGS]",),
    id_len=9,
)
"""Newer Mistral models: the name, and JSON."""

MISTRAL_LISTED = MarkedFormat(
    "mistral-listed",
    opening="[TOOL_CALLS]",
    begin="[",
    first="[",
    between=", ",
    last="]",
    id_len=9,
)
"""Mistral: a list in JSON."""

GRANITE = replace(MISTRAL_LISTED, name="granite", opening="<|tool_call|>", id_len=None)
"""Granite 3: a list in JSON, up to the end of the answer."""

PHI = replace(GRANITE, name="phi", closing="<|/tool_call|>")
"""Phi-4-mini: a list in JSON between two marks."""

LFM2 = MarkedFormat(
    "lfm2",
    opening="<|tool_call_start|>",
    closing="<|tool_call_end|>",
    begin="[",
    first="[",
    before="",
    after="(",
    end=")",
    between=", ",
    last="]",
    syntax=PYTHON,
)
"""LFM2 and LFM2.5: calls as a list in Python."""


def _gemma(name: str, opening: str, closing: str, quote: str) -> MarkedFormat:
    """`call:NAME{..}` between two marks, with texts between quotes of its own."""
    return MarkedFormat(
        name,
        opening=opening,
        closing=closing,
        begin="call:",
        before="call:",
        after="{",
        syntax=gemma_syntax(quote),
        hidden=(quote,),
    )


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
    begin="",
    before=f"{_CALL}function{_SEPARATOR}",
    after="\n```json\n",
    end=f"\n```{_CALL_END}",
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
