"""The shapes of the Responses API: one object, or the events of a stream, each with its number.

In: steps and answers. Out: objects for JSON, with our `coordgen`, `timings` and `metrics` in the
response itself. It sends nothing.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from coordgen_rs.generation.logprobs import TokenLogprob
from coordgen_rs.model.answer import Answer, Gain
from coordgen_rs.server.answers.forms import Form
from coordgen_rs.server.answers.output_items import OutputItems
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.server.requests.record import Request
from coordgen_rs.server.tools.functions import Tools
from coordgen_rs.text.token_spelling import TokenSpelling


class ResponseForm(Form):
    """The objects of one response; arguments are those of `Form`."""

    ends_with_done = False

    def __init__(
        self,
        asked: Request,
        model: str,
        text_of: Callable[[int], str],
        spelling: TokenSpelling | None = None,
    ) -> None:
        super().__init__(asked, model, text_of, spelling)
        tools = asked.tools
        self._base: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(12)}",
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "model": model,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": asked.limit,
            "output": [],
            "parallel_tool_calls": tools is None or tools.is_parallel,
            "previous_response_id": None,
            "store": False,
            "temperature": asked.options["temperature"],
            "top_p": asked.options["top_p"],
            "tool_choice": "auto" if tools is None else _choice(tools),
            "tools": [] if tools is None else _listed(tools),
            "truncation": "disabled",
            "metadata": {},
            "usage": None,
        }
        self._number = 0
        self._items = OutputItems(self._event)
        self._waiting: dict[str, Any] = {}  # what is told beside the next event

    def whole(self, answer: Answer, queued_s: float, gains: Sequence[Gain] = ()) -> dict[str, Any]:
        """The response as one object."""
        likely = self._of_content(answer.logprobs or (), answer)
        self._items.say(self._found(answer), self._entries(likely))
        self._items.close(self._status(answer))
        return self._response(answer, queued_s, gains)

    def opening(self) -> list[dict[str, Any]]:
        """What comes before the first text."""
        return [
            self._event("response.created", response=self._base),
            self._event("response.in_progress", response=self._base),
        ]

    def step(self, gain: Gain) -> list[dict[str, Any]]:
        """What a step adds: events, or none where nothing is certain and nothing else asked."""
        said = self._calls.read("".join(piece.text for piece in gain.pieces))
        likely = self._of_content(gain.logprobs)
        events = self._items.say(said, self._entries(likely))
        if not gain.token_ids or not (self._wants_tokens or likely):
            return events
        # Where nothing is certain yet, thinking or a call may be what comes first.
        is_certain = self._items.listed or self._asked.thinking is None
        if not events and self._asked.tools is None and is_certain:
            events = self._items.text("")
        self._wait(self._own(gain), gain)
        if events:
            events[-1] |= self._waiting
            self._waiting = {}
        return events

    def closing(self, answer: Answer, queued_s: float) -> list[dict[str, Any]]:
        """What comes after the last text."""
        likely = self._of_content((), answer)
        events = self._items.say(self._rest(answer), self._entries(likely))
        status = self._status(answer)
        events += self._items.close(status)
        events[0] |= self._waiting
        whole = self._response(answer, queued_s, ())
        return [*events, self._event(f"response.{status}", response=whole)]

    def failure(self, error: RefusalError) -> dict[str, Any]:
        """An error after the first event."""
        return self._event(
            "error", code=error.code or error.kind, message=str(error), param=error.param
        )

    def _wait(self, own: dict[str, Any], gain: Gain) -> None:
        """Add to what is told beside the next event: nothing of it is for a call's own events."""
        waiting = self._waiting.setdefault("coordgen", {}) if own else {}
        for name, value in own.items():
            waiting[name] = waiting.get(name, []) + value if isinstance(value, list) else value
        if self._asked.with_token_ids:
            ids = [*self._waiting.get("token_ids", []), *gain.token_ids]
            self._waiting["token_ids"] = ids

    def _entries(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        """How likely tokens were, as OpenAI tells it."""
        told = self._told(logprobs)
        return [] if told is None else list(told["content"])

    def _status(self, answer: Answer) -> str:
        return "incomplete" if self._reason(answer) == "length" else "completed"

    def _response(self, answer: Answer, queued_s: float, gains: Sequence[Gain]) -> dict[str, Any]:
        """The whole response; its output has been said."""
        figures = self._whole_figures(answer, queued_s, gains)
        if self._asked.with_token_ids:
            figures["coordgen"]["token_ids"] = answer.token_ids
        status, told = self._status(answer), self.usage(answer)
        is_cut = status == "incomplete"
        return self._base | {
            "status": status,
            "completed_at": None if is_cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self._items.listed,
            "usage": {
                "input_tokens": told["prompt_tokens"],
                "input_tokens_details": told["prompt_tokens_details"],
                "output_tokens": told["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0}
                | told["completion_tokens_details"],
                "total_tokens": told["total_tokens"],
            },
            **figures,
        }

    def _event(self, kind: str, **values: Any) -> dict[str, Any]:
        event = {"type": kind, "sequence_number": self._number, **values}
        self._number += 1
        return event


def _choice(tools: Tools) -> str | dict[str, Any]:
    """The `tool_choice` of a request, as OpenAI tells it."""
    if tools.forced is not None:
        return {"type": "function", "name": tools.forced}
    return "required" if tools.is_required else "auto"


def _listed(tools: Tools) -> list[dict[str, Any]]:
    """The functions of a request, as OpenAI tells them."""
    empty: dict[str, Any] = {"description": None, "parameters": {}}
    return [
        {"type": "function"}
        | empty
        | tool["function"]
        | {"strict": tool["function"]["name"] in tools.strict}
        for tool in tools.listed
    ]
