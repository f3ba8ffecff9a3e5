"""The output of a response in OpenAI's Responses API: items in the order in which they are said.

In: what the model says. Out: items, and the events that tell how each begins, grows and ends.
"""

import secrets
from collections.abc import Callable, Iterable
from typing import Any

from coordgen_rs.server.tools.calls import Call, Content, Said

Event = dict[str, Any]


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

    def say(self, found: Iterable[Said]) -> list[Event]:
        """Tell what the model says."""
        events: list[Event] = []
        for one in found:
            if isinstance(one, Content):
                events += self._text(one.text)
            elif isinstance(one, Call):
                events += self._call(one)
        return events

    def text(self, text: str) -> list[Event]:
        """Tell text, which may be empty."""
        return self._text(text)

    def close(self, status: str) -> list[Event]:
        """End the output; the last item has the response's own status.

        Args:
            status: "completed" or "incomplete".
        """
        events = [] if self.listed else self._open_message()
        return [*events, *self._close(status)]

    def _text(self, text: str) -> list[Event]:
        is_message = self._is_open and self.listed[-1]["type"] == "message"
        events = [] if is_message else [*self._close("completed"), *self._open_message()]
        self.listed[-1]["content"][0]["text"] += text
        delta = self._event("response.output_text.delta", **self._part_place(), delta=text)
        return [*events, delta]

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

    def _open_message(self) -> list[Event]:
        item: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        events = self._open(item)
        item["content"].append(_part())
        part = self._event("response.content_part.added", **self._part_place(), part=_part())
        return [*events, part]

    def _close(self, status: str) -> list[Event]:
        """End the open item, if there is one."""
        if not self._is_open:
            return []
        self._is_open = False
        item = self.listed[-1]
        item["status"] = status
        if item["type"] == "message":
            [part] = item["content"]
            place = self._part_place()
            events = [
                self._event("response.output_text.done", **place, text=part["text"]),
                self._event("response.content_part.done", **place, part=dict(part)),
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
        return self._place() | {"content_index": 0, "logprobs": []}


def _part() -> dict[str, Any]:
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is now: it may grow before the event is sent."""
    if item["type"] != "message":
        return dict(item)
    return item | {"content": [dict(part) for part in item["content"]]}
