"""What `/api/chat` and `/api/generate` are asked: Ollama's API, translated.

In: a body as `Fields`. Out: an `Asked`, or a refusal that names the field. Options about memory and
devices are accepted by name: they are the server's own to set.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import OptionError
from coordgen_rs.grammar.kinds import JsonSchema
from coordgen_rs.model import Model
from coordgen_rs.server.asked import logprobs
from coordgen_rs.server.asked.completion import Asked, asked_rest, encoded, filled_in
from coordgen_rs.server.asked.content import messages_of
from coordgen_rs.server.asked.dialogue import AskedDialogue
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.asked.formats import HeldTo
from coordgen_rs.server.asked.neutral import check_neutral
from coordgen_rs.server.tools.functions import Tools, tools_of

_OF_DEVICES = (
    "embedding_only",
    "f16_kv",
    "logits_all",
    "low_vram",
    "main_gpu",
    "num_batch",
    "num_ctx",
    "num_gpu",
    "num_keep",
    "num_thread",
    "numa",
    "penalize_newline",
    "use_mlock",
    "use_mmap",
    "vocab_only",
)
"""Options that the server decides for all requests, such as the context."""

_ALIKE = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
)
"""Options that have the same name and meaning in OpenAI's form, or in ours."""

_NO_LIMIT = -2
"""The least `num_predict`: Ollama generates without limit for all that are not above 0."""
_DURATION = re.compile(
    r"-?(\d+(\.\d*)?|(\d+(\.\d*)?(ns|us|\u00b5s|ms|s|m|h))+)",
    re.ASCII,
)
_NOT_ZERO = re.compile("[1-9]")
_NO_IMAGES = "the model reads text only"
_EFFORTS = ("low", "medium", "high")


def asked_chat(fields: Fields) -> Asked:
    """The body of `/api/chat`, `model` excepted.

    Raises:
        RefusalError: It cannot be answered.
    """
    messages = _messages(fields) if fields.peek("messages") else []
    fields.only("messages", [], why="it must be a list of messages")
    tools = tools_of(Fields({"tools": fields.take("tools")}))
    return _asked(fields, _dialogue(fields, messages, tools), "messages", tools)


def asked_generate(fields: Fields) -> Asked:
    """The body of `/api/generate`, `model` excepted.

    Raises:
        RefusalError: It cannot be answered.
    """
    given, system = fields.text("prompt") or "", fields.text("system")
    suffix = fields.text("suffix")
    fields.only("template", "", why="give the server one by --chat-template")
    fields.only("context", [], why="send the whole dialogue to /api/chat")
    fields.only("images", [], why=_NO_IMAGES)
    fields.ignore("width", "height", "steps")
    is_raw = fields.flag("raw")
    if suffix:
        if system:
            raise fields.wrong("system", "and suffix exclude each other: a text is filled in raw")
        _thinking(fields)

        def prompt(model: Model) -> NDArray[np.uint32]:
            before = encoded(model, given, "prompt", special_tokens=False)
            return filled_in(model, before, suffix)

        return replace(_asked(fields, prompt, "prompt", None), suffix=suffix)
    if is_raw:
        _thinking(fields)
        return _asked(fields, lambda model: encoded(model, given, "prompt"), "prompt", None)
    messages = [{"role": "user", "content": given}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return _asked(fields, _dialogue(fields, messages, None), "prompt", None)


def asked_of_model(fields: Fields) -> Literal["load", "unload"] | None:
    """What a body without messages and text asks of the model; None if it has either."""
    if any(fields.peek(name) for name in ("messages", "prompt", "suffix")):
        return None
    keep_alive = fields.peek("keep_alive")
    is_zero = keep_alive is not None and not _NOT_ZERO.search(str(keep_alive))
    return "unload" if is_zero else "load"


def _messages(fields: Fields) -> list[dict[str, Any]]:
    """The dialogue, in OpenAI's form."""
    given = fields.take("messages")
    if not isinstance(given, list):
        raise fields.wrong("messages", "must be a list of one message or more")
    plain = [_message(Fields(one, f"messages[{index}]")) for index, one in enumerate(given)]
    return messages_of(Fields({"messages": plain}))


def _message(message: Fields) -> dict[str, Any]:
    message.only("images", [], why=_NO_IMAGES)
    found: dict[str, Any] = {"role": message.text("role")}
    found["content"] = message.text("content") or ""
    thought, tool = message.text("thinking"), message.text("tool_name")
    if thought:
        found["reasoning_content"] = thought
    if tool is not None:
        found["name"] = tool
    identity, calls = message.text("tool_call_id"), message.take("tool_calls")
    if identity is not None:
        found["tool_call_id"] = identity
    if calls is not None and calls != []:
        if not isinstance(calls, list):
            raise message.wrong("tool_calls", "must be a list of calls")
        where = message.name("tool_calls")
        found["tool_calls"] = [_call(Fields(c, f"{where}[{i}]")) for i, c in enumerate(calls)]
    message.end()
    return found


def _call(call: Fields) -> dict[str, Any]:
    call.ignore("type", "index")
    identity, function = call.text("id"), call.nested("function")
    name, arguments = function.text("name"), function.take("arguments")
    function.ignore("index", "description")
    function.end()
    call.end()
    found = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return found if identity is None else found | {"id": identity}


def _thinking(fields: Fields) -> tuple[str | None, bool | None]:
    """How much, and whether, the model is to think; None where nothing was asked for."""
    think = fields.take("think")
    if think is None or isinstance(think, bool):
        return None, think
    if think not in _EFFORTS:
        raise fields.wrong("think", f"must be true, false, or one of {', '.join(_EFFORTS)}")
    return think, None


def _dialogue(
    fields: Fields, messages: list[dict[str, Any]], tools: Tools | None
) -> Callable[[Model], NDArray[np.uint32]]:
    dialogue = AskedDialogue(messages, tools, None, *_thinking(fields))

    def prompt(model: Model) -> NDArray[np.uint32]:
        return encoded(model, dialogue.text(model), "messages", special_tokens=False)

    return prompt


def _asked(
    fields: Fields,
    prompt: Callable[[Model], NDArray[np.uint32]],
    prompt_field: str,
    tools: Tools | None,
) -> Asked:
    """The rest of a body.

    Raises:
        RefusalError: It cannot be answered, or a field is left over.
    """
    options = fields.nested("options")
    limit = options.count("num_predict", least=_NO_LIMIT)
    limit = limit if limit is not None and limit > 0 else None
    given = {name: options.take(name) for name in _ALIKE}
    given |= {name: options.take(name) for name in ("stop", "repeat_penalty")}
    options.ignore(*_OF_DEVICES)
    check_neutral(options, given["repeat_penalty"])
    given |= {"stream": fields.flag("stream", default=True)}
    schema = _schema(fields)
    num_alternatives = logprobs.of_chat(fields)
    _check_keep_alive(fields)
    fields.ignore("truncate", "shift")
    options.end()
    fields.end()
    rest = Fields({name: value for name, value in given.items() if value is not None}, "options")
    asked = asked_rest(
        rest, prompt, prompt_field, limit, tools, schema, num_alternatives=num_alternatives
    )
    return replace(asked, splits_thinking=True)


def _check_keep_alive(fields: Fields) -> None:
    """Check how long the model is to stay open, which is the server's own to decide.

    Raises:
        RefusalError: It is no duration.
    """
    given = fields.take("keep_alive")
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if given is None or is_number or (isinstance(given, str) and _DURATION.fullmatch(given)):
        return
    raise fields.wrong("keep_alive", 'must be seconds, or a duration such as "5m"')


def _schema(fields: Fields) -> HeldTo | None:
    """What `format` holds the answer to."""
    given = fields.take("format")
    if given in (None, ""):
        return None
    schema = {"type": "object"} if given == "json" else given
    if not isinstance(schema, dict):
        raise fields.wrong("format", 'must be "json" or a JSON schema')
    try:
        return HeldTo("format", JsonSchema(schema))
    except OptionError as error:
        raise fields.wrong("format", f"cannot be used: {error}") from error
