"""What an answer is constrained to, so that a call that begins is one that the function takes.

In: the tools of a request, and a model. Out: how its calls are told, and a grammar. Without the
package llguidance, or where the request has a grammar of its own that is no JSON schema, there is
no constraint: calls are found in the text, and given when they are complete.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from coordgen_rs.errors import GrammarError, OptionError
from coordgen_rs.grammar.cost_check import TooCostlyError, is_cheap_schema
from coordgen_rs.grammar.kinds import Grammar, JsonSchema, Lark, LarkOfSchemas
from coordgen_rs.model import Model
from coordgen_rs.server.refusal import UnfollowedError
from coordgen_rs.server.tools.calls import Choice
from coordgen_rs.server.tools.formats import HERMES, Calling, ToolCallFormat, format_of
from coordgen_rs.server.tools.functions import Tools
from coordgen_rs.server.tools.lexicon import Lexicon

_MOST_COSTLY = 3
"""Schemas of a request that may turn out to cost too much, in a few seconds each."""
_LISTING = re.compile(r" 1 \| .*", re.DOTALL)
"""The text of a grammar, which llguidance puts behind what is wrong with it."""


def format_for(model: Model) -> ToolCallFormat:
    """The format in which a model writes calls: its template's, or the one that it is told of."""
    return format_of(model.tools_template) if model.reads_tools else HERMES


def constrained(
    tools: Tools, model: Model, given: Grammar | None, given_field: str | None = None
) -> tuple[Calling, Grammar | None]:
    """How calls are told, and what the answer is constrained to.

    Args:
        tools: The functions.
        model: Who answers.
        given: What the answer is constrained to where nothing is called; None for nothing.
        given_field: The field that asks for that.

    Raises:
        UnfollowedError: A call has to be made, or a function is strict, and cannot be followed.
    """
    calling = Calling(format_for(model), tools.callable)
    if given is not None and not isinstance(given, JsonSchema):
        return calling, given
    answer = None if given is None else json.loads(given.text)
    is_parallel = tools.is_parallel and tools.forced is None  # a function that is named: once
    choice = Choice(tools.callable, tools.is_required, is_parallel, answer)
    try:
        lark = _grammar(calling.format, choice, tools.strict, model)
    except (OptionError, GrammarError) as error:  # also where there is no package for grammars
        if not tools.is_required and not tools.strict:
            return calling, given
        schemas = tools.schemas
        if answer is not None and given_field is not None:
            schemas[given_field] = answer
        why, field = _at_fault(schemas, model, error)
        raise UnfollowedError(why, field) from error
    return replace(calling, is_constrained=True), lark


def _grammar(call_format: ToolCallFormat, choice: Choice, strict: set[str], model: Model) -> Lark:
    """The grammar, which the model can follow. In it, what cannot be followed is any object.

    Raises:
        OptionError: The package llguidance is missing.
        GrammarError: A schema cannot be followed, and has to be; or they are too many.
    """
    try:
        return _checked(call_format, choice, model)
    except GrammarError:
        loose = _loose(choice.parameters, model)
        if choice.is_required or strict & loose or not loose:
            raise
    parameters = {**choice.parameters, **{name: {"type": "object"} for name in loose}}
    return _checked(call_format, replace(choice, parameters=parameters), model)


def _checked(call_format: ToolCallFormat, choice: Choice, model: Model) -> Lark:
    """A grammar that the model can follow.

    Raises:
        GrammarError: It cannot.
    """
    lexicon = Lexicon(model.tokenizer.added_tokens(), model.end_token_ids)
    are_cheap = all(map(is_cheap_schema, [*choice.parameters.values(), choice.answer]))
    lark = LarkOfSchemas(call_format.grammar(choice, lexicon), are_cheap)
    model.check_grammar(lark)
    return lark


def _loose(schemas: Mapping[str, dict[str, object]], model: Model) -> set[str]:
    """The functions whose schemas cannot be followed; behind a few that cost too much, all."""
    loose, num_costly = set[str](), 0
    for name, schema in schemas.items():
        why = GrammarError() if num_costly == _MOST_COSTLY else _why_not(schema, model)
        num_costly += isinstance(why, TooCostlyError)
        if why is not None:
            loose.add(name)
    return loose


def _why_not(schema: dict[str, object], model: Model) -> Exception | None:
    """Why a schema cannot be followed; None where it can."""
    try:
        model.check_grammar(JsonSchema(schema))
    except (OptionError, GrammarError) as error:  # also where there is no package for grammars
        return error
    return None


def _at_fault(
    schemas: dict[str, dict[str, object]], model: Model, error: Exception
) -> tuple[Exception, str]:
    """Why functions cannot be followed, and the field at fault.

    Args:
        schemas: All schemas of the request, by their fields.
        model: Who answers.
        error: What is wrong with the grammar of all of it, which no client has seen.
    """
    for field, schema in schemas.items():
        if why := _why_not(schema, model):
            return why, field
    return GrammarError(_LISTING.sub("", str(error))), "tools"
