"""OpenAI's chats and completions: one object, or the chunks of a stream, with one answer or more.

In: what a model says. Out: objects for JSON, with the figures of `timings.py`. Where a request has
several answers, each choice has its figures beside its text, and the prompt counts once.
"""

import secrets
import time
from collections import Counter
from collections.abc import Generator, Sequence

from coordgen_rs.files.version import package_version
from coordgen_rs.generation.logprobs import TokenLogprob
from coordgen_rs.server.answers.dialect import Answered, Dialect, Event, Writing
from coordgen_rs.server.answers.logprobs import CompletionLogprobs, entries
from coordgen_rs.server.answers.reader import Delta, Ended
from coordgen_rs.server.answers.timings import StepFigures, figures, usage
from coordgen_rs.server.tools.calls import AnswerEvent, Call, Content, Thought

_FINGERPRINT = f"coordgen-{package_version()}"
_OF_CHOICE = ("timings", "metrics", "coordgen")
"""What stands beside a choice's text where there are several."""


class _Objects:
    """What the objects of one answer have in common, whole or streamed."""

    def __init__(self, answered: Answered, index: int = 0) -> None:
        request = answered.request
        self._request, self._index = request, index
        self.is_chat, self.head = request.kind == "chat", _head(answered)
        self._lists = None if request.spelling is None else CompletionLogprobs(request.spelling)

    def chunk(
        self,
        said: Event | None,
        reason: str | None = None,
        likely: Sequence[TokenLogprob] = (),
    ) -> Event:
        """A chunk with a choice; None for a chunk without."""
        choices = [] if said is None else [self.choice(said, reason, likely)]
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        chunk = {"object": kind} | self.head | {"choices": choices}
        return chunk | {"usage": None} if self._request.with_usage else chunk

    def choice(self, said: Event, reason: str | None, likely: Sequence[TokenLogprob]) -> Event:
        """A choice, with how likely its tokens were."""
        return (
            {"index": self._index}
            | said
            | {"logprobs": self._told(likely), "finish_reason": reason}
        )

    def _told(self, likely: Sequence[TokenLogprob]) -> Event | None:
        if self._request.spelling is None or self._lists is None or not likely:
            return None
        if not self.is_chat:
            return self._lists.told(likely)
        return {"content": entries(likely, self._request.spelling), "refusal": None}

    @property
    def nothing(self) -> Event:
        """The part of a choice that holds no text."""
        return {"delta": {}} if self.is_chat else {"text": ""}

    def delta(self, found: Sequence[AnswerEvent]) -> Event | None:
        """The part of a choice that holds what is new; None where nothing is."""
        text = "".join(one.text for one in found if isinstance(one, Content))
        if not self.is_chat:
            return {"text": text} if text else None
        delta = _thinking(found)
        if text:
            delta["content"] = text
        if calls := [_call(one) | {"index": one.number} for one in _joined(found)]:
            delta["tool_calls"] = calls
        return {"delta": delta} if delta else None


def _stream(answered: Answered, index: int = 0, head: Event | None = None) -> Writing:
    """The chunks of an answer, usage excepted."""
    request, objects = answered.request, _Objects(answered, index)
    objects.head = head or objects.head
    own = StepFigures(answered)
    opening: Event | None = (
        {"delta": {"role": "assistant", "content": ""}} if objects.is_chat else None
    )
    if opening is None and request.echoed:
        opening = {"text": request.echoed}
    told = yield [] if opening is None else [objects.chunk(opening)]
    while isinstance(told, Delta):
        said, gain = objects.delta(told.said), told.gain
        if said is None and not (gain.token_ids and (own.is_wanted or told.logprobs)):
            told = yield []
            continue
        chunk = objects.chunk(said or objects.nothing, None, told.logprobs)
        if request.with_token_ids:
            chunk["choices"][0]["token_ids"] = gain.token_ids
        if mine := own.of(gain):
            chunk["coordgen"] = mine
        told = yield [chunk]
    said = objects.delta(told.said)
    last = objects.chunk(objects.nothing, told.reason)
    chunks = [last | figures(answered, told, is_whole=False)]
    if said is not None or told.logprobs:
        chunks.insert(0, objects.chunk(said or objects.nothing, None, told.logprobs))
    yield chunks


def _whole(answered: Answered, end: Ended, index: int = 0) -> Event:
    """An answer as one object."""
    request, objects, answer = answered.request, _Objects(answered, index), end.answer
    if objects.is_chat:
        said: Event = {"message": _message(end.said)}
    else:
        said = {"text": request.echoed + answer.text}
    choice = objects.choice(said, end.reason, end.logprobs)
    if request.with_token_ids:
        choice["token_ids"] = answer.token_ids
    kind = "chat.completion" if objects.is_chat else "text_completion"
    return (
        {"object": kind}
        | objects.head
        | {"choices": [choice], "usage": usage(request, answer)}
        | figures(answered, end, is_whole=True)
    )


def stream(answered: Answered) -> Writing:
    """The chunks of an answer, with usage where it is asked for."""
    writing = _stream(answered)
    told = yield next(writing)
    while isinstance(told, Delta):
        told = yield writing.send(told)
    chunks = writing.send(told)
    if answered.request.with_usage:
        chunks.append(_used(chunks[0], usage(answered.request, told.answer)))
    yield chunks


def stream_of_several(
    answered: Sequence[Answered],
) -> Generator[list[Event], tuple[int, Delta | Ended], None]:
    """The chunks of several answers to one request; what comes is told with its choice."""
    head, usages = _head(answered[0]), dict[int, Event]()
    writings = [_stream(one, index, head) for index, one in enumerate(answered)]
    chunks = [chunk for writing in writings for chunk in next(writing)]
    while True:
        choice, told = yield chunks
        chunks = [_beside_text(chunk) for chunk in writings[choice].send(told)]
        request = answered[choice].request
        if isinstance(told, Ended):
            usages[choice] = usage(request, told.answer)
            if request.with_usage and len(usages) == len(answered):
                all_used = summed([usages[number] for number in sorted(usages)])
                chunks.append(_used(chunks[0], all_used))


def whole_of_several(answered: Sequence[Answered], ends: Sequence[Ended]) -> Event:
    """Several answers to one request as one object."""
    wholes = [
        _whole(one, end, index) for index, (one, end) in enumerate(zip(answered, ends, strict=True))
    ]
    usages = [whole["usage"] for whole in wholes]
    choices = [_beside_text(whole)["choices"][0] for whole in wholes]
    return wholes[0] | {"choices": choices, "usage": summed(usages)}


OPENAI = Dialect(stream, _whole, last="data: [DONE]\n\n")


def _head(answered: Answered) -> Event:
    """What all chunks of a stream have in common."""
    prefix = "chatcmpl" if answered.request.kind == "chat" else "cmpl"
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": answered.model,
        "system_fingerprint": _FINGERPRINT,
    }


def _used(like: Event, told: Event) -> Event:
    """The chunk that tells the usage of a whole stream."""
    kept = ("object", "id", "created", "model", "system_fingerprint")
    return {name: like[name] for name in kept} | {"choices": [], "usage": told}


def _message(found: Sequence[AnswerEvent]) -> Event:
    """What a model said, with the parts of each call put together."""
    text = "".join(one.text for one in found if isinstance(one, Content))
    calls = [_call(one) for one in _joined(found)]
    message: Event = {"role": "assistant", "content": text, "refusal": None}
    message |= _thinking(found)
    return message | {"content": text or None, "tool_calls": calls} if calls else message


def _thinking(found: Sequence[AnswerEvent]) -> Event:
    """What a model thinks, as clients of llama.cpp and of vLLM read it; nothing if it does not."""
    thought = "".join(one.text for one in found if isinstance(one, Thought))
    return {"reasoning_content": thought, "reasoning": thought} if thought else {}


def _joined(found: Sequence[AnswerEvent]) -> list[Call]:
    """Calls, or their next parts, with what belongs to one call put together."""
    joined: list[Call] = []
    for one in found:
        if isinstance(one, Call) and one.name is None and joined:
            joined[-1] = joined[-1]._replace(arguments=joined[-1].arguments + one.arguments)
        elif isinstance(one, Call):
            joined.append(one)
    return joined


def _call(call: Call) -> Event:
    """A call as OpenAI writes it; of one that goes on, what is new."""
    if call.name is None:
        return {"function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def summed(usages: Sequence[Event]) -> Event:
    """The usage of several answers to one prompt, which counts once."""
    first = usages[0]
    num_new = sum(usage["completion_tokens"] for usage in usages)
    details = Counter[str]()
    for one in usages:
        details.update(one["completion_tokens_details"])
    return first | {
        "completion_tokens": num_new,
        "total_tokens": first["prompt_tokens"] + num_new,
        "completion_tokens_details": {
            name: details[name] for name in first["completion_tokens_details"]
        },
    }


def _beside_text(chunk: Event) -> Event:
    """An object or a chunk whose figures stand in its choice: each choice has its own."""
    told = {name: chunk.pop(name) for name in _OF_CHOICE if name in chunk}
    if told:
        chunk["choices"][0] |= told
    return chunk
