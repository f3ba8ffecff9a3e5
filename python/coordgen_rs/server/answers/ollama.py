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
from coordgen_rs.server.answers.dialect import (
    Answered,
    Dialect,
    Event,
    Writing,
    as_json,
    entries,
)
from coordgen_rs.server.answers.reader import Delta, Ended
from coordgen_rs.server.tools.calls import AnswerEvent, Call, Content, Thought, joined, text_of
from coordgen_rs.server.tools.syntax import is_object

_Saying = Callable[[Sequence[AnswerEvent]], Event]
"""Makes the part of a line that holds what was said, each call in one part."""


def _chat(found: Sequence[AnswerEvent]) -> Event:
    """Of `/api/chat`."""
    message: Event = {"role": "assistant", "content": text_of(found, Content)}
    if thought := text_of(found, Thought):
        message["thinking"] = thought
    calls = [one for one in found if isinstance(one, Call) and is_object(one.arguments)]
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    return {"message": message}


def _generated(found: Sequence[AnswerEvent]) -> Event:
    """Of `/api/generate`."""
    said, thought = {"response": text_of(found, Content)}, text_of(found, Thought)
    return said | {"thinking": thought} if thought else said


def loaded(dialect: Dialect, model: str, what: Literal["load", "unload"]) -> Event:
    """The answer to a request that only has a model opened, or put away."""
    saying = _chat if dialect is CHAT else _generated
    return _line(model, saying([]), is_end=True) | {"done_reason": what}


def _stream(saying: _Saying, several: Sequence[Answered]) -> Writing:
    [answered] = several
    open_call = list[AnswerEvent]()

    def lines(told: Delta | Ended, *, is_call_open: bool) -> list[Event]:
        """What was said, in its order, as lines: text, and calls once they are complete."""
        said = joined([*open_call, *told.said])
        open_call[:] = [said.pop()] if said and isinstance(said[-1], Call) and is_call_open else []
        return [_line(answered.model, saying([*same])) for _, same in groupby(said, type)]

    told = yield []
    while isinstance(told, Delta):
        found = lines(told, is_call_open=told.is_call_open)
        if likely := _likely(answered, told.logprobs):
            found = found or [_line(answered.model, saying([]))]
            found[0] |= likely
        told = yield found
    found = lines(told, is_call_open=False)
    found.append(_line(answered.model, saying([]), is_end=True) | _end(told))
    found[0] |= _likely(answered, told.logprobs)
    yield found


def _whole(saying: _Saying, several: Sequence[Answered], ends: Sequence[Ended]) -> Event:
    [answered], [end] = several, ends
    line = _line(answered.model, saying(joined(end.said)), is_end=True)
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


def _call(call: Call) -> Event:
    """A call as Ollama writes it."""
    arguments = json.loads(call.arguments)
    function = {"index": call.number, "name": call.name, "arguments": arguments}
    return {"function": function}


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)
