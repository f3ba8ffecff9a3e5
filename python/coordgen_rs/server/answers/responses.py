"""OpenAI's responses: one object, or the events of a stream, each with its number.

In: what a model says. Out: objects for JSON, with figures in the response
itself. Its output is items, in the order in which they are said; events tell how each begins, grows
and ends.
"""

import secrets
import time
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from coordgen_rs.server.answers.dialect import (
    Answered,
    Dialect,
    Event,
    StepFigures,
    Writing,
    entries,
    figures,
    usage,
)
from coordgen_rs.server.answers.reader import Delta, Ended
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.server.tools.calls import Call, Thought
from coordgen_rs.server.tools.functions import Tools

_DELTA = {"reasoning": "reasoning_text", "message": "output_text"}


class _Response:
    """One response as it grows: its items, and the events that tell of it, which are numbered."""

    def __init__(self, answered: Answered) -> None:
        self._answered, self._number, self._base = answered, 0, _base(answered)
        self.items = list[Event]()
        self._is_open = False  # whether the last one goes on
        self._entries = list[Event]()  # of tokens, to be told with the next text

    def event(self, kind: str, **values: Any) -> Event:
        """An event of a response, with its number."""
        event = {"type": f"response.{kind}", "sequence_number": self._number, **values}
        self._number += 1
        return event

    def begin(self) -> list[Event]:
        """The events before the first item."""
        return [self.event(kind, response=self._base) for kind in ("created", "in_progress")]

    def say(self, told: Delta | Ended) -> list[Event]:
        """Tell what the model says; how likely tokens were is told with the next text."""
        if (spelling := self._answered.request.spelling) is not None:
            self._entries += entries(told.logprobs, spelling)
        events = list[Event]()
        for one in told.said:
            if isinstance(one, Call):
                events += self._call(one)
            else:
                kind = "reasoning" if isinstance(one, Thought) else "message"
                events += self._text(kind, one.text)
        return events

    def go_on(self) -> list[Event]:
        """Tell a step of no text, of the item that is open, or of the answer."""
        return self._text("reasoning" if self._has_open("reasoning") else "message", "")

    def end(self, told: Ended) -> list[Event]:
        """Tell what is left; the last item has the response's own status."""
        events = self.say(told)
        if not self.items:
            events += self._open_text("message")
        if self._entries and self._has_open("message"):
            events += self._text("message", "")
        return [*events, *self._close(_status(told))]

    def whole(self, end: Ended) -> Event:
        """The whole response; its output has been said."""
        request, answer, status = self._answered.request, end.answer, _status(end)
        told, mine = usage(request, answer), figures(self._answered, end, is_whole=True)
        if request.with_token_ids:
            mine["coordgen"]["token_ids"] = answer.token_ids
        is_cut = status == "incomplete"
        return self._base | {
            "status": status,
            "completed_at": None if is_cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self.items,
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

    def _has_open(self, kind: str) -> bool:
        return self._is_open and self.items[-1]["type"] == kind

    def _text(self, kind: str, text: str) -> list[Event]:
        is_same = self._has_open(kind)
        events = [] if is_same else [*self._close("completed"), *self._open_text(kind)]
        [part], more = self.items[-1]["content"], Event()
        part["text"] += text
        if kind == "message":
            more["logprobs"], self._entries = self._entries, []
            part["logprobs"] += more["logprobs"]
        delta = self.event(f"{_DELTA[kind]}.delta", **self._place, delta=text, **more)
        return [*events, delta]

    def _call(self, call: Call) -> list[Event]:
        events = list[Event]()
        if call.name is not None:
            item = {
                "id": f"fc_{secrets.token_hex(12)}",
                "type": "function_call",
                "status": "in_progress",
                "call_id": f"call_{secrets.token_hex(12)}",
                "name": call.name,
                "arguments": "",
            }
            events = [*self._close("completed"), self._open(item)]
        if call.arguments:
            self.items[-1]["arguments"] += call.arguments
            kind = "function_call_arguments.delta"
            events.append(self.event(kind, **self._place, delta=call.arguments))
        return events

    def _open(self, item: Event) -> Event:
        """Begin an item; the event has it as it is now."""
        self.items.append(item)
        self._is_open = True
        at = len(self.items) - 1
        return self.event("output_item.added", output_index=at, item=dict(item))

    def _open_text(self, kind: str) -> list[Event]:
        prefix, own, more = "rs", Event(summary=[]), Event()
        if kind == "message":
            prefix, own, more = "msg", Event(role="assistant"), Event(annotations=[], logprobs=[])
        item: Event = {"id": f"{prefix}_{secrets.token_hex(12)}", "type": kind, **own}
        part = {"type": _DELTA[kind], "text": "", **more}
        added = self._open(item | {"status": "in_progress", "content": []})
        self.items[-1]["content"] = [part | deepcopy(more)]
        return [added, self.event("content_part.added", **self._place, part=part)]

    def _close(self, status: str) -> list[Event]:
        """End the open item, if there is one."""
        if not self._is_open:
            return []
        self._is_open, item, place = False, self.items[-1], self._place
        item["status"], events = status, list[Event]()
        if item["type"] == "function_call":
            told = {"name": item["name"], "arguments": item["arguments"]}
            events.append(self.event("function_call_arguments.done", **place, **told))
        else:
            [part] = item["content"]
            told = {name: part[name] for name in ("text", "logprobs") if name in part}
            events.append(self.event(f"{_DELTA[item['type']]}.done", **place, **told))
            events.append(self.event("content_part.done", **place, part=part))
        at = len(self.items) - 1
        return [*events, self.event("output_item.done", output_index=at, item=item)]

    @property
    def _place(self) -> Event:
        """Where the last item stands, and where its text does."""
        item = self.items[-1]
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        return place if item["type"] == "function_call" else place | {"content_index": 0}


def _stream(several: Sequence[Answered]) -> Writing:
    [answered] = several
    request, response, own = answered.request, _Response(answered), StepFigures(answered)
    beside = Event()  # for the next event: nothing of it is for a call's own events
    told = yield response.begin()
    while isinstance(told, Delta):
        events, gain = response.say(told), told.gain
        if gain.token_ids and (own.is_wanted or told.logprobs):
            # Where nothing is certain yet, thinking or a call may be what comes first.
            is_certain = response.items or request.thinking is None
            if not events and request.tools is None and is_certain:
                events = response.go_on()
            _add(beside, own.of(gain), gain.token_ids if request.with_token_ids else ())
            if events:
                events[-1] |= beside
                beside = Event()
        told = yield events
    events = response.end(told)
    events[0] |= beside
    yield [*events, response.event(_status(told), response=response.whole(told))]


def _add(beside: Event, own: Event, token_ids: Sequence[int]) -> None:
    """Add a step's figures and tokens to those of the steps before it."""
    for name, value in own.items():
        waiting = beside.setdefault("coordgen", {})
        waiting[name] = waiting.get(name, []) + value if isinstance(value, list) else value
    if token_ids:
        beside["token_ids"] = [*beside.get("token_ids", []), *token_ids]


def _whole(several: Sequence[Answered], ends: Sequence[Ended]) -> Event:
    [answered], [end] = several, ends
    response = _Response(answered)
    response.end(end)
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
