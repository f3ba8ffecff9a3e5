"""The formats in which models write calls, which of them a model has, and how it is held to it.

In: a chat template, the tools of a request, a model; an answer's text. Out: a format, a reader of
calls, and a grammar, so that a call that begins is one that the function takes. A family of models
whose calls stand between marks is a row here, and its signs below. Without the package llguidance,
or where the request has a grammar of its own that is no JSON schema, there is no constraint: calls
are found in the text, and given when they are complete.
"""

import json
import re
from contextlib import suppress
from dataclasses import dataclass, replace

from coordgen_rs.errors import GrammarError, OptionError
from coordgen_rs.grammar.kinds import Grammar, JsonSchema, Lark, LarkOfSchemas
from coordgen_rs.grammar.limits import TooCostlyError, is_cheap_schema
from coordgen_rs.model import Model
from coordgen_rs.server.api_error import ConstraintError
from coordgen_rs.server.tools.calls import CallConstraint, CallReader, Parameters
from coordgen_rs.server.tools.functions import Tools
from coordgen_rs.server.tools.harmony import HARMONY, Harmony, HarmonyReader
from coordgen_rs.server.tools.marked import MarkedFormat, MarkedReader
from coordgen_rs.server.tools.pairs import PYTHON, gemma_syntax
from coordgen_rs.server.tools.syntax import Lexicon
from coordgen_rs.server.tools.xml import XML

_MOST_COSTLY = 3
"""Schemas of a request that may turn out to cost too much, in a few seconds each."""
_LISTING = re.compile(r" 1 \| .*", re.DOTALL)
"""The text of a grammar, which llguidance puts behind what is wrong with it."""

ToolCallFormat = MarkedFormat | Harmony

HERMES = MarkedFormat("hermes", "<tool_call>", "</tool_call>", gap="\n", is_bare=True)
"""Hermes 2 and 3, Qwen2.5, Qwen3, SmolLM3, Granite 4; models whose template knows no tools are
told of it in words (`prompts.py`)."""

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


def constrained(
    tools: Tools, model: Model, given: Grammar | None, given_field: str | None = None
) -> tuple[Calling, Grammar | None]:
    """How calls are told, and what the answer is constrained to.

    Where nothing has to be called, a function that cannot be followed takes any object.

    Args:
        tools: The functions.
        model: Who answers.
        given: What the answer is constrained to where nothing is called; None for nothing.
        given_field: The field that asks for that.

    Raises:
        ConstraintError: A call has to be made, or a function is strict, and cannot be followed.
    """
    calling = Calling(format_for(model), tools.callable)
    if given is not None and not isinstance(given, JsonSchema):
        return calling, given
    answer = None if given is None else json.loads(given.text)
    is_parallel = tools.is_parallel and tools.forced is None  # a function that is named: once
    choice = CallConstraint(tools.callable, tools.is_required, is_parallel, answer)
    is_held = replace(calling, is_constrained=True)
    try:
        return is_held, _grammar(calling.format, choice, model)
    except (OptionError, GrammarError) as error:  # also where there is no package for grammars
        has_to = tools.is_required or bool(tools.strict)
        if isinstance(error, OptionError) and not has_to:
            return calling, given
        faults = _faults(tools, model)
        if faults and not tools.is_required and not tools.strict & faults.keys():
            loose = {name: {"type": "object"} for name in faults}
            choice = replace(choice, parameters={**tools.callable, **loose})
            with suppress(GrammarError):
                return is_held, _grammar(calling.format, choice, model)
        if not has_to:
            return calling, given
        fields = [(tools.field_of(name), why) for name, why in faults.items()]
        if answer is not None and given_field is not None and (why := _why_not(answer, model)):
            fields.append((given_field, why))
        # What is wrong with the grammar of all of it, no client has seen.
        fields.append(("tools", GrammarError(_LISTING.sub("", str(error)))))
        field, why = fields[0]
        raise ConstraintError(why, field) from error


def _grammar(call_format: ToolCallFormat, choice: CallConstraint, model: Model) -> Lark:
    """A grammar that the model can follow.

    Raises:
        OptionError: The package llguidance is missing.
        GrammarError: A schema cannot be followed; or they are too many.
    """
    lexicon = Lexicon(model.tokenizer.added_tokens(), model.end_token_ids)
    are_cheap = all(map(is_cheap_schema, [*choice.parameters.values(), choice.answer]))
    lark = LarkOfSchemas(call_format.grammar(choice, lexicon), are_cheap)
    model.check_grammar(lark)
    return lark


def _faults(tools: Tools, model: Model) -> dict[str, Exception]:
    """The functions that cannot be followed, and why; behind a few that cost too much, all."""
    faults, num_costly = dict[str, Exception](), 0
    for one in tools.functions:
        if one.name in tools.callable:
            is_over = num_costly == _MOST_COSTLY
            why = GrammarError() if is_over else _why_not(one.parameters, model)
            num_costly += isinstance(why, TooCostlyError)
            if why is not None:
                faults[one.name] = why
    return faults


def _why_not(schema: dict[str, object], model: Model) -> Exception | None:
    """Why a schema cannot be followed; None where it can."""
    try:
        model.check_grammar(JsonSchema(schema))
    except (OptionError, GrammarError) as error:  # also where there is no package for grammars
        return error
    return None
