"""The shapes of the Responses API: one object, or the events of a stream, each with its number.

In: steps and answers. Out: objects for JSON, with our `coordgen`, `timings` and `metrics` in the
response itself. It sends nothing.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from coordgen_rs.model.answer import Answer, Gain
from coordgen_rs.server.answers.forms import Form
from coordgen_rs.server.answers.response_items import Items
from coordgen_rs.server.asked.completion import Asked
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.server.tools.calls import Content, Said, Thought
from coordgen_rs.text.token_spelling import TokenSpelling


class ResponseForm(Form):
    """The objects of one response; arguments are those of `Form`."""

    ends_with_done = False

    def __init__(
        self,
        asked: Asked,
        model: str,
        text_of: Callable[[int], str],
        spelling: TokenSpelling | None = None,
    ) -> None:
        super().__init__(asked, model, text_of, spelling)
        self._base: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(12)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": asked.limit,
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": asked.options["temperature"],
            "top_p": asked.options["top_p"],
            "tool_choice": "auto",
            "tools": [],
            "truncation": "disabled",
            "metadata": {},
            "usage": None,
        }
        self._number = 0
        self._items = Items(self._event)

    def whole(self, answer: Answer, queued_s: float, gains: Sequence[Gain] = ()) -> dict[str, Any]:
        """The response as one object."""
        self._say([*self._calls.read(answer.text), *self._calls.end()])
        self._items.close(self._status(answer))
        return self._response(answer, queued_s, gains)

    def _status(self, answer: Answer) -> str:
        return "incomplete" if self._reason(answer) == "length" else "completed"

    def _response(
        self, answer: Answer, queued_s: float, gains: Sequence[Gain] = ()
    ) -> dict[str, Any]:
        """The response at its end."""
        figures = self._whole_figures(answer, queued_s, gains)
        if self._asked.with_token_ids:
            figures["coordgen"]["token_ids"] = answer.token_ids
        status, told = self._status(answer), self.usage(answer)
        is_cut = status == "incomplete"
        return self._base | {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self._items.done,
            "usage": {
                "input_tokens": told["prompt_tokens"],
                "input_tokens_details": told["prompt_tokens_details"],
                "output_tokens": told["completion_tokens"],
                "output_tokens_details": told["completion_tokens_details"],
                "total_tokens": told["total_tokens"],
            },
            **figures,
        }

    def opening(self) -> list[dict[str, Any]]:
        """What comes before the first text."""
        return [
            self._event("response.created", response=self._base),
            self._event("response.in_progress", response=self._base),
        ]

    def step(self, gain: Gain) -> list[dict[str, Any]]:
        """What a step adds: events of its text, none where nothing is certain or asked for."""
        text = "".join(piece.text for piece in gain.pieces)
        more: dict[str, Any] = {"coordgen": own} if (own := self._own(gain)) else {}
        if self._asked.with_token_ids:
            more["token_ids"] = gain.token_ids
        events = self._say(self._calls.read(text))
        if not events and self._wants_tokens and gain.token_ids:
            events = self._items.say(None, "")
        if events:
            events[-1] |= more
        return events

    def closing(self, answer: Answer, queued_s: float) -> list[dict[str, Any]]:
        """What comes after the last text."""
        status = self._status(answer)
        events = [*self._say(self._calls.end()), *self._items.close(status)]
        whole = self._response(answer, queued_s)
        return [*events, self._event(f"response.{status}", response=whole)]

    def _say(self, found: Sequence[Said]) -> list[dict[str, Any]]:
        """The events of what was said."""
        events = list[dict[str, Any]]()
        for one in found:
            if isinstance(one, Thought):
                events += self._items.say("reasoning", one.text)
            elif isinstance(one, Content):
                events += self._items.say("message", one.text)
        return events

    def failure(self, error: RefusalError) -> dict[str, Any]:
        """An error after the first event."""
        return self._event(
            "error", code=error.code or error.kind, message=str(error), param=error.param
        )

    def _event(self, kind: str, **values: Any) -> dict[str, Any]:
        event = {"type": kind, "sequence_number": self._number, **values}
        self._number += 1
        return event
