"""Anthropic's messages: one, or the events of a stream.

In: what a model says. Out: objects for JSON. Text, thoughts and calls are blocks, one after the
other; a stream opens and closes each.
"""

import json
import secrets
from collections.abc import Iterator, Sequence
from itertools import groupby

from coordgen_rs.model.answer import Answer
from coordgen_rs.server.answers.dialect import Answered, Dialect, Event, Writing, server_sent
from coordgen_rs.server.answers.reader import Delta, Ended
from coordgen_rs.server.refusal import anthropic_error
from coordgen_rs.server.tools.calls import AnswerEvent, Call, Content, Thought, joined, text_of
from coordgen_rs.server.tools.syntax import is_object

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


def _stream(several: Sequence[Answered]) -> Writing:
    [answered], blocks = several, _Blocks()
    used = {"input_tokens": len(answered.request.prompt_ids), "output_tokens": 0}
    used |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    told = yield [{"type": "message_start", "message": _message(answered) | {"usage": used}}]
    while isinstance(told, Delta):
        told = yield [*blocks.say(told.said)]
    end = {"type": "message_delta", "delta": _end(told), "usage": _usage(told.answer)}
    yield [*blocks.say(told.said), *blocks.close(), end, {"type": "message_stop"}]


def _whole(several: Sequence[Answered], ends: Sequence[Ended]) -> Event:
    """The message as one object; a call that was cut off is left out."""
    [answered], [end] = several, ends
    content = list[Event]()
    for kind, same in groupby(joined(end.said), type):
        parts = [*same]
        if kind is Call:
            called = [one for one in parts if isinstance(one, Call) and is_object(one.arguments)]
            content += [_block(one) | {"input": json.loads(one.arguments)} for one in called]
        else:
            block = _block(parts[0])
            content.append(
                block | {block["type"]: text_of(parts, Content) or text_of(parts, Thought)}
            )
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


def _usage(answer: Answer) -> Event:
    """Tokens, as Anthropic counts them: those that were read before are not input."""
    stats = answer.stats
    return {
        "input_tokens": stats.prompt_tokens - stats.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.reused_tokens,
        "output_tokens": len(answer.token_ids),
    }
