"""The shapes of Anthropic's answers: one message, or the events of a stream.

In: steps and answers. Out: objects for JSON. Text, thoughts and calls are blocks, one after the
other; a stream opens and closes each. It sends nothing.
"""

import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from coordgen_rs.model.answer import Answer, Gain
from coordgen_rs.server.answers.forms import Form
from coordgen_rs.server.asked.completion import Asked
from coordgen_rs.server.dialects.errors import anthropic_error
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.server.tools.arguments.syntax import is_object
from coordgen_rs.server.tools.calls import AnswerEvent, Call, Content
from coordgen_rs.text.token_spelling import TokenSpelling

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageForm(Form):
    """The objects of one message; arguments are those of `Form`."""

    ends_with_done = False

    def __init__(
        self,
        asked: Asked,
        model: str,
        text_of: Callable[[int], str],
        spelling: TokenSpelling | None = None,
    ) -> None:
        super().__init__(asked, model, text_of, spelling)
        self._message: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        self._num_blocks = 0
        self._open: str | int | None = None  # the kind of the block that goes on, or its call

    def whole(self, answer: Answer, queued_s: float, gains: Sequence[Gain] = ()) -> dict[str, Any]:
        """The message as one object; a call that was cut off is left out."""
        blocks: list[dict[str, Any]] = []
        for event in self._events(self._found(answer)):
            if event["type"] == "content_block_start":
                blocks.append(event["content_block"] | {"input": ""})
            elif event["type"] == "content_block_delta":
                _add(blocks[-1], event["delta"])
        for block in blocks:
            given = block.pop("input")
            if block["type"] == "tool_use":
                block["input"] = json.loads(given) if is_object(given) else None
        content = [block for block in blocks if block.get("input", {}) is not None]
        return self._message | {"content": content} | self._end(answer) | {"usage": _usage(answer)}

    def opening(self) -> list[dict[str, Any]]:
        """The message before its first block."""
        usage = {"input_tokens": self.num_prompt_tokens, "output_tokens": 0}
        usage |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        return [{"type": "message_start", "message": self._message | {"usage": usage}}]

    def step(self, gain: Gain) -> list[dict[str, Any]]:
        """What a step adds: the events of its text."""
        return self._events(self._calls.read("".join(piece.text for piece in gain.pieces)))

    def closing(self, answer: Answer, queued_s: float) -> list[dict[str, Any]]:
        """What comes after the last text: why the answer ends, and usage."""
        return [
            *self._events(self._rest(answer)),
            *self._closed(),
            {"type": "message_delta", "delta": self._end(answer), "usage": _usage(answer)},
            {"type": "message_stop"},
        ]

    def failure(self, error: RefusalError) -> dict[str, Any]:
        """An error after the first event."""
        return anthropic_error(error)

    def ping(self) -> str:
        """An event that clients leave out."""
        return self.written({"type": "ping"})

    def _events(self, found: Sequence[AnswerEvent]) -> list[dict[str, Any]]:
        """The events of what was said, block by block."""
        events: list[dict[str, Any]] = []
        block: dict[str, Any]
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
                events += self._closed()
                self._open = kind
                place = {"index": self._num_blocks, "content_block": block}
                events.append({"type": "content_block_start", **place})
            place = {"index": self._num_blocks, "delta": delta}
            events.append({"type": "content_block_delta", **place})
        return events

    def _closed(self) -> list[dict[str, Any]]:
        """The end of the block that goes on, if one does."""
        if self._open is None:
            return []
        self._open = None
        self._num_blocks += 1
        return [{"type": "content_block_stop", "index": self._num_blocks - 1}]

    def _end(self, answer: Answer) -> dict[str, Any]:
        """Why the answer ends."""
        reason, stopped = self._reason(answer), answer.stats.stop_string
        if reason == "stop" and stopped is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": stopped}
        return {"stop_reason": _REASONS[reason], "stop_sequence": None}


def _add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add a delta to its block; arguments are collected as text."""
    of_block = {"partial_json": "input"}
    for name, value in delta.items():
        if name != "type":
            block[of_block.get(name, name)] += value


def _usage(answer: Answer) -> dict[str, Any]:
    """Tokens, as Anthropic counts them: those that were read before are not input."""
    stats = answer.stats
    return {
        "input_tokens": stats.prompt_tokens - stats.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.reused_tokens,
        "output_tokens": len(answer.token_ids),
    }
