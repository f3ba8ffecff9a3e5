"""Ollama's answers: one object, or lines of objects.

In: what a model says. Out: objects for JSON. A call is given once its arguments are complete, as an
object.
"""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Literal

from coordgen_rs.generation.logprobs import TokenLogprob
from coordgen_rs.server.answers.dialect import Answered, Dialect, Event, Writing, as_json
from coordgen_rs.server.answers.logprobs import entries
from coordgen_rs.server.answers.reader import Delta, Ended
from coordgen_rs.server.tools.arguments.syntax import is_object
from coordgen_rs.server.tools.calls import AnswerEvent, Call, Content, Thought

_Saying = Callable[[Sequence[AnswerEvent]], Event]
"""Makes the part of a line that holds what was said."""


def _chat(found: Sequence[AnswerEvent]) -> Event:
    """Of `/api/chat`."""
    message: Event = {"role": "assistant", "content": _text(found, Content)}
    if thought := _text(found, Thought):
        message["thinking"] = thought
    calls = _joined([one for one in found if isinstance(one, Call)])
    if calls := [call for call in calls if is_object(call.arguments)]:
        message["tool_calls"] = [_call(call) for call in calls]
    return {"message": message}


def _generated(found: Sequence[AnswerEvent]) -> Event:
    """Of `/api/generate`."""
    thought = _text(found, Thought)
    said = {"response": _text(found, Content)}
    return said | {"thinking": thought} if thought else said


def loaded(dialect: Dialect, model: str, what: Literal["load", "unload"]) -> Event:
    """The answer to a request that only has a model opened, or put away."""
    saying = _chat if dialect is CHAT else _generated
    return _line(model, saying([]), is_end=True) | {"done_reason": what}


def _stream(saying: _Saying, answered: Answered) -> Writing:
    calls = _Calls()

    def lines(found: Sequence[AnswerEvent], *, is_whole: bool) -> list[Event]:
        said = calls.completed(found, is_whole=is_whole)
        return [_line(answered.model, saying(one)) for one in said]

    told = yield []
    while isinstance(told, Delta):
        found = lines(told.said, is_whole=not told.is_call_open)
        if likely := _likely(answered, told.logprobs):
            found = found or [_line(answered.model, saying([]))]
            found[0] |= likely
        told = yield found
    found = lines(told.said, is_whole=True)
    found.append(_line(answered.model, saying([]), is_end=True) | _end(told))
    found[0] |= _likely(answered, told.logprobs)
    yield found


def _whole(saying: _Saying, answered: Answered, end: Ended) -> Event:
    line = _line(answered.model, saying(end.said), is_end=True)
    return line | _likely(answered, end.logprobs) | _end(end)


def _dialect(saying: _Saying) -> Dialect:
    return Dialect(
        partial(_stream, saying),
        partial(_whole, saying),
        lambda error, _: {"error": str(error)},
        lambda model: _encoded(_line(model, saying([]))),
        _encoded,
        "application/x-ndjson",
        streams_by_default=True,
    )


def _encoded(event: Event) -> str:
    return as_json(event) + "\n"


CHAT, GENERATE = _dialect(_chat), _dialect(_generated)


class _Calls:
    """Puts the parts of calls together."""

    def __init__(self) -> None:
        self._parts: list[AnswerEvent] = []  # of a call that is not complete

    def completed(self, found: Sequence[AnswerEvent], *, is_whole: bool) -> list[list[AnswerEvent]]:
        """What was said, in its order, as lines: text, and calls once they are complete.

        Args:
            found: What was said.
            is_whole: Whether the last call goes on no more.
        """
        told: list[list[AnswerEvent]] = []
        for one in found:
            if not isinstance(one, Call):
                told += [self._parts, [one]]
                self._parts = []
            elif one.name is not None:
                told.append(self._parts)
                self._parts = [one]
            else:
                self._parts.append(one)
        if is_whole:
            told.append(self._parts)
            self._parts = []
        kinds = groupby((part for part in told if part), lambda part: type(part[0]))
        return [[one for part in parts for one in part] for _, parts in kinds]


def _likely(answered: Answered, told: Sequence[TokenLogprob]) -> Event:
    """How likely tokens were, as OpenAI's entries, which Ollama's are; nothing if none are."""
    spelling = answered.request.spelling
    return {} if spelling is None or not told else {"logprobs": entries(told, spelling)}


def _line(model: str, said: Event, *, is_end: bool = False) -> Event:
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return {"model": model, "created_at": now} | said | {"done": is_end}


def _end(end: Ended) -> Event:
    stats = end.answer.stats
    return {
        "done_reason": "length" if end.reason == "length" else "stop",
        "total_duration": _ns(end.queued_s + stats.prefill_s + stats.decode_s),
        "load_duration": _ns(end.queued_s),
        "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": _ns(stats.prefill_s),
        "eval_count": len(end.answer.token_ids),
        "eval_duration": _ns(stats.decode_s),
    }


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


def _call(call: Call) -> Event:
    """A call as Ollama writes it."""
    arguments = json.loads(call.arguments)
    function = {"index": call.number, "name": call.name, "arguments": arguments}
    return {"function": function}


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)
