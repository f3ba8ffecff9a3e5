"""OpenAI's Responses API, as far as it is text and functions: what is asked and answered.

In: a body as `Fields`, `model` excepted, and the model; later what it says. Out: a `Request`, or
an error that names the field; later one object, or numbered events. Nothing is stored, so no
response can be gone on with by its id: a dialogue is sent whole, as items of `input`. What the
model said in one turn, text and calls, is one message of it; so templates expect it. The output is
items, too, in the order in which they are said; events tell how each begins, grows and ends.
"""

import secrets
import time
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from coordgen_rs.model import Model
from coordgen_rs.server.api_error import APIError
from coordgen_rs.server.dialects.fields import Fields
from coordgen_rs.server.dialects.openai import settings_of
from coordgen_rs.server.dialects.options import format_of, limit_of, num_alternatives_of
from coordgen_rs.server.dialects.prompts import (
    ROLES,
    Dialogue,
    call_of,
    chat_ids,
    effort_of,
    text_of,
)
from coordgen_rs.server.dialects.reader import Delta, Ended
from coordgen_rs.server.dialects.request import Request, complete
from coordgen_rs.server.dialects.writing import (
    Dialect,
    Event,
    StepMetrics,
    Writing,
    answer_metrics,
    logprob_entries,
    usage,
)
from coordgen_rs.server.tools.calls import Call, Thought
from coordgen_rs.server.tools.functions import NAMELESS, Tools, tools_of

_NOT_STORED = "the server stores no responses: send the whole dialogue as input"
_LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (
    *(_LOGPROBS, "reasoning.encrypted_content", "message.input_image.image_url"),
    *("web_search_call.action.sources", "web_search_call.results", "file_search_call.results"),
    *("code_interpreter_call.outputs", "computer_call_output.output.image_url"),
)
"""What may be asked for; most of it is of items of which there are none here."""
_KINDS = "its type must be message, function_call, function_call_output or reasoning"


def parse_response(fields: Fields, model: Model) -> Request:
    """The body of `/v1/responses`.

    Raises:
        APIError: It cannot be answered.
    """
    messages = messages_of_items(fields)
    limit = limit_of(fields, "max_output_tokens")
    for name in ("previous_response_id", "conversation", "prompt"):
        fields.only(name, why=_NOT_STORED)
    fields.only("store", False, why=_NOT_STORED)
    fields.only("background", False, why=_NOT_STORED)
    fields.only("truncation", "disabled", why="a dialogue that is too long is refused")
    fields.ignore("max_tool_calls")
    include = fields.take("include")
    included = [] if include is None else include
    if not isinstance(included, list) or any(name not in _INCLUDED for name in included):
        raise fields.wrong("include", f'must be a list, in which only "{_LOGPROBS}" may be')
    is_told = _LOGPROBS in included
    num_alternatives = num_alternatives_of(fields, is_told, f'include: ["{_LOGPROBS}"]')
    tools, reasoning = tools_of(fields, is_flat=True), fields.nested("reasoning")
    effort = effort_of(reasoning, "effort")
    for name in ("summary", "generate_summary"):  # "auto" is the best that there is
        reasoning.only(name, "auto", why="thinking is given as it is, without a summary")
    reasoning.end()
    text = fields.nested("text")
    constraint = format_of(text, "format", is_flat=True)
    text.only("verbosity", "medium", why="the model has no such setting")
    text.end()
    for name in ("n", "best_of"):
        fields.only(name, 1, why="a response is one answer")
    settings = settings_of(
        fields, model, limit, num_alternatives, constraint=constraint, tools=tools
    )
    prompt_ids = chat_ids(model, Dialogue(messages, tools, effort), "input")
    return complete(model, "response", prompt_ids, settings)


def messages_of_items(fields: Fields) -> list[dict[str, Any]]:
    """The dialogue of `input`, `instructions` first.

    Raises:
        APIError: It is malformed, or holds something else than text and calls.
    """
    instructions = fields.text("instructions")
    if isinstance(text := fields.peek("input"), str):
        fields.ignore("input")
        dialogue = [{"role": "user", "content": text}]
    else:
        how = "must be a text, or a list of one item or more"
        dialogue = _messages(fields.objects("input", how, least=1))
    if not dialogue:
        raise fields.wrong("input", "must hold a message")
    said = [] if instructions is None else [{"role": "system", "content": instructions}]
    return [*said, *dialogue]


def _messages(items: list[Fields]) -> list[dict[str, Any]]:
    """Items, oldest first, as messages.

    All kinds in one loop: what an item is depends on whose turn those before it belong to.

    Raises:
        APIError: One is malformed, or of another kind.
    """
    messages, names = list[dict[str, Any]](), dict[str, str]()  # functions by the ids of calls
    turn: dict[str, Any] | None = None  # the model's, to which its next items belong
    thought = dict[str, str]()  # right before a turn that is still to come; of no later one
    for item in items:
        kind = item.text("type") or "message"
        if kind == "message":
            item.ignore("phase")
            message = {"role": item.one_of("role", ROLES), "content": _text(item, "content")}
            turn = message | thought if message["role"] == "assistant" else None
            messages.append(turn or message)
            thought = {}
        elif kind == "function_call":
            name, identity = item.needed("name", NAMELESS), item.text("call_id")
            item.only("namespace", why="functions have no namespaces")
            item.ignore("caller")
            call = call_of(identity, name, item, "arguments")
            names |= {} if identity is None else {identity: name}
            if turn is None:
                turn, thought = {"role": "assistant", "content": "", **thought}, {}
                messages.append(turn)
            turn.setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            identity = item.needed("call_id", "must be the id of a call")
            item.ignore("caller")
            name_of = {"name": names[identity]} if identity in names else {}
            said = {"content": _text(item, "output")}
            messages.append({"role": "tool", "tool_call_id": identity} | name_of | said)
            turn, thought = None, {}
        elif kind == "reasoning":  # templates write thoughts, not what is encrypted or summed up
            item.ignore("summary", "encrypted_content")
            if item.peek("content"):
                text = thought.get("reasoning_content", "") + _text(item, "content")
                turn, thought = None, {"reasoning_content": text} if text else {}
            item.ignore("content")
        else:
            raise item.unsupported("type", f"is not supported: {_KINDS}")
        item.end("id", "status")
    return messages


def _text(item: Fields, name: str) -> str:
    return text_of(item, name, _part, "text")


def _part(item: Fields, name: str, part: object) -> str:
    """The text of a part.

    Raises:
        APIError: It has none.
    """
    if isinstance(part, str):
        return part
    fields = Fields(part, item.name(name))
    kinds = ("input_text", "output_text", "reasoning_text", "text")
    fields.only("type", *kinds, why="the model reads text only")
    text = fields.text("text")
    fields.end("annotations", "logprobs")
    if text is None:
        raise APIError(f"{fields.name('text')} must be text", param=fields.name("text"))
    return text


_BEGINNINGS = ("created", "in_progress")
_DELTA = {"reasoning": "reasoning_text", "message": "output_text"}


class _Response:
    """One response as it grows: its items, and the events that tell of it, which are numbered."""

    def __init__(self, request: Request) -> None:
        self._request, self._number, self.base = request, 0, _base(request)
        self.items = list[Event]()
        self._is_open = False  # whether the last one goes on
        self._entries = list[Event]()  # of tokens, to be told with the next text

    def event(self, kind: str, **values: Any) -> Event:
        """An event of a response, with its number."""
        event = {"type": f"response.{kind}", "sequence_number": self._number, **values}
        self._number += 1
        return event

    def say(self, told: Delta | Ended) -> list[Event]:
        """Tell what the model says; how likely tokens were is told with the next text."""
        self._entries += logprob_entries(self._request, told.logprobs)
        events = list[Event]()
        for one in told.events:
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
        request, answer, status = self._request, end.answer, _status(end)
        told, mine = usage(request, answer), answer_metrics(request, end, is_whole=True)
        if request.with_token_ids:
            mine["coordgen"]["token_ids"] = answer.token_ids
        is_cut = status == "incomplete"
        return self.base | {
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


def _stream(requests: Sequence[Request]) -> Writing:
    [request] = requests
    response, own = _Response(request), StepMetrics(request)
    beside = Event()  # for the next event: nothing of it is for a call's own events
    told = yield [response.event(kind, response=response.base) for kind in _BEGINNINGS]
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
    """Add a step's metrics and tokens to those of the steps before it."""
    for name, value in own.items():
        waiting = beside.setdefault("coordgen", {})
        waiting[name] = waiting.get(name, []) + value if isinstance(value, list) else value
    if token_ids:
        beside["token_ids"] = [*beside.get("token_ids", []), *token_ids]


def _whole(requests: Sequence[Request], ends: Sequence[Ended]) -> Event:
    [request], [end] = requests, ends
    response = _Response(request)
    response.end(end)
    return response.whole(end)


def _failure(error: APIError, num_events: int) -> Event:
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


def _base(request: Request) -> Event:
    """A response before it is answered."""
    tools = request.tools
    choice: str | Event = "auto"
    if tools is not None and tools.forced is not None:
        choice = {"type": "function", "name": tools.forced}
    elif tools is not None and tools.is_required:
        choice = "required"
    return {
        "id": f"resp_{secrets.token_hex(12)}",
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "model": request.model,
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
        "tool_choice": choice,
        "tools": [] if tools is None else _listed(tools),
        "truncation": "disabled",
        "metadata": {},
        "usage": None,
    }


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
