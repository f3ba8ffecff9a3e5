"""OpenAI's responses: one object, or the events of a stream, each with its number.

In: what a model says. Out: objects for JSON, with the figures of `timings.py` in the response
itself. Its output is items, in the order in which they are said; events tell how each begins, grows
and ends.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from coordgen_rs.generation.logprobs import TokenLogprob
from coordgen_rs.server.answers.dialect import Answered, Dialect, Event, Writing
from coordgen_rs.server.answers.logprobs import entries
from coordgen_rs.server.answers.reader import Delta, Ended
from coordgen_rs.server.answers.timings import StepFigures, figures, usage
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.server.tools.calls import AnswerEvent, Call, Content, Thought
from coordgen_rs.server.tools.functions import Tools

_DELTA = {"reasoning": "response.reasoning_text", "message": "response.output_text"}


class OutputItems:
    """The items of one response.

    Args:
        event: Makes an event of a type and its fields, with its number.

    Attributes:
        listed: The items as far as they have been said.
    """

    def __init__(self, event: Callable[..., Event]) -> None:
        self._event = event
        self.listed: list[dict[str, Any]] = []
        self._is_open = False  # whether the last one goes on
        self._entries: list[dict[str, Any]] = []  # of tokens, to be told with the next text

    def say(
        self, found: Iterable[AnswerEvent], logprobs: Sequence[dict[str, Any]] = ()
    ) -> list[Event]:
        """Tell what the model says.

        Args:
            found: Thinking, text and calls, in order.
            logprobs: How likely tokens were, as OpenAI tells it; told with the next text.
        """
        self._entries += logprobs
        events: list[Event] = []
        for one in found:
            if isinstance(one, Thought):
                events += self._text("reasoning", one.text)
            elif isinstance(one, Content):
                events += self._text("message", one.text)
            else:
                events += self._call(one)
        return events

    def text(self, text: str) -> list[Event]:
        """Tell text, which may be empty, of the item that is open, or of the answer."""
        is_thinking = self._is_open and self.listed[-1]["type"] == "reasoning"
        return self._text("reasoning" if is_thinking else "message", text)

    def close(self, status: str) -> list[Event]:
        """End the output; the last item has the response's own status.

        Args:
            status: "completed" or "incomplete".
        """
        events = [] if self.listed else self._open_text("message")
        if self._entries and self._is_open and self.listed[-1]["type"] == "message":
            events += self._text("message", "")
        return [*events, *self._close(status)]

    def _text(self, kind: str, text: str) -> list[Event]:
        is_same = self._is_open and self.listed[-1]["type"] == kind
        events = [] if is_same else [*self._close("completed"), *self._open_text(kind)]
        part, more = self.listed[-1]["content"][0], dict[str, Any]()
        part["text"] += text
        if kind == "message":
            more["logprobs"], self._entries = self._entries, []
            part["logprobs"] += more["logprobs"]
        place = self._part_place()
        return [*events, self._event(f"{_DELTA[kind]}.delta", **place, delta=text, **more)]

    def _call(self, call: Call) -> list[Event]:
        events: list[Event] = []
        if call.name is not None:
            events += self._close("completed")
            events += self._open(
                {
                    "id": f"fc_{secrets.token_hex(12)}",
                    "type": "function_call",
                    "status": "in_progress",
                    "call_id": f"call_{secrets.token_hex(12)}",
                    "name": call.name,
                    "arguments": "",
                }
            )
        if call.arguments:
            self.listed[-1]["arguments"] += call.arguments
            kind = "response.function_call_arguments.delta"
            events.append(self._event(kind, **self._place(), delta=call.arguments))
        return events

    def _open(self, item: dict[str, Any]) -> list[Event]:
        self.listed.append(item)
        self._is_open = True
        at = len(self.listed) - 1
        return [self._event("response.output_item.added", output_index=at, item=_copy(item))]

    def _open_text(self, kind: str) -> list[Event]:
        is_message = kind == "message"
        own = {"role": "assistant"} if is_message else {"summary": list[Any]()}
        item: dict[str, Any] = {
            "id": f"{'msg' if is_message else 'rs'}_{secrets.token_hex(12)}",
            "type": kind,
            **own,
            "status": "in_progress",
            "content": [],
        }
        events = self._open(item)
        item["content"].append(_part(kind))
        part = self._event("response.content_part.added", **self._part_place(), part=_part(kind))
        return [*events, part]

    def _close(self, status: str) -> list[Event]:
        """End the open item, if there is one."""
        if not self._is_open:
            return []
        self._is_open = False
        item = self.listed[-1]
        item["status"] = status
        if item["type"] != "function_call":
            [part] = item["content"]
            place, told = self._part_place(), {"text": part["text"]}
            if item["type"] == "message":
                told["logprobs"] = list(part["logprobs"])
            events = [
                self._event(f"{_DELTA[item['type']]}.done", **place, **told),
                self._event("response.content_part.done", **place, part=_copied(part)),
            ]
        else:
            kind = "response.function_call_arguments.done"
            told = {"name": item["name"], "arguments": item["arguments"]}
            events = [self._event(kind, **self._place(), **told)]
        at = len(self.listed) - 1
        done = self._event("response.output_item.done", output_index=at, item=_copy(item))
        return [*events, done]

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.listed[-1]["id"], "output_index": len(self.listed) - 1}

    def _part_place(self) -> dict[str, Any]:
        return self._place() | {"content_index": 0}


def _part(kind: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _copied(part: dict[str, Any]) -> dict[str, Any]:
    return {name: list(it) if isinstance(it, list) else it for name, it in part.items()}


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is now: it may grow before the event is sent."""
    if item["type"] == "function_call":
        return dict(item)
    return item | {"content": [_copied(part) for part in item["content"]]}


class _Response:
    """One response: its events are numbered, and its items are those of `items`."""

    def __init__(self, answered: Answered) -> None:
        self._answered, self._number = answered, 0
        self.base = _base(answered)
        self.items = OutputItems(self.event)

    def event(self, kind: str, **values: Any) -> Event:
        """An event, with its number."""
        event = {"type": kind, "sequence_number": self._number, **values}
        self._number += 1
        return event

    def entries(self, likely: Sequence[TokenLogprob]) -> list[Event]:
        """How likely tokens were, as OpenAI tells it."""
        spelling = self._answered.request.spelling
        return [] if spelling is None else entries(likely, spelling)

    def ended(self, end: Ended) -> list[Event]:
        """The events of what was said last."""
        events = self.items.say(end.said, self.entries(end.logprobs))
        return [*events, *self.items.close(_status(end))]

    def whole(self, end: Ended) -> Event:
        """The whole response; its output has been said."""
        request, answer, status = self._answered.request, end.answer, _status(end)
        told, mine = usage(request, answer), figures(self._answered, end, is_whole=True)
        if request.with_token_ids:
            mine["coordgen"]["token_ids"] = answer.token_ids
        is_cut = status == "incomplete"
        return self.base | {
            "status": status,
            "completed_at": None if is_cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self.items.listed,
            "usage": {
                "input_tokens": told["prompt_tokens"],
                "input_tokens_details": told["prompt_tokens_details"],
                "output_tokens": told["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0}
                | told["completion_tokens_details"],
                "total_tokens": told["total_tokens"],
            },
            **mine,
        }


def _stream(answered: Answered) -> Writing:
    request, response, own = answered.request, _Response(answered), StepFigures(answered)
    event, items, beside = response.event, response.items, _Beside()
    told = yield [
        event("response.created", response=response.base),
        event("response.in_progress", response=response.base),
    ]
    while isinstance(told, Delta):
        events = items.say(told.said, response.entries(told.logprobs))
        if told.gain.token_ids and (own.is_wanted or told.logprobs):
            # Where nothing is certain yet, thinking or a call may be what comes first.
            is_certain = items.listed or request.thinking is None
            if not events and request.tools is None and is_certain:
                events = items.text("")
            beside.add(own.of(told.gain), told.gain.token_ids if request.with_token_ids else None)
            if events:
                events[-1] |= beside.taken()
        told = yield events
    events = response.ended(told)
    events[0] |= beside.taken()
    yield [*events, event(f"response.{_status(told)}", response=response.whole(told))]


def _whole(answered: Answered, end: Ended) -> Event:
    response = _Response(answered)
    response.ended(end)
    return response.whole(end)


def _failure(error: RefusalError, num_events: int) -> Event:
    return {
        "type": "error",
        "sequence_number": num_events,
        "code": error.code or error.kind,
        "message": str(error),
        "param": error.param,
    }


RESPONSES = Dialect(_stream, _whole, _failure)


class _Beside:
    """What is told beside the next event: nothing of it is for a call's own events."""

    def __init__(self) -> None:
        self._waiting: Event = {}

    def add(self, own: Event, token_ids: Sequence[int] | None) -> None:
        """Add a step's figures and tokens."""
        waiting = self._waiting.setdefault("coordgen", {}) if own else {}
        for name, value in own.items():
            waiting[name] = waiting.get(name, []) + value if isinstance(value, list) else value
        if token_ids is not None:
            self._waiting["token_ids"] = [*self._waiting.get("token_ids", []), *token_ids]

    def taken(self) -> Event:
        """All of it; nothing waits any more."""
        waiting, self._waiting = self._waiting, {}
        return waiting


def _status(end: Ended) -> str:
    return "incomplete" if end.reason == "length" else "completed"


def _base(answered: Answered) -> Event:
    """A response before it is answered."""
    request, tools = answered.request, answered.request.tools
    return {
        "id": f"resp_{secrets.token_hex(12)}",
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "model": answered.model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": request.limit,
        "output": [],
        "parallel_tool_calls": tools is None or tools.is_parallel,
        "previous_response_id": None,
        "store": False,
        "temperature": request.options["temperature"],
        "top_p": request.options["top_p"],
        "tool_choice": "auto" if tools is None else _choice(tools),
        "tools": [] if tools is None else _listed(tools),
        "truncation": "disabled",
        "metadata": {},
        "usage": None,
    }


def _choice(tools: Tools) -> str | Event:
    """The `tool_choice` of a request, as OpenAI tells it."""
    if tools.forced is not None:
        return {"type": "function", "name": tools.forced}
    return "required" if tools.is_required else "auto"


def _listed(tools: Tools) -> list[Event]:
    """The functions of a request, as OpenAI tells them."""
    empty: Event = {"description": None, "parameters": {}}
    return [
        {"type": "function"}
        | empty
        | tool["function"]
        | {"strict": tool["function"]["name"] in tools.strict}
        for tool in tools.listed
    ]
