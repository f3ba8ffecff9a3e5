"""Anthropic's messages: one, or the events of a stream.

In: what a model says. Out: objects for JSON. Text, thoughts and calls are blocks, one after the
other; a stream opens and closes each.
"""

import json
import secrets
from collections.abc import Iterator, Sequence

from coordgen_rs.model.answer import Answer
from coordgen_rs.server.answers.dialect import Answered, Dialect, Event, Writing, server_sent
from coordgen_rs.server.answers.reader import Delta, Ended
from coordgen_rs.server.refusal import anthropic_error
from coordgen_rs.server.tools.arguments.syntax import is_object
from coordgen_rs.server.tools.calls import AnswerEvent, Call, Content

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class _Blocks:
    """The events of what is said, block by block."""

    def __init__(self) -> None:
        self._num = 0
        self._open: str | int | None = None  # the kind of the block that goes on, or its call

    def say(self, found: Sequence[AnswerEvent]) -> Iterator[Event]:
        """Tell what was said next."""
        block: Event
        for one in found:
            if isinstance(one, Call):
                kind: str | int = one.number
                delta = {"type": "input_json_delta", "partial_json": one.arguments}
                block = {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}"}
                block |= {"name": one.name, "input": {}}
            elif isinstance(one, Content):
                kind, delta = "text", {"type": "text_delta", "text": one.text}
                block = {"type": "text", "text": ""}
            else:
                kind, delta = "thinking", {"type": "thinking_delta", "thinking": one.text}
                block = {"type": "thinking", "thinking": "", "signature": ""}
            if kind != self._open:
                yield from self.close()
                self._open = kind
                yield {"type": "content_block_start", "index": self._num, "content_block": block}
            yield {"type": "content_block_delta", "index": self._num, "delta": delta}

    def close(self) -> Iterator[Event]:
        """End the block that goes on, if one does."""
        if self._open is not None:
            self._open = None
            self._num += 1
            yield {"type": "content_block_stop", "index": self._num - 1}


def _stream(answered: Answered) -> Writing:
    blocks = _Blocks()
    used = {"input_tokens": len(answered.request.prompt_ids), "output_tokens": 0}
    used |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    told = yield [{"type": "message_start", "message": _message(answered) | {"usage": used}}]
    while isinstance(told, Delta):
        told = yield [*blocks.say(told.said)]
    end = {"type": "message_delta", "delta": _end(told), "usage": _usage(told.answer)}
    yield [*blocks.say(told.said), *blocks.close(), end, {"type": "message_stop"}]


def _whole(answered: Answered, end: Ended) -> Event:
    """The message as one object; a call that was cut off is left out."""
    blocks: list[Event] = []
    for event in _Blocks().say(end.said):
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"] | {"input": ""})
        elif event["type"] == "content_block_delta":
            _add(blocks[-1], event["delta"])
    for block in blocks:
        given = block.pop("input")
        if block["type"] == "tool_use":
            block["input"] = json.loads(given) if is_object(given) else None
    content = [block for block in blocks if block.get("input", {}) is not None]
    return _message(answered) | {"content": content} | _end(end) | {"usage": _usage(end.answer)}


MESSAGES = Dialect(
    _stream,
    _whole,
    lambda error, _: anthropic_error(error),
    ping=lambda _: server_sent({"type": "ping"}),
)


def _message(answered: Answered) -> Event:
    """A message before its first block."""
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": answered.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _end(end: Ended) -> Event:
    """Why the answer ends."""
    stopped = end.answer.stats.stop_string
    if end.reason == "stop" and stopped is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stopped}
    return {"stop_reason": _REASONS[end.reason], "stop_sequence": None}


def _add(block: Event, delta: Event) -> None:
    """Add a delta to its block; arguments are collected as text."""
    of_block = {"partial_json": "input"}
    for name, value in delta.items():
        if name != "type":
            block[of_block.get(name, name)] += value


def _usage(answer: Answer) -> Event:
    """Tokens, as Anthropic counts them: those that were read before are not input."""
    stats = answer.stats
    return {
        "input_tokens": stats.prompt_tokens - stats.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.reused_tokens,
        "output_tokens": len(answer.token_ids),
    }
