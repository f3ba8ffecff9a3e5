"""Anthropic's Messages API: what is asked and answered.

In: a body as `Fields`, `model` excepted, and the model; later what it says. Out: a `Request`, or
an error that names the field or the block at fault; later one message, or the events of a stream,
in which text, thoughts and calls are blocks, one after the other. What coding agents send about
accounts, caches and betas is accepted by name, and says nothing about the answer: prefixes are
always kept.
"""

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from coordgen_rs.errors import arguments
from coordgen_rs.model import Model
from coordgen_rs.model.answer import Answer
from coordgen_rs.model.options import REQUEST
from coordgen_rs.server.api_error import APIError, anthropic_error
from coordgen_rs.server.dialects.fields import Fields
from coordgen_rs.server.dialects.options import Constraint, format_of, options_of
from coordgen_rs.server.dialects.prompts import Dialogue, call_of, chat_ids, effort_of
from coordgen_rs.server.dialects.reader import Delta, Ended
from coordgen_rs.server.dialects.request import Request, Settings, complete
from coordgen_rs.server.dialects.writing import Dialect, Event, Writing, server_sent
from coordgen_rs.server.tools import functions
from coordgen_rs.server.tools.calls import AnswerEvent, Call, Content, Thought, joined, text_of
from coordgen_rs.server.tools.syntax import is_object

_IGNORED = (
    *("betas", "cache_control", "container", "context_management", "diagnostics", "inference_geo"),
    *("metadata", "service_tier", "speed", "user_profile_id", "workspace_id"),
)
"""Fields that are about the account, the bill, or what the service does with a long dialogue."""

_OF_TOOLS = (
    *("allowed_callers", "cache_control", "defer_loading", "eager_input_streaming"),
    "input_examples",
)
"""What of a tool says nothing about its calls."""

_THINKING = ("enabled", "adaptive", "disabled")
_ROLES = ("user", "assistant", "system")


def parse_message(fields: Fields, model: Model) -> Request:
    """The body of `/v1/messages`.

    Raises:
        APIError: It cannot be answered.
    """
    dialogue, constraint = _dialogue(fields)
    limit = fields.count("max_tokens", least=1)
    if limit is None:
        raise fields.wrong("max_tokens", "must be the most tokens of the answer")
    settings = Settings(
        options=options_of(fields, "anthropic"),
        limit=limit,
        tools=dialogue.tools,
        constraint=constraint,
        is_streamed=fields.flag("stream"),
    )
    _refuse_others(fields)
    return complete(model, "chat", chat_ids(model, dialogue), settings)


def count_tokens(fields: Fields, model: Model) -> dict[str, Any]:
    """The answer of `/v1/messages/count_tokens`: how many tokens the prompt has.

    Raises:
        APIError: The body is malformed.
    """
    dialogue, _ = _dialogue(fields)
    for option in REQUEST.values():
        fields.ignore(*option.names.get("anthropic", ()))
    fields.ignore("stream")
    _refuse_others(fields)
    return {"input_tokens": len(chat_ids(model, dialogue))}


def _dialogue(fields: Fields) -> tuple[Dialogue, Constraint | None]:
    """The dialogue of a body, and what the answer is held to where nothing is called.

    Raises:
        APIError: One of them is malformed.
    """
    thread = fields.peek("thread")
    if isinstance(thread, dict) and thread.get("type") == "continue":
        raise APIError(  # no dialogue is kept, and clients that are told so send theirs whole
            'no thread is kept: send the whole dialogue, with a thread of type "create"',
            status=404,
            param="thread",
            code="thread_not_found",
        )
    fields.only("thread", {"type": "create"}, why="it can only be created")
    messages = _messages(fields)
    tools = functions.tools_of(Fields(_tools(fields)))
    if tools is not None:
        tools = replace(tools, field="tools[{}].input_schema")
    config, thinking = fields.nested("output_config"), fields.nested("thinking")
    thinks = thinking.one_of("type", _THINKING, "disabled") != "disabled"
    thinking.count("budget_tokens")
    thinking.end("display")
    dialogue = Dialogue(messages, tools, effort_of(config, "effort"), thinks)
    old = format_of(fields, "output_format", ("json_schema",), is_flat=True)
    new = format_of(config, "format", ("json_schema",), is_flat=True)
    config.end("task_budget")
    if old is not None and new is not None:
        raise fields.wrong("output_format", "and output_config.format exclude each other")
    return dialogue, old or new


def _refuse_others(fields: Fields) -> None:
    fields.only("mcp_servers", [], why="the server calls no other servers")
    fields.end(*_IGNORED)


def _messages(fields: Fields) -> list[dict[str, Any]]:
    """The dialogue, oldest message first, what the system says in front.

    Raises:
        APIError: It is malformed, holds something else than text, or ends with the assistant.
    """
    found = list[dict[str, Any]]()
    if fields.has("system"):
        found.append({"role": "system", "content": _texts(fields, "system")})
    for message in fields.objects("messages", "must be a list of one message or more", least=1):
        found += _message(message)
    if found[-1]["role"] == "assistant":
        raise fields.wrong("messages", "must not end with the assistant: no text is gone on with")
    return found


def _message(message: Fields) -> list[dict[str, Any]]:
    """The messages that a message is: results of tools are messages of their own.

    Raises:
        APIError: It is malformed.
    """
    role = message.one_of("role", _ROLES)
    blocks = _blocks(message, "content")
    message.end()
    texts, thoughts = list[str](), list[str]()
    calls, results = list[dict[str, Any]](), list[dict[str, Any]]()
    for kind, block in blocks:
        match role, kind:
            case "user", "tool_result":
                call_id = block.needed("tool_use_id", "must name the call")
                is_error = block.flag("is_error")
                text = _texts(block, "content") if block.has("content") else ""
                block.end()
                told = f"Error: {text}" if is_error else text
                results.append({"role": "tool", "tool_call_id": call_id, "content": told})
            case "assistant", "tool_use":
                identity, name = block.text("id"), block.text("name")
                if identity is None or name is None:
                    raise block.wrong("name", "must name the function, and id the call")
                calls.append(call_of(identity, name, block, "input"))
                block.end("caller")
            case "assistant", "thinking":
                thoughts.append(block.text("thinking") or "")
                block.end("signature")
            case "assistant", "redacted_thinking":
                block.end("data")
            case _:
                texts.append(_text(kind, block))
    said: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
    if any(thoughts):
        said["reasoning_content"] = "\n".join(thoughts)
    if calls:
        said["tool_calls"] = calls
    return results if results and not texts else [*results, said]


def _blocks(fields: Fields, name: str) -> list[tuple[str | None, Fields]]:
    """The blocks of content, each with its kind; a text is one block.

    Raises:
        APIError: It is something else.
    """
    content = fields.peek(name)
    if isinstance(content, str):
        fields.ignore(name)
        return [("text", Fields({"text": content}))]
    how = f"must be a string or a list of blocks, but is {arguments.shown(content)}"
    blocks = fields.objects(name, how)
    for block in blocks:
        block.ignore("cache_control", "citations")
    return [(block.text("type"), block) for block in blocks]


def _texts(fields: Fields, name: str) -> str:
    return "\n".join(_text(kind, block) for kind, block in _blocks(fields, name))


def _text(kind: str | None, block: Fields) -> str:
    """The text of a block.

    Raises:
        APIError: It is of another kind.
    """
    if kind != "text":
        how = "which is not supported here: the model reads text only"
        raise block.unsupported("type", f"is {arguments.shown(kind)}, {how}")
    text = block.needed("text", "must be text")
    block.end()
    return text


def _tools(fields: Fields) -> dict[str, Any]:
    """`tools` and `tool_choice` as OpenAI's requests have them.

    Raises:
        APIError: They are malformed, or tools that the service itself would run.
    """
    found = dict[str, Any]()
    if fields.has("tools"):
        given = fields.objects("tools", "must be a list of objects")
        found["tools"] = [_tool(one) for one in given]
    if fields.has("tool_choice"):
        choice = fields.nested("tool_choice")
        kind, name = choice.text("type"), choice.text("name")
        found["parallel_tool_calls"] = not choice.flag("disable_parallel_tool_use")
        choice.end()
        if kind == "tool" and name is None:
            raise choice.wrong("name", "must name the tool")
        choices: dict[str | None, Any] = {"auto": "auto", "any": "required", "none": "none"}
        choices["tool"] = {"type": "function", "function": {"name": name}}
        if kind not in choices:
            raise choice.wrong("type", f"must be one of {', '.join(map(str, choices))}")
        found["tool_choice"] = choices[kind]
    return found


def _tool(tool: Fields) -> dict[str, Any]:
    why = "only tools that the client runs can be had, with a name and an input_schema"
    tool.only("type", "custom", why=why)
    function = {
        "name": tool.text("name"),
        "description": tool.text("description"),
        "parameters": tool.take("input_schema"),
        "strict": tool.take("strict"),
    }
    tool.end(*_OF_TOOLS)
    return {"type": "function", "function": function}


_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class _Blocks:
    """The events of what is said, block by block."""

    def __init__(self) -> None:
        self._num = 0
        self._open: type[AnswerEvent] | int | None = None  # the block that goes on, or its call

    def say(self, found: Sequence[AnswerEvent]) -> Iterator[Event]:
        """Tell what was said next."""
        for one in found:
            kind = one.number if isinstance(one, Call) else type(one)
            if kind != self._open:
                yield from self.close()
                self._open, block = kind, _block(one)
                yield {"type": "content_block_start", "index": self._num, "content_block": block}
            yield {"type": "content_block_delta", "index": self._num, "delta": _delta(one)}

    def close(self) -> Iterator[Event]:
        """End the block that goes on, if one does."""
        if self._open is not None:
            self._open = None
            self._num += 1
            yield {"type": "content_block_stop", "index": self._num - 1}


def _block(one: AnswerEvent) -> Event:
    """A block before what it holds."""
    if isinstance(one, Call):
        block = {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}"}
        return block | {"name": one.name, "input": {}}
    if isinstance(one, Content):
        return {"type": "text", "text": ""}
    return {"type": "thinking", "thinking": "", "signature": ""}


def _delta(one: AnswerEvent) -> Event:
    if isinstance(one, Call):
        return {"type": "input_json_delta", "partial_json": one.arguments}
    if isinstance(one, Content):
        return {"type": "text_delta", "text": one.text}
    return {"type": "thinking_delta", "thinking": one.text}


def _stream(requests: Sequence[Request]) -> Writing:
    [request], blocks = requests, _Blocks()
    used = {"input_tokens": len(request.prompt_ids), "output_tokens": 0}
    used |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    told = yield [{"type": "message_start", "message": _head(request) | {"usage": used}}]
    while isinstance(told, Delta):
        told = yield [*blocks.say(told.events)]
    end = {"type": "message_delta", "delta": _stop_reason(told), "usage": _usage(told.answer)}
    yield [*blocks.say(told.events), *blocks.close(), end, {"type": "message_stop"}]


def _whole(requests: Sequence[Request], ends: Sequence[Ended]) -> Event:
    """The message as one object; a call that was cut off is left out."""
    [request], [end] = requests, ends
    content = list[Event]()
    for kind, same in groupby(joined(end.events), type):
        parts = [*same]
        if kind is Call:
            called = [one for one in parts if isinstance(one, Call) and is_object(one.arguments)]
            content += [_block(one) | {"input": json.loads(one.arguments)} for one in called]
        else:
            block = _block(parts[0])
            content.append(
                block | {block["type"]: text_of(parts, Content) or text_of(parts, Thought)}
            )
    return _head(request) | {"content": content} | _stop_reason(end) | {"usage": _usage(end.answer)}


MESSAGES = Dialect(
    _stream,
    _whole,
    lambda error, _: anthropic_error(error),
    ping=lambda _: server_sent({"type": "ping"}),
)


def _head(request: Request) -> Event:
    """A message before its first block."""
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _stop_reason(end: Ended) -> Event:
    """Why the answer ends."""
    stopped = end.answer.stats.stop_string
    if end.reason == "stop" and stopped is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stopped}
    return {"stop_reason": _REASONS[end.reason], "stop_sequence": None}


def _usage(answer: Answer) -> Event:
    """Tokens, as Anthropic counts them: those that were read before are not input."""
    stats = answer.stats
    return {
        "input_tokens": stats.prompt_tokens - stats.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.reused_tokens,
        "output_tokens": len(answer.token_ids),
    }
