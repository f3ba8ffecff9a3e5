"""Ollama's `/api/chat` and `/api/generate`: what is asked and answered.

In: a body as `Fields`, `model` excepted, and the model; later what it says. Out: a `Request`, or
an error that names the field; later one object, or lines of objects. Options about memory and
devices are accepted by name: they are the server's own to set. A call is given once its arguments
are complete, as an object.
"""

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Any, Literal

from coordgen_rs.model import Model
from coordgen_rs.model.answer import TokenLogprob
from coordgen_rs.server.dialects.fields import Fields
from coordgen_rs.server.dialects.options import (
    Constraint,
    num_alternatives_of,
    options_of,
    schema_of,
)
from coordgen_rs.server.dialects.prompts import Dialogue, chat_ids, encode, infilled, messages_of
from coordgen_rs.server.dialects.reader import Delta, Ended
from coordgen_rs.server.dialects.request import Request, Settings, complete
from coordgen_rs.server.dialects.writing import Dialect, Event, Writing, as_json, logprob_entries
from coordgen_rs.server.tools.calls import AnswerEvent, Call, Content, Thought, joined, text_of
from coordgen_rs.server.tools.functions import Tools, tools_of
from coordgen_rs.server.tools.syntax import is_object

_OF_DEVICES = (
    *("embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch", "num_ctx"),
    *("num_gpu", "num_keep", "num_thread", "numa", "penalize_newline", "use_mlock", "use_mmap"),
    "vocab_only",
)
"""Options that the server decides for all requests, such as the context."""

_NO_LIMIT = -2
"""The least `num_predict`: Ollama generates without limit for all that are not above 0."""
_DURATION = re.compile(
    r"-?(\d+(\.\d*)?|(\d+(\.\d*)?(ns|us|\u00b5s|ms|s|m|h))+)",
    re.ASCII,
)
_NOT_ZERO = re.compile("[1-9]")
_NO_IMAGES = "the model reads text only"
_EFFORTS = ("low", "medium", "high")


def asked_of_model(fields: Fields) -> Literal["load", "unload"] | None:
    """What a body without messages and text asks of the model; None if it has either."""
    nothing = {"messages": list[Any](), "prompt": "", "suffix": ""}
    if any(fields.has(name) and fields.peek(name) != none for name, none in nothing.items()):
        return None
    keep_alive = fields.peek("keep_alive")
    is_zero = keep_alive is not None and not _NOT_ZERO.search(str(keep_alive))
    return "unload" if is_zero else "load"


def check_of_model(fields: Fields, *, is_chat: bool) -> None:
    """Check a body that asks something of the model alone.

    Raises:
        APIError: It is malformed.
    """
    if is_chat:
        _chat(fields, least=0)
    else:
        _generate(fields)


def parse_chat(fields: Fields, model: Model) -> Request:
    """The body of `/api/chat`.

    Raises:
        APIError: It cannot be answered.
    """
    dialogue, settings = _chat(fields, least=1)
    return complete(model, "chat", chat_ids(model, dialogue), settings)


def _chat(fields: Fields, *, least: int) -> tuple[Dialogue, Settings]:
    given = list[Fields]()
    if least or fields.has("messages"):
        given = fields.objects("messages", "must be a list of one message or more", least=least)
    said = [_message(message) for message in given]
    messages = messages_of(Fields({"messages": said})) if said else []
    tools = tools_of(Fields({"tools": fields.take("tools")}))
    dialogue = Dialogue(messages, tools, *_thinking(fields))
    return dialogue, _settings(fields, tools)


def parse_generate(fields: Fields, model: Model) -> Request:
    """The body of `/api/generate`.

    Raises:
        APIError: It cannot be answered.
    """
    dialogue, suffix, is_raw, settings = _generate(fields)
    text, ends = dialogue.messages[-1]["content"], list[str]()
    if suffix:
        prompt_ids, ends = infilled(model, encode(model, text, "prompt"), suffix)
    elif is_raw:
        prompt_ids = encode(model, text, "prompt", special_tokens=True)
    else:
        prompt_ids = chat_ids(model, dialogue)
    return complete(model, "completion", prompt_ids, settings, ends=ends)


def _generate(fields: Fields) -> tuple[Dialogue, str | None, bool, Settings]:
    """The prompt as a dialogue, what is to follow it, whether it is raw, and the rest."""
    text, system = fields.text("prompt") or "", fields.text("system")
    suffix, is_raw = fields.text("suffix"), fields.flag("raw")
    fields.only("template", "", why="give the server one by --chat-template")
    fields.only("context", [], why="send the whole dialogue to /api/chat")
    fields.only("images", [], why=_NO_IMAGES)
    fields.ignore("width", "height", "steps")
    if suffix and system:
        raise fields.wrong("system", "and suffix exclude each other: a text is filled in raw")
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    return Dialogue(messages, None, *_thinking(fields)), suffix, is_raw, _settings(fields)


def _message(message: Fields) -> dict[str, Any]:
    """A message as OpenAI's clients write it."""
    message.only("images", [], why=_NO_IMAGES)
    calls = message.take("tool_calls")
    if isinstance(calls, list):  # whatever they call themselves, they are functions
        calls = [one | {"type": "function"} if isinstance(one, dict) else one for one in calls]
    found = {
        "role": message.text("role"),
        "content": message.text("content") or "",
        "reasoning_content": message.text("thinking") or None,
        "name": message.text("tool_name"),
        "tool_call_id": message.text("tool_call_id"),
        "tool_calls": calls,
    }
    message.end()
    return found


def _thinking(fields: Fields) -> tuple[str | None, bool | None]:
    """How much, and whether, the model is to think; None where nothing was asked for."""
    think = fields.take("think")
    if think is None or isinstance(think, bool):
        return None, think
    if think not in _EFFORTS:
        raise fields.wrong("think", f"must be true, false, or one of {', '.join(_EFFORTS)}")
    return think, None


def _settings(fields: Fields, tools: Tools | None = None) -> Settings:
    """What the other fields of a body ask for.

    Raises:
        APIError: One of them asks for what cannot be had, or a field is left over.
    """
    given = fields.nested("options")
    limit = given.count("num_predict", least=_NO_LIMIT)
    options = options_of(given, "ollama")
    given.end(*_OF_DEVICES)
    is_told, is_streamed = fields.flag("logprobs"), fields.flag("stream", default=True)
    options["logprobs"] = num_alternatives_of(fields, is_told, "logprobs: true")
    constraint = _constraint(fields)
    _check_keep_alive(fields)
    fields.end("truncate", "shift")
    return Settings(
        options=options,
        limit=limit if limit is not None and limit > 0 else None,
        tools=tools,
        constraint=constraint,
        is_streamed=is_streamed,
    )


def _check_keep_alive(fields: Fields) -> None:
    """Check how long the model is to stay open, which is the server's own to decide.

    Raises:
        APIError: It is no duration.
    """
    given = fields.take("keep_alive")
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if given is None or is_number or (isinstance(given, str) and _DURATION.fullmatch(given)):
        return
    raise fields.wrong("keep_alive", 'must be seconds, or a duration such as "5m"')


def _constraint(fields: Fields) -> Constraint | None:
    """What `format` holds the answer to.

    Raises:
        APIError: It is no format.
    """
    given = fields.take("format")
    if given in (None, ""):
        return None
    if given != "json" and not isinstance(given, dict):
        raise fields.wrong("format", 'must be "json" or a JSON schema')
    schema = {"type": "object"} if given == "json" else given
    return Constraint("format", schema_of(Fields({"format": schema}), "format"))


_Saying = Callable[[Sequence[AnswerEvent]], Event]
"""Makes the part of a line that holds what was said, each call in one part."""


def _chat_part(found: Sequence[AnswerEvent]) -> Event:
    """Of `/api/chat`."""
    message: Event = {"role": "assistant", "content": text_of(found, Content)}
    if thought := text_of(found, Thought):
        message["thinking"] = thought
    calls = [one for one in found if isinstance(one, Call) and is_object(one.arguments)]
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    return {"message": message}


def _generate_part(found: Sequence[AnswerEvent]) -> Event:
    """Of `/api/generate`."""
    said, thought = {"response": text_of(found, Content)}, text_of(found, Thought)
    return said | {"thinking": thought} if thought else said


def loaded(dialect: Dialect, model: str, what: Literal["load", "unload"]) -> Event:
    """The answer to a request that only has a model opened, or put away."""
    saying = _chat_part if dialect is CHAT else _generate_part
    return _line(model, saying([]), is_end=True) | {"done_reason": what}


def _stream(saying: _Saying, requests: Sequence[Request]) -> Writing:
    [request] = requests
    open_call = list[AnswerEvent]()

    def lines(told: Delta | Ended, *, is_call_open: bool) -> list[Event]:
        """What was said, in its order, as lines: text, and calls once they are complete."""
        said = joined([*open_call, *told.events])
        open_call[:] = [said.pop()] if said and isinstance(said[-1], Call) and is_call_open else []
        return [_line(request.model, saying([*same])) for _, same in groupby(said, type)]

    told = yield []
    while isinstance(told, Delta):
        found = lines(told, is_call_open=told.is_call_open)
        if likely := _likely(request, told.logprobs):
            found = found or [_line(request.model, saying([]))]
            found[0] |= likely
        told = yield found
    found = lines(told, is_call_open=False)
    found.append(_line(request.model, saying([]), is_end=True) | _totals(told))
    found[0] |= _likely(request, told.logprobs)
    yield found


def _whole(saying: _Saying, requests: Sequence[Request], ends: Sequence[Ended]) -> Event:
    [request], [end] = requests, ends
    line = _line(request.model, saying(joined(end.events)), is_end=True)
    return line | _likely(request, end.logprobs) | _totals(end)


def _dialect(saying: _Saying) -> Dialect:
    return Dialect(
        partial(_stream, saying),
        partial(_whole, saying),
        lambda error, _: {"error": str(error)},
        lambda model: _encoded(_line(model, saying([]))),
        _encoded,
        "application/x-ndjson",
        streams_by_default=True,
    )


def _encoded(event: Event) -> str:
    return as_json(event) + "\n"


CHAT, GENERATE = _dialect(_chat_part), _dialect(_generate_part)


def _likely(request: Request, told: Sequence[TokenLogprob]) -> Event:
    """How likely tokens were, as OpenAI's entries, which Ollama's are; nothing if none are."""
    return {"logprobs": logprob_entries(request, told)} if told else {}


def _line(model: str, said: Event, *, is_end: bool = False) -> Event:
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return {"model": model, "created_at": now} | said | {"done": is_end}


def _totals(end: Ended) -> Event:
    stats = end.answer.stats
    return {
        "done_reason": "length" if end.reason == "length" else "stop",
        "total_duration": _ns(end.queued_s + stats.prefill_s + stats.decode_s),
        "load_duration": _ns(end.queued_s),
        "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": _ns(stats.prefill_s),
        "eval_count": len(end.answer.token_ids),
        "eval_duration": _ns(stats.decode_s),
    }


def _call(call: Call) -> Event:
    """A call as Ollama writes it."""
    arguments = json.loads(call.arguments)
    function = {"index": call.number, "name": call.name, "arguments": arguments}
    return {"function": function}


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)
