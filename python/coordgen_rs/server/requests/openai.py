"""The bodies of OpenAI's endpoints for chats and texts, and of llama.cpp's for tokens.

In: a body as `Fields`, `model` excepted, and the model. Out: a `Request`, or what llama.cpp's
endpoints answer, or a refusal that names the field.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import CoordgenError, arguments
from coordgen_rs.generation.logprobs import MAX_ALTERNATIVES
from coordgen_rs.grammar.kinds import JsonSchema
from coordgen_rs.model import Model
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.server.requests.body import Fields
from coordgen_rs.server.requests.options import (
    Constraint,
    biases_of,
    constraint_of,
    limit_of,
    num_alternatives_of,
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
    infilled,
    messages_of,
)
from coordgen_rs.server.requests.record import Request, Settings, complete
from coordgen_rs.server.tools.functions import Tools, tools_of

_GIVEN_OTHERWISE = ("messages", "tools", "add_generation_prompt")
"""What is no variable of the client's."""
_REASONING_FORMATS = ("none", "auto", "deepseek")
"""Names of llama.cpp's: the last two are the same."""
_COMPLETION_TOKENS = 16
"""OpenAI's default for the older endpoint."""

MOST_CHOICES = 16
"""Most answers to a request."""

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
    settings = settings_of(fields, model, limit, num_alternatives, tools=dialogue.tools)
    splits_thinking = reasoning_format != "none"
    prompt_ids = chat_ids(model, dialogue)
    return complete(model, "chat", prompt_ids, settings, splits_thinking=splits_thinking)


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
    settings = settings_of(fields, model, limit, num_alternatives)
    if isinstance(given, str):
        prompt_ids = encode(model, given, "prompt", special_tokens=not suffix)
    else:
        prompt_ids = fitting(model, _token_ids(fields, "prompt", given, model), "prompt")
    if is_echoed:
        echoed = given if isinstance(given, str) else model.tokenizer.decode(prompt_ids.tolist())
        settings = replace(settings, echoed=echoed)
    if suffix:
        prompt_ids, ends = infilled(model, prompt_ids, suffix)
    return complete(model, "completion", prompt_ids, settings, splits_thinking=False, ends=ends)


def settings_of(
    fields: Fields,
    model: Model,
    limit: int | None,
    num_alternatives: int | None,
    *,
    constraint: Constraint | None = None,
    tools: Tools | None = None,
) -> Settings:
    """What the fields that all of OpenAI's endpoints have ask for.

    Args:
        fields: The fields that are left of the body.
        model: Who is to answer.
        limit: Same as in `Settings`.
        num_alternatives: How many alternatives are told of each token; None tells nothing of any.
        constraint: What a field of the endpoint holds the answer to.
        tools: Same as in `Settings`.

    Raises:
        RefusalError: One of them asks for what cannot be had, or a field is left over.
    """
    options, num_choices = options_of(fields, "openai"), _num_choices(fields)
    options["prediction"], options["logprobs"] = prediction_of(fields, model), num_alternatives
    options["logit_bias"], is_streamed = biases_of(fields, model), fields.flag("stream")
    if fields.has("stream_options") and not is_streamed:
        raise fields.wrong("stream_options", "needs stream: true")
    of_stream, own = fields.nested("stream_options"), fields.nested("coordgen")
    with_usage = of_stream.flag("include_usage")
    of_stream.only("include_obfuscation", False, why="the server does not pad its events")
    of_stream.end()
    with_spans, options["trees"] = own.flag("spans"), own.flag("trees")
    options["drafts"] = own.flag("drafts", default=True)
    constraint = constraint_of(fields, own, constraint)
    own.end()
    if tools is not None and tools.is_required and constraint is not None:
        if not isinstance(constraint.grammar, JsonSchema):
            raise fields.wrong("tool_choice", "asks for a call: then nothing else can be, too")
        constraint = None  # the format of an answer that is not given
    with_token_ids = fields.flag("return_token_ids")
    fields.end(*_ABOUT_CLIENT, known=_ELSEWHERE)
    return Settings(
        options=options,
        limit=limit,
        tools=tools,
        constraint=constraint,
        num_choices=num_choices,
        is_streamed=is_streamed,
        with_usage=with_usage,
        with_spans=with_spans,
        with_trees=options["trees"],
        with_token_ids=with_token_ids,
    )


def _num_choices(fields: Fields) -> int:
    """How many answers to give.

    Raises:
        RefusalError: It is out of range, or more are to be made than given.
    """
    num_choices = fields.count("n", least=1, most=MOST_CHOICES) or 1
    best_of = fields.count("best_of", least=1)
    if best_of is not None and best_of != num_choices:
        raise fields.wrong(
            "best_of",
            f"is {best_of}, but n is {num_choices}: all answers that are made are given, so leave "
            "best_of out",
        )
    return num_choices


def tokenize(fields: Fields, model: Model) -> dict[str, Any]:
    """The answer of `/tokenize`: the tokens of a text.

    Raises:
        RefusalError: The body is malformed.
    """
    content = fields.needed("content", "must be the text")
    special_tokens, with_pieces = fields.flag("add_special"), fields.flag("with_pieces")
    fields.end()
    ids = model.tokenizer.encode(content, special_tokens=special_tokens).tolist()
    if not with_pieces:
        return {"tokens": ids}
    bytes_of = model.tokenizer.spelling.bytes_of
    return {"tokens": [{"id": token, "piece": _piece(bytes_of(token))} for token in ids]}


def detokenize(fields: Fields, model: Model) -> dict[str, Any]:
    """The answer of `/detokenize`: the text of tokens.

    Raises:
        RefusalError: The body is malformed, or has what is no token of the model.
    """
    given = fields.take("tokens")
    fields.end()
    if not isinstance(given, list):
        raise fields.wrong("tokens", "must be a list of token ids")
    ids = _token_ids(fields, "tokens", given, model).tolist()
    return {"content": model.tokenizer.decode(ids)}


def _token_ids(fields: Fields, name: str, given: list[Any], model: Model) -> NDArray[np.uint32]:
    """The token ids of a field, `(tokens,) u32`.

    Raises:
        RefusalError: One is no integer, or not in the model's vocabulary.
    """
    for index, token in enumerate(given):
        if not isinstance(token, int) or isinstance(token, bool):
            how = f"must be a list of token ids, but {name}[{index}] is {arguments.shown(token)}"
            raise fields.wrong(name, how)
    try:
        return arguments.token_ids(name, given, model.vocab_size)
    except CoordgenError as error:
        raise RefusalError(str(error), param=name, code="invalid_value") from error


def _piece(spelt: bytes) -> str | list[int]:
    """A token's text; its bytes where they are none alone, as llama.cpp's server tells it."""
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return list(spelt)
