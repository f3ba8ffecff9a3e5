"""What an answer is held to, so that a call that begins is one that the function takes.

In: the tools of a request, and a model. Out: how its calls are told, and a grammar. Without the
package llguidance, or where the request has a grammar of its own that is no JSON schema, nothing
is held: calls are found in the text, and given when they are complete.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from coordgen_rs.errors import GrammarError, OptionError
from coordgen_rs.grammar.cost_check import TooCostlyError, is_cheap_schema
from coordgen_rs.grammar.kinds import Grammar, JsonSchema, Lark, LarkOfSchemas
from coordgen_rs.server.refusal import UnfollowedError
from coordgen_rs.server.tools.calls import Calling
from coordgen_rs.server.tools.forms import form_of, hermes
from coordgen_rs.server.tools.forms.form import CallForm, Choice
from coordgen_rs.server.tools.functions import Tools
from coordgen_rs.server.tools.lexicon import Lexicon

if TYPE_CHECKING:
    from coordgen_rs.model import Model

_MOST_COSTLY = 3
"""Schemas of a request that may turn out to cost too much, in a few seconds each."""
_LISTING = re.compile(r" 1 \| .*", re.DOTALL)
"""The text of a grammar, which llguidance puts behind what is wrong with it."""


def form_for(model: "Model") -> CallForm:
    """The form in which a model writes calls: its template's, or the one that it is told of."""
    return form_of(model.tools_template) if model.reads_tools else hermes.FORM


def held(
    tools: Tools, model: "Model", given: Grammar | None, given_field: str | None = None
) -> tuple[Calling, Grammar | None]:
    """How calls are told, and what the answer is held to.

    Args:
        tools: The functions.
        model: Who answers.
        given: What the answer is held to where nothing is called; None for nothing.
        given_field: The field that asks for that.

    Raises:
        UnfollowedError: A call has to be made, or a function is strict, and cannot be held to.
    """
    form, loosely = form_for(model), Calling(form_for(model), tools.callable)
    if given is not None and not isinstance(given, JsonSchema):
        return loosely, given
    answer = None if given is None else json.loads(given.text)
    is_parallel = tools.is_parallel and tools.forced is None  # a function that is named: once
    choice = Choice(tools.callable, tools.is_required, is_parallel, answer)
    try:
        lark = _written(form, choice, tools.strict, model)
    except (OptionError, GrammarError) as error:  # also where there is no package for grammars
        if tools.is_required or tools.strict:
            schemas = {tools.field_of(name): schema for name, schema in tools.callable.items()}
            if answer is not None and given_field is not None:
                schemas[given_field] = answer
            why, field = _at_fault(schemas, model, error)
            raise UnfollowedError(why, field) from error
        return loosely, given
    return Calling(form, tools.callable, is_held=True), lark


def _written(form: CallForm, choice: Choice, strict: frozenset[str], model: "Model") -> Lark:
    """The grammar, which the model can follow. In it, what cannot be held to is any object.

    Raises:
        OptionError: The package llguidance is missing.
        GrammarError: A schema cannot be followed, and has to be; or they are too many.
    """
    added, ends = model.tokenizer.added_tokens(), model.end_token_ids
    try:
        return _checked(lambda: form.grammar(choice, Lexicon(added, ends)), choice, model)
    except GrammarError:
        loose = _loose(choice.parameters, model)
        if choice.is_required or strict & loose or not loose:
            raise
    return _checked(lambda: form.grammar(choice, Lexicon(added, ends, loose)), choice, model)


def _loose(schemas: Mapping[str, dict[str, object]], model: "Model") -> set[str]:
    """The functions whose schemas cannot be followed; behind a few that cost too much, all."""
    loose, num_costly = set[str](), 0
    for name, schema in schemas.items():
        why = GrammarError() if num_costly == _MOST_COSTLY else _why_not(schema, model)
        num_costly += isinstance(why, TooCostlyError)
        if why is not None:
            loose.add(name)
    return loose


def _checked(write: Callable[[], str], choice: Choice, model: "Model") -> Lark:
    """A grammar that the model can follow.

    Raises:
        GrammarError: It cannot.
    """
    are_cheap = all(map(is_cheap_schema, [*choice.parameters.values(), choice.answer]))
    lark = LarkOfSchemas(write(), are_cheap)
    model.check_grammar(lark)
    return lark


def _why_not(schema: dict[str, object], model: "Model") -> Exception | None:
    """Why a schema cannot be followed; None where it can."""
    try:
        model.check_grammar(JsonSchema(schema))
    except (OptionError, GrammarError) as error:  # also where there is no package for grammars
        return error
    return None


def _at_fault(
    schemas: dict[str, dict[str, object]], model: "Model", error: Exception
) -> tuple[Exception, str]:
    """Why functions cannot be held to, and the field at fault.

    Args:
        schemas: All schemas of the request, by their fields.
        model: Who answers.
        error: What is wrong with the grammar of all of it, which no client has seen.
    """
    for field, schema in schemas.items():
        if why := _why_not(schema, model):
            return why, field
    return GrammarError(_LISTING.sub("", str(error))), "tools"
