"""The output of a response: items of thinking and text, with the events that tell them.

In: what a model says, in order. Out: events, and at the end the items. An item begins with the
first of its text, and ends where something else is said.
"""

import secrets
from collections.abc import Callable
from typing import Any, Literal

Event = dict[str, Any]

Kind = Literal["reasoning", "message"]

_PREFIX = {"reasoning": "rs", "message": "msg"}
_DELTA = {"reasoning": "response.reasoning_text", "message": "response.output_text"}


class Items:
    """The items of one response, none at first.

    Args:
        event: Makes an event of its kind and values.

    Attributes:
        done: The items that have ended.
    """

    def __init__(self, event: Callable[..., Event]) -> None:
        self._event = event
        self.done: list[dict[str, Any]] = []
        self._kind: Kind | None = None  # of the item that is open
        self._id, self._said = "", list[str]()

    def say(self, kind: Kind | None, text: str, **more: Any) -> list[Event]:
        """The events of a piece of text.

        Args:
            kind: The item that it belongs to; None for the one that is open, or text.
            text: The piece.
            more: What else the event tells.
        """
        kind = kind or self._kind or "message"
        events = [] if kind == self._kind else [*self.end("completed"), *self._begin(kind)]
        self._said.append(text)
        return [*events, self._event(f"{_DELTA[kind]}.delta", **self._place(), delta=text, **more)]

    def close(self, status: str) -> list[Event]:
        """The events of the end of the response; one without items gets an empty text."""
        begun = [] if self._kind or self.done else self._begin("message")
        return [*begun, *self.end(status)]

    def end(self, status: str) -> list[Event]:
        """The events of the end of the item that is open."""
        if self._kind is None:
            return []
        text, kind = "".join(self._said), self._kind
        item, part = self._item(status, [_part(kind, text)]), _part(kind, text)
        events = [
            self._event(f"{_DELTA[kind]}.done", **self._place(), text=text),
            self._event("response.content_part.done", **self._place(), part=part),
            self._event("response.output_item.done", output_index=len(self.done), item=item),
        ]
        self.done.append(item)
        self._kind = None
        return events

    def _begin(self, kind: Kind) -> list[Event]:
        self._kind, self._said = kind, []
        self._id = f"{_PREFIX[kind]}_{secrets.token_hex(12)}"
        item, part = self._item("in_progress", []), _part(kind, "")
        return [
            self._event("response.output_item.added", output_index=len(self.done), item=item),
            self._event("response.content_part.added", **self._place(), part=part),
        ]

    def _place(self) -> dict[str, Any]:
        place = {"item_id": self._id, "output_index": len(self.done), "content_index": 0}
        return place if self._kind == "reasoning" else place | {"logprobs": []}

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._id, "type": self._kind}
        own: dict[str, Any] = {"role": "assistant"}
        if self._kind == "reasoning":
            own = {"summary": []}
        return item | own | {"status": status, "content": content}


def _part(kind: Kind, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
