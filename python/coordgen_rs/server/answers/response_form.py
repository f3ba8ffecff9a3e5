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
from coordgen_rs.server.answers.timings import usage
from coordgen_rs.server.asked.completion import Asked
from coordgen_rs.server.refusal import RefusalError
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
        self._item_id = f"msg_{secrets.token_hex(12)}"
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
        self._said: list[str] = []

    def whole(self, answer: Answer, queued_s: float, gains: Sequence[Gain] = ()) -> dict[str, Any]:
        """The response as one object."""
        own = super().whole(answer, queued_s, gains)
        figures = {name: own[name] for name in ("timings", "metrics", "coordgen")}
        if self._asked.with_token_ids:
            figures["coordgen"]["token_ids"] = answer.token_ids
        is_cut = self._reason(answer) == "length"
        status = "incomplete" if is_cut else "completed"
        told = usage(answer)
        return self._base | {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [self._item(status, [_part(answer.text, own["choices"][0]["logprobs"])])],
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

    def opening(self) -> list[dict[str, Any]]:
        """What comes before the first text."""
        item = self._item("in_progress", [])
        return [
            self._event("response.created", response=self._base),
            self._event("response.in_progress", response=self._base),
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **self._place(), part=_part("")),
        ]

    def step(self, gain: Gain) -> list[dict[str, Any]]:
        """What a step adds: one event, or none where no text is certain and nothing else asked."""
        found = super().step(gain)
        if not found:
            return []
        [chunk] = found
        text = "".join(piece.text for piece in gain.pieces)
        self._said.append(text)
        more = {"coordgen": chunk["coordgen"]} if "coordgen" in chunk else {}
        if self._asked.with_token_ids:
            more["token_ids"] = gain.token_ids
        place = self._place() | {"logprobs": _entries(chunk["choices"][0]["logprobs"])}
        return [self._event("response.output_text.delta", **place, delta=text, **more)]

    def closing(self, answer: Answer, queued_s: float) -> list[dict[str, Any]]:
        """What comes after the last text."""
        text, whole = "".join(self._said), self.whole(answer, queued_s)
        status, told = whole["status"], self._told(answer.logprobs or ())
        item = self._item(status, [_part(text, told)])
        place = self._place() | {"logprobs": _entries(told)}
        return [
            self._event("response.output_text.done", **place, text=text),
            self._event("response.content_part.done", **self._place(), part=_part(text, told)),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event(f"response.{status}", response=whole),
        ]

    def failure(self, error: RefusalError) -> dict[str, Any]:
        """An error after the first event."""
        return self._event(
            "error", code=error.code or error.kind, message=str(error), param=error.param
        )

    def _event(self, kind: str, **values: Any) -> dict[str, Any]:
        event = {"type": kind, "sequence_number": self._number, **values}
        self._number += 1
        return event

    def _place(self) -> dict[str, Any]:
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        return place | {"logprobs": []}

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        item = {"id": self._item_id, "type": "message", "role": "assistant"}
        return item | {"status": status, "content": content}


def _part(text: str, told: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": _entries(told)}


def _entries(told: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [] if told is None else told["content"]
