"""The output of a response in OpenAI's Responses API: items in the order in which they are said.

In: what the model says, and how likely its tokens were. Out: items, and the events that tell how
each begins, grows and ends.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from coordgen_rs.server.tools.calls import AnswerEvent, Call, Content, Thought

Event = dict[str, Any]

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
