"""What `/v1/messages` is asked: Anthropic's Messages API, translated.

In: a body as `Fields`. Out: an `Asked`, or a refusal that names the field. What coding agents send
about accounts, caches and betas is accepted by name, and says nothing about the answer.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import OptionError
from coordgen_rs.grammar.kinds import JsonSchema
from coordgen_rs.model import Model
from coordgen_rs.server.asked.completion import Asked, asked_rest, encoded
from coordgen_rs.server.asked.content import MOST_STOP_LEN, MOST_STOPS
from coordgen_rs.server.asked.dialogue import AskedDialogue
from coordgen_rs.server.asked.effort import effort_of
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.asked.formats import HeldTo
from coordgen_rs.server.dialects.anthropic.content import messages_of, tools_of
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.server.tools import functions

_IGNORED = (
    "betas",
    "cache_control",
    "container",
    "context_management",
    "diagnostics",
    "inference_geo",
    "metadata",
    "service_tier",
    "speed",
    "user_profile_id",
    "workspace_id",
)
"""Fields that are about the account, the bill, or what the service does with a long dialogue."""

_SAMPLING = ("temperature", "top_k", "top_p", "seed")
_THINKING = ("enabled", "adaptive", "disabled")


def asked_message(fields: Fields) -> Asked:
    """The body of `/v1/messages`, `model` excepted.

    Raises:
        RefusalError: It cannot be answered.
    """
    prompt, tools, schema = _dialogue(fields)
    limit = fields.count("max_tokens", least=1)
    if limit is None:
        raise fields.wrong("max_tokens", "must be the most tokens of the answer")
    given = {name: fields.take(name) for name in _SAMPLING}
    given |= {"stop": _stops(fields), "stream": fields.take("stream")}
    _end(fields)
    rest = Fields({name: value for name, value in given.items() if value is not None})
    asked = asked_rest(rest, prompt, "messages", limit, tools, schema)
    return replace(asked, splits_thinking=True)


def asked_count(fields: Fields) -> Callable[[Model], dict[str, int]]:
    """The body of `/v1/messages/count_tokens`: a function that counts the tokens of the prompt.

    Raises:
        RefusalError: It is malformed.
    """
    prompt, *_ = _dialogue(fields)
    fields.ignore("max_tokens", "stream", "stop_sequences", *_SAMPLING)
    _end(fields)
    return lambda model: {"input_tokens": len(prompt(model))}


def _dialogue(
    fields: Fields,
) -> tuple[Callable[[Model], NDArray[np.uint32]], functions.Tools | None, HeldTo | None]:
    """What makes the prompt, what the model may call, and what it is held to where it does not."""
    _check_thread(fields)
    messages = messages_of(fields)
    tools = functions.tools_of(Fields(tools_of(fields)))
    if tools is not None:
        tools = replace(tools, parameters_field="tools[{}].input_schema")
    config = fields.nested("output_config")
    effort = effort_of(config, "effort")
    dialogue = AskedDialogue(messages, tools, None, effort, _thinks(fields))

    def prompt(model: Model) -> NDArray[np.uint32]:
        return encoded(model, dialogue.text(model), "messages", special_tokens=False)

    return prompt, tools, _schema(fields, config)


def _check_thread(fields: Fields) -> None:
    """No dialogue is kept, and clients that are told so send theirs whole.

    Raises:
        RefusalError: A thread is to be gone on with, or something else is asked.
    """
    thread = fields.peek("thread")
    if isinstance(thread, dict) and thread.get("type") == "continue":
        raise RefusalError(
            'no thread is kept: send the whole dialogue, with a thread of type "create"',
            status=404,
            param="thread",
            code="thread_not_found",
        )
    fields.only("thread", {"type": "create"}, why="it can only be created")


def _thinks(fields: Fields) -> bool:
    """Whether the template is told that the model is to think: where that is asked for."""
    thinking = fields.nested("thinking")
    kind = thinking.text("type") or "disabled"
    thinking.count("budget_tokens")
    thinking.ignore("display")
    thinking.end()
    if kind not in _THINKING:
        raise thinking.wrong("type", f"must be one of {', '.join(_THINKING)}")
    return kind != "disabled"


def _schema(fields: Fields, config: Fields) -> HeldTo | None:
    """What `format` of `output_config`, or `output_format`, holds the answer to."""
    config.ignore("task_budget")
    old, new = fields.nested("output_format"), config.nested("format")
    config.end()
    named = {"output_format": _schema_of(old), config.name("format"): _schema_of(new)}
    found = [HeldTo(name, schema) for name, schema in named.items() if schema is not None]
    if len(found) > 1:
        raise fields.wrong("output_format", "and output_config.format exclude each other")
    return found[0] if found else None


def _schema_of(asked: Fields) -> JsonSchema | None:
    kind, schema = asked.text("type"), asked.take("schema")
    asked.ignore("name")
    asked.end()
    if kind is None and schema is None:
        return None
    if kind != "json_schema":
        raise asked.wrong("type", 'must be "json_schema"')
    try:
        return JsonSchema(schema)
    except OptionError as error:
        raise asked.wrong("schema", f"cannot be used: {error}") from error


def _stops(fields: Fields) -> list[str]:
    given: Any = fields.take("stop_sequences")
    strings = [] if given is None else given
    if not isinstance(strings, list) or not all(isinstance(s, str) and s for s in strings):
        raise fields.wrong("stop_sequences", "must be a list of strings, none of them empty")
    if len(strings) > MOST_STOPS or any(len(string) > MOST_STOP_LEN for string in strings):
        raise fields.wrong(
            "stop_sequences", f"may hold {MOST_STOPS} strings of {MOST_STOP_LEN} characters each"
        )
    return strings


def _end(fields: Fields) -> None:
    fields.only("mcp_servers", [], why="the server calls no other servers")
    fields.ignore(*_IGNORED)
    fields.end()
