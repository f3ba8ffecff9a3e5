"""The bodies of OpenAI's endpoints for chats and texts, and of `/apply-template`.

In: a body as `Fields`, `model` excepted, and the model. Out: a `Request`, or a refusal that names
the field.
"""

from typing import Any

from coordgen_rs.generation.logprobs import MAX_ALTERNATIVES
from coordgen_rs.grammar.kinds import JsonSchema
from coordgen_rs.model import Model
from coordgen_rs.model.options import RequestOptions
from coordgen_rs.server.requests.fields import Fields
from coordgen_rs.server.requests.formats import Constraint, constraint_of
from coordgen_rs.server.requests.infill import infilled
from coordgen_rs.server.requests.messages import messages_of
from coordgen_rs.server.requests.options import (
    biases_of,
    limit_of,
    num_alternatives_of,
    num_choices_of,
    options_of,
    prediction_of,
)
from coordgen_rs.server.requests.prompts import (
    Dialogue,
    chat_ids,
    chat_text,
    effort_of,
    encode,
    fitting,
)
from coordgen_rs.server.requests.record import Request, Shown, complete
from coordgen_rs.server.requests.tokens import token_array
from coordgen_rs.server.tools.functions import Tools, tools_of

_GIVEN_OTHERWISE = ("messages", "tools", "add_generation_prompt")
"""What is no variable of the client's."""
_REASONING_FORMATS = ("none", "auto", "deepseek")
"""Names of llama.cpp's: the last two are the same."""
_COMPLETION_TOKENS = 16
"""OpenAI's default for the older endpoint."""

_ELSEWHERE = ("audio", "moderation", "web_search_options")
_ABOUT_CLIENT = (
    *("metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
    *("service_tier", "user"),
)
"""Fields that are about the client or the bill, and not about the answer."""


def parse_chat(fields: Fields, model: Model) -> Request:
    """The body of `/v1/chat/completions`.

    Raises:
        RefusalError: It cannot be answered.
    """
    dialogue = _dialogue(fields)
    limit = limit_of(fields, "max_completion_tokens", "max_tokens", "n_predict")
    num_alternatives = num_alternatives_of(fields, fields.flag("logprobs"), "logprobs: true")
    fields.only("modalities", ["text"], why="the server answers with text only")
    fields.only("store", False, why="the server stores no answers for later retrieval")
    reasoning_format = fields.one_of("reasoning_format", _REASONING_FORMATS, "auto")
    options, constraint, shown = rest_of(fields, model, num_alternatives, tools=dialogue.tools)
    return complete(
        model,
        "chat",
        chat_ids(model, dialogue),
        options,
        limit,
        tools=dialogue.tools,
        constraint=constraint,
        splits_thinking=reasoning_format != "none",
        **shown,
    )


def apply_template(fields: Fields, model: Model) -> dict[str, Any]:
    """The answer of `/apply-template`: the text that the model reads for a dialogue.

    Raises:
        RefusalError: It cannot be rendered.
    """
    dialogue = _dialogue(fields)
    fields.end()
    return {"prompt": chat_text(model, dialogue)}


def _dialogue(fields: Fields) -> Dialogue:
    """The dialogue of a body.

    Raises:
        RefusalError: It is malformed.
    """
    messages, tools = messages_of(fields), tools_of(fields)
    variables = fields.take("chat_template_kwargs")
    if variables is not None and not isinstance(variables, dict):
        raise fields.wrong("chat_template_kwargs", "must be an object")
    for name in _GIVEN_OTHERWISE:
        if variables is not None and name in variables:
            raise fields.wrong("chat_template_kwargs", f"cannot hold {name}, which is given apart")
    effort = effort_of(fields, "reasoning_effort")
    return Dialogue(messages, tools, effort, variables=variables)


def parse_completion(fields: Fields, model: Model) -> Request:
    """The body of `/v1/completions`.

    Raises:
        RefusalError: It cannot be answered.
    """
    given = fields.take("prompt")
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
        given = given[0]
    if isinstance(given, list) and any(isinstance(item, str | list) for item in given):
        raise fields.wrong("prompt", "must be one prompt: several need several requests")
    if not isinstance(given, str | list):
        raise fields.wrong("prompt", "must be a string or a list of token ids")
    is_echoed, suffix, ends = fields.flag("echo"), fields.text("suffix"), list[str]()
    fields.only("top_logprobs", 0, why="here logprobs is how many alternatives are told")
    num_alternatives = fields.count("logprobs", most=MAX_ALTERNATIVES)
    if is_echoed and num_alternatives is not None:
        raise fields.wrong("echo", "and logprobs exclude each other: those of a prompt are unknown")
    limit = limit_of(fields, "max_tokens", "n_predict", default=_COMPLETION_TOKENS)
    options, constraint, shown = rest_of(fields, model, num_alternatives)
    if isinstance(given, str):
        prompt_ids = encode(model, given, "prompt", special_tokens=not suffix)
    else:
        prompt_ids = fitting(model, token_array(given, "prompt", model), "prompt")
    if is_echoed and isinstance(given, str):
        shown["echoed"] = given
    elif is_echoed:
        shown["echoed"] = model.tokenizer.decode(prompt_ids.tolist())
    if suffix:
        prompt_ids, ends = infilled(model, prompt_ids, suffix)
    return complete(
        model,
        "completion",
        prompt_ids,
        options,
        limit,
        constraint=constraint,
        splits_thinking=False,
        ends=ends,
        **shown,
    )


def rest_of(
    fields: Fields,
    model: Model,
    num_alternatives: int | None,
    constraint: Constraint | None = None,
    tools: Tools | None = None,
) -> tuple[RequestOptions, Constraint | None, Shown]:
    """What the fields that all endpoints have say, for `complete`.

    Args:
        fields: The fields that are left of the body.
        model: Who is to answer.
        num_alternatives: How many alternatives are told of each token; None tells nothing of any.
        constraint: What a field of the endpoint holds the answer to.
        tools: What the model may call.

    Raises:
        RefusalError: One of them asks for what cannot be had, or a field is left over.
    """
    options = options_of(fields, "openai")
    options["prediction"] = prediction_of(fields, model)
    options["logit_bias"], options["logprobs"] = biases_of(fields, model), num_alternatives
    shown = Shown(num_choices=num_choices_of(fields), is_streamed=fields.flag("stream"))
    if fields.has("stream_options") and not shown["is_streamed"]:
        raise fields.wrong("stream_options", "needs stream: true")
    of_stream, own = fields.nested("stream_options"), fields.nested("coordgen")
    shown["with_usage"] = of_stream.flag("include_usage")
    of_stream.only("include_obfuscation", False, why="the server does not pad its events")
    of_stream.end()
    shown["with_spans"], shown["with_trees"] = own.flag("spans"), own.flag("trees")
    options["drafts"], options["trees"] = own.flag("drafts", default=True), shown["with_trees"]
    constraint = constraint_of(fields, own, constraint)
    own.end()
    if tools is not None and tools.is_required and constraint is not None:
        if not isinstance(constraint.grammar, JsonSchema):
            raise fields.wrong("tool_choice", "asks for a call: then nothing else can be, too")
        constraint = None  # the format of an answer that is not given
    shown["with_token_ids"] = fields.flag("return_token_ids")
    fields.ignore(*_ABOUT_CLIENT)
    fields.end(_ELSEWHERE)
    return options, constraint, shown
