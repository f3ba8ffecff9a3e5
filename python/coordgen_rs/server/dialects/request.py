"""A request for an answer, complete: what a worker begins, and what a writer of answers reads.

In: an open model, the prompt's tokens, and what the fields of a body ask for. Out: a `Request`, or
an error that names the field. Where functions may be called, the answer is constrained to them, so
that a call that begins is one that the function takes. Without the package llguidance, or where the
request has a grammar of its own that is no JSON schema, it is not: calls are found in the text, and
given when they are complete.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import GrammarError, OptionError
from coordgen_rs.model import Model
from coordgen_rs.model.options import REQUEST, RequestOptions
from coordgen_rs.model.stream import Stream
from coordgen_rs.server.api_error import ConstraintError
from coordgen_rs.server.dialects.options import Constraint
from coordgen_rs.server.tools.calls import CallConstraint
from coordgen_rs.server.tools.formats import Calling, ToolCallFormat, format_for
from coordgen_rs.server.tools.functions import Tools
from coordgen_rs.server.tools.syntax import Lexicon
from coordgen_rs.text.grammar.kinds import AfterThinking, Grammar, JsonSchema, Lark, LarkOfSchemas
from coordgen_rs.text.grammar.limits import TooCostlyError, is_cheap_schema
from coordgen_rs.text.thinking import Thinking, thinking_of
from coordgen_rs.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from coordgen_rs.text.grammar.matcher import Matcher

Kind = Literal["chat", "completion", "response"]
"""The endpoint of OpenAI's that a request came by, or that another dialect's corresponds to."""

_MOST_COSTLY = 3
"""Schemas of a request that may turn out to cost too much, in a few seconds each."""
_LISTING = re.compile(r" 1 \| .*", re.DOTALL)
"""The text of a grammar, which llguidance puts behind what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the fields of a body ask for, the prompt excepted.

    Attributes:
        options: How the answer is made.
        limit: Most tokens of the answer; None for as many as fit.
        tools: What the model may call.
        constraint: What the answer is held to where nothing is called.
        num_choices: How many answers to give.
        echoed: The text that the answer begins with.
        is_streamed: Whether the answer is sent as it is made.
        with_usage: Whether a stream ends with a chunk of usage.
        with_spans: Whether to tell the source of each part of the answer.
        with_token_ids: Whether to give the answer's tokens, too.
    """

    options: RequestOptions
    limit: int | None
    tools: Tools | None = None
    constraint: Constraint | None = None
    num_choices: int = 1
    echoed: str = ""
    is_streamed: bool = False
    with_usage: bool = False
    with_spans: bool = False
    with_token_ids: bool = False


@dataclass(frozen=True, kw_only=True)
class Request(Settings):
    """A request for an answer: what was asked for, and what that is for its model.

    Attributes:
        kind: The endpoint.
        prompt_ids: The prompt's tokens, `(tokens,) u32`.
        tokenizer: That of the model.
        calling: How calls of tools are told.
        thinking: How the answer may think.
        matcher: Keeps the grammar compiled until the answer begins.
        model: The model's name for clients; "" until it is known.
    """

    kind: Kind
    prompt_ids: NDArray[np.uint32]
    tokenizer: Tokenizer
    calling: Calling | None
    thinking: Thinking | None
    matcher: "Matcher | None"
    model: str = ""

    @property
    def seed(self) -> int | None:
        """The seed of sampling; None where nothing is sampled."""
        return self.options["seed"] if self.options["temperature"] else None

    @property
    def with_trees(self) -> bool:
        """Whether to show the draft tree of each step."""
        return self.options["trees"]

    @property
    def wants_steps(self) -> bool:
        """Whether the steps are told, too, and not the whole answer alone."""
        return self.is_streamed or self.with_trees

    def choice(self, number: int) -> "Request":
        """The request for one of the answers alone: the one whose seed is greater by its number."""
        if not number or self.seed is None:
            return self
        options = self.options.copy()
        options["seed"] = (self.seed + number) & REQUEST["seed"].most
        return replace(self, options=options)

    def begin(self, model: Model, *, namespace: str | None = None) -> Stream:
        """Begin the answer of the model that the request was parsed for.

        Args:
            model: The model.
            namespace: Same as in `RequestOptions`.
        """
        options = self.options.copy()
        options["namespace"] = namespace
        return model.stream_tokens(self.prompt_ids, **options)


def complete(
    model: Model,
    kind: Kind,
    prompt_ids: NDArray[np.uint32],
    settings: Settings,
    *,
    splits_thinking: bool = True,
    ends: Sequence[str] = (),
) -> Request:
    """The request of a body whose fields have all been read.

    Args:
        model: Who is to answer.
        kind: Same as in `Request`.
        prompt_ids: Same as in `Request`.
        settings: What was asked for.
        splits_thinking: Whether thinking is told apart from the answer.
        ends: Special tokens that end the answer.

    Raises:
        ConstraintError: The answer cannot be held to the constraint, or to a function.
    """
    options, tools, tokenizer = settings.options.copy(), settings.tools, model.tokenizer
    field, grammar = settings.constraint or (None, None)
    marks, calling, thinking = [*ends], None, None
    if tools is not None:
        calling, grammar = constrained(tools, model, grammar, field)
        marks += calling.format.marks
    if splits_thinking and model.has_chat_template:
        thinking = thinking_of(model.template_facts.thinking, tokenizer, prompt_ids.tolist())
    if thinking is not None:
        marks += thinking.marks.tokens
        # Where functions may be called, the channels of thinking are among the grammar's.
        if grammar is not None and not (tools is not None and thinking.marks.header):
            grammar = AfterThinking(grammar, thinking)
    try:  # compiled here, for who answers waits for nothing else
        matcher = None if grammar is None else model.check_grammar(grammar)  # type: ignore[arg-type]
    except GrammarError as error:
        raise ConstraintError(error, field) from error
    if options["logprobs"] is not None:
        _ = tokenizer.spelling  # the first time takes a while: not where answers are written
    options["max_new_tokens"] = settings.limit or model.context
    options["grammar"], options["special_tokens"] = grammar, tuple(marks)
    options["stop"] = [*(options["stop"] or ()), *ends]
    return Request(
        **vars(settings) | {"options": options},
        kind=kind,
        prompt_ids=prompt_ids,
        tokenizer=tokenizer,
        calling=calling,
        thinking=thinking,
        matcher=matcher,
    )


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
