"""The shapes of Ollama's answers: one object, or lines of objects.

In: steps and answers. Out: objects for JSON. A call is given once its arguments are complete, as an
object. It sends nothing.
"""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Literal

from coordgen_rs.generation.logprobs import TokenLogprob
from coordgen_rs.model.answer import Answer, Gain
from coordgen_rs.server.answers.forms import Form, as_json
from coordgen_rs.server.answers.logprobs import entries
from coordgen_rs.server.asked.completion import Asked
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.server.tools.arguments.syntax import is_object
from coordgen_rs.server.tools.calls import AnswerEvent, Call, Content, Thought
from coordgen_rs.text.token_spelling import TokenSpelling


class OllamaForm(Form):
    """What both of Ollama's endpoints have in common; arguments are those of `Form`."""

    ends_with_done = False
    content_type = "application/x-ndjson"

    def __init__(
        self,
        asked: Asked,
        model: str,
        text_of: Callable[[int], str],
        spelling: TokenSpelling | None = None,
    ) -> None:
        super().__init__(asked, model, text_of, spelling)
        self._model = model
        self._parts: list[Call] = []  # of a call that is not complete

    @classmethod
    def loaded(cls, model: str, what: Literal["load", "unload"]) -> dict[str, Any]:
        """The answer to a request that only has a model opened, or put away."""
        return _line(model, cls._said([]), is_end=True) | {"done_reason": what}

    @classmethod
    def _said(cls, found: Sequence[AnswerEvent]) -> dict[str, Any]:
        """The part of a line that holds what was said."""
        raise NotImplementedError

    def whole(self, answer: Answer, queued_s: float, gains: Sequence[Gain] = ()) -> dict[str, Any]:
        """The answer as one object."""
        line, likely = self._line(self._found(answer), is_end=True), answer.logprobs or ()
        return line | self._likely(self._of_content(likely, answer)) | self._end(answer, queued_s)

    def opening(self) -> list[dict[str, Any]]:
        """Nothing comes before the first text."""
        return []

    def step(self, gain: Gain) -> list[dict[str, Any]]:
        """What a step adds: a line, or none where no text and no token is certain."""
        found = self._calls.read("".join(piece.text for piece in gain.pieces))
        lines = self._lines(found, is_whole=not self._calls.is_open)
        if likely := self._likely(self._of_content(gain.logprobs)):
            lines = lines or [self._line([])]
            lines[0] |= likely
        return lines

    def closing(self, answer: Answer, queued_s: float) -> list[dict[str, Any]]:
        """What comes after the last text: calls, why the answer ends, and figures."""
        lines = self._lines(self._rest(answer), is_whole=True)
        lines.append(self._line([], is_end=True) | self._end(answer, queued_s))
        lines[0] |= self._likely(self._of_content((), answer))
        return lines

    def failure(self, error: RefusalError) -> dict[str, Any]:
        """An error after the first line."""
        return {"error": str(error)}

    def written(self, event: dict[str, Any]) -> str:
        """An event as a line."""
        return as_json(event) + "\n"

    def ping(self) -> str:
        """A line without text."""
        return self.written(self._line([]))

    def _lines(self, found: Sequence[AnswerEvent], *, is_whole: bool) -> list[dict[str, Any]]:
        """What was said as lines, in its order: text, and calls once they are complete.

        Args:
            found: What was said.
            is_whole: Whether the last call goes on no more.
        """
        told: list[list[AnswerEvent]] = []
        for one in found:
            if not isinstance(one, Call):
                told += [[*self._parts], [one]]
                self._parts = []
            elif one.name is not None:
                told.append([*self._parts])
                self._parts = [one]
            else:
                self._parts.append(one)
        if is_whole:
            told.append([*self._parts])
            self._parts = []
        kinds = groupby((part for part in told if part), lambda part: type(part[0]))
        joined = ([one for part in parts for one in part] for _, parts in kinds)
        return [self._line(line) for line in joined]

    def _likely(self, told: Sequence[TokenLogprob]) -> dict[str, Any]:
        """How likely tokens were, as OpenAI's entries, which Ollama's are; nothing if none are."""
        if self._spelling is None or not told:
            return {}
        return {"logprobs": entries(told, self._spelling)}

    def _line(self, found: Sequence[AnswerEvent], *, is_end: bool = False) -> dict[str, Any]:
        return _line(self._model, self._said(found), is_end=is_end)

    def _end(self, answer: Answer, queued_s: float) -> dict[str, Any]:
        stats, reason = answer.stats, self._reason(answer)
        return {
            "done_reason": "length" if reason == "length" else "stop",
            "total_duration": _ns(queued_s + stats.prefill_s + stats.decode_s),
            "load_duration": _ns(queued_s),
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": _ns(stats.prefill_s),
            "eval_count": len(answer.token_ids),
            "eval_duration": _ns(stats.decode_s),
        }


class ChatForm(OllamaForm):
    """The objects of `/api/chat`."""

    @classmethod
    def _said(cls, found: Sequence[AnswerEvent]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": _text(found, Content)}
        if thought := _text(found, Thought):
            message["thinking"] = thought
        calls = _joined([one for one in found if isinstance(one, Call)])
        if calls := [call for call in calls if is_object(call.arguments)]:
            message["tool_calls"] = [_call(call) for call in calls]
        return {"message": message}


class GenerateForm(OllamaForm):
    """The objects of `/api/generate`."""

    @classmethod
    def _said(cls, found: Sequence[AnswerEvent]) -> dict[str, Any]:
        thought = _text(found, Thought)
        said = {"response": _text(found, Content)}
        return said | {"thinking": thought} if thought else said


def _line(model: str, said: dict[str, Any], *, is_end: bool) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return {"model": model, "created_at": now} | said | {"done": is_end}


def _joined(parts: Sequence[Call]) -> list[Call]:
    """Calls of which each has all its arguments."""
    calls = dict[int, Call]()
    for part in parts:
        before = calls.get(part.number)
        if before is None:
            calls[part.number] = part
        else:
            whole = before.arguments + part.arguments
            calls[part.number] = before._replace(arguments=whole)
    return list(calls.values())


def _text(found: Sequence[AnswerEvent], kind: type[Content] | type[Thought]) -> str:
    return "".join(one.text for one in found if isinstance(one, kind))


def _call(call: Call) -> dict[str, Any]:
    """A call as Ollama writes it."""
    arguments = json.loads(call.arguments)
    function = {"index": call.number, "name": call.name, "arguments": arguments}
    return {"function": function}


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)
