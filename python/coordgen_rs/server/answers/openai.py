"""OpenAI's chats and completions: one object, or the chunks of a stream, with one answer or more.

In: what a model says. Out: objects for JSON. Where a request has several answers, each choice has
its figures beside its text, and the prompt counts once.
"""

import secrets
import time
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Sequence
from typing import Any

from coordgen_rs.errors.extras import package_version
from coordgen_rs.generation.logprobs import TokenLogprob
from coordgen_rs.server.answers.dialect import (
    LEAST_LOGPROB,
    Answered,
    Dialect,
    Event,
    StepFigures,
    Writing,
    entries,
    figures,
    usage,
)
from coordgen_rs.server.answers.reader import Delta, Ended
from coordgen_rs.server.tools.calls import AnswerEvent, Call, Content, Thought, joined, text_of
from coordgen_rs.text.token_bytes import TokenSpelling

_FINGERPRINT = f"coordgen-{package_version()}"


class _Choice:
    """One choice, whole or streamed.

    Args:
        answered: What is answered, for each choice.
        index: The number of this one.
        head: What all objects of the answer have in common.
    """

    def __init__(self, answered: Sequence[Answered], index: int, head: Event) -> None:
        self._answered, self._index, self._head = answered[index], index, head
        self._is_alone = len(answered) == 1
        request = self._request = self._answered.request
        self._is_chat, self._steps = request.kind == "chat", StepFigures(self._answered)
        self._lists = None if request.spelling is None else CompletionLogprobs(request.spelling)

    def opening(self) -> list[Event]:
        """The chunks before the first text."""
        if self._is_chat:
            return [self._chunk({"delta": {"role": "assistant", "content": ""}})]
        echoed = self._request.echoed
        return [self._chunk({"text": echoed})] if echoed else []

    def chunks(self, told: Delta) -> list[Event]:
        """The chunks of what is new with a step."""
        said, gain = self._delta(told.said), told.gain
        is_told = gain.token_ids and (self._steps.is_wanted or told.logprobs)
        if said is None and not is_told:
            return []
        chunk = self._chunk(said or self._nothing, told.logprobs)
        if self._request.with_token_ids:
            chunk["choices"][0]["token_ids"] = gain.token_ids
        if own := self._steps.of(gain):
            self._add(chunk, {"coordgen": own})
        return [chunk]

    def last(self, told: Ended) -> list[Event]:
        """The chunks of the end, usage excepted."""
        said = self._delta(told.said)
        last = self._chunk(self._nothing, (), told.reason)
        self._add(last, figures(self._answered, told, is_whole=False))
        if said is None and not told.logprobs:
            return [last]
        return [self._chunk(said or self._nothing, told.logprobs), last]

    def whole(self, told: Ended) -> Event:
        """The answer as one object."""
        text = self._request.echoed + told.answer.text
        said = {"message": _message(told.said)} if self._is_chat else {"text": text}
        choice = self._choice(said, told.logprobs, told.reason)
        if self._request.with_token_ids:
            choice["token_ids"] = told.answer.token_ids
        kind = "chat.completion" if self._is_chat else "text_completion"
        used = usage(self._request, told.answer)
        whole = {"object": kind} | self._head | {"choices": [choice], "usage": used}
        self._add(whole, figures(self._answered, told, is_whole=True))
        return whole

    def _add(self, like: Event, told: Event) -> None:
        """Add figures to an object: beside the text where there are several choices."""
        (like if self._is_alone else like["choices"][0]).update(told)

    def _chunk(
        self, said: Event, likely: Sequence[TokenLogprob] = (), reason: str | None = None
    ) -> Event:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        chunk = {"object": kind} | self._head | {"choices": [self._choice(said, likely, reason)]}
        return chunk | {"usage": None} if self._request.with_usage else chunk

    def _choice(self, said: Event, likely: Sequence[TokenLogprob], reason: str | None) -> Event:
        told = {"logprobs": self._likely(likely), "finish_reason": reason}
        return {"index": self._index} | said | told

    def _likely(self, likely: Sequence[TokenLogprob]) -> Event | None:
        if self._request.spelling is None or self._lists is None or not likely:
            return None
        if not self._is_chat:
            return self._lists.told(likely)
        return {"content": entries(likely, self._request.spelling), "refusal": None}

    @property
    def _nothing(self) -> Event:
        """The part of a choice that holds no text."""
        return {"delta": {}} if self._is_chat else {"text": ""}

    def _delta(self, found: Sequence[AnswerEvent]) -> Event | None:
        """The part of a choice that holds what is new; None where nothing is."""
        text = text_of(found, Content)
        if not self._is_chat:
            return {"text": text} if text else None
        delta = _thinking(found) | ({"content": text} if text else {})
        if calls := _calls(found):
            delta["tool_calls"] = [_call(one) | {"index": one.number} for one in calls]
        return {"delta": delta} if delta else None


def _stream(answered: Sequence[Answered]) -> Writing:
    head, usages = _head(answered[0]), dict[int, Event]()
    choices = [_Choice(answered, index, head) for index in range(len(answered))]
    chunks = [chunk for choice in choices for chunk in choice.opening()]
    while True:
        told = yield chunks
        if isinstance(told, Delta):
            chunks = choices[told.choice].chunks(told)
            continue
        chunks, request = choices[told.choice].last(told), answered[told.choice].request
        usages[told.choice] = usage(request, told.answer)
        if request.with_usage and len(usages) == len(answered):
            used = {"choices": [], "usage": summed([usages[at] for at in sorted(usages)])}
            chunks.append({"object": chunks[0]["object"]} | head | used)


def _whole(answered: Sequence[Answered], ends: Sequence[Ended]) -> Event:
    head = _head(answered[0])
    wholes = [_Choice(answered, end.choice, head).whole(end) for end in ends]
    choices = [choice for whole in wholes for choice in whole["choices"]]
    return wholes[0] | {"choices": choices, "usage": summed([one["usage"] for one in wholes])}


OPENAI = Dialect(_stream, _whole, last="data: [DONE]\n\n")


def _head(answered: Answered) -> Event:
    """What all objects of an answer have in common."""
    prefix = "chatcmpl" if answered.request.kind == "chat" else "cmpl"
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": answered.model,
        "system_fingerprint": _FINGERPRINT,
    }


def _message(found: Sequence[AnswerEvent]) -> Event:
    """What a model said, with the parts of each call put together."""
    text, calls = text_of(found, Content), [_call(one) for one in _calls(found)]
    message: Event = {"role": "assistant", "content": text, "refusal": None} | _thinking(found)
    return message | {"content": text or None, "tool_calls": calls} if calls else message


def _thinking(found: Sequence[AnswerEvent]) -> Event:
    """What a model thinks, as clients of llama.cpp and of vLLM read it; nothing if it does not."""
    thought = text_of(found, Thought)
    return {"reasoning_content": thought, "reasoning": thought} if thought else {}


def _calls(found: Sequence[AnswerEvent]) -> list[Call]:
    return [one for one in joined(found) if isinstance(one, Call)]


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


class CompletionLogprobs:
    """The lists of a completion: of a stream, those of what is new in each chunk.

    Args:
        spelling: How tokens are spelt.
    """

    def __init__(self, spelling: TokenSpelling) -> None:
        self._spelling, self._offset = spelling, 0
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def told(self, told: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The lists for the next tokens; the token itself is always among the alternatives."""
        return {
            "tokens": [self._text(one.token_id) for one in told],
            "token_logprobs": [max(one.logprob, LEAST_LOGPROB) for one in told],
            "top_logprobs": [self._top(one) for one in told],
            "text_offset": [self._start(one.token_id) for one in told],
        }

    def _start(self, token_id: int) -> int:
        """Where a token's text starts: behind the characters that are whole before it."""
        start = self._offset
        if not self._spelling.is_special(token_id):
            self._offset += len(self._decoder.decode(self._spelling.bytes_of(token_id)))
        return start

    def _top(self, one: TokenLogprob) -> dict[str, float]:
        top = dict[str, float]()
        for token_id, logprob in one.top:
            # Two tokens may share a text, as a byte and its character: the likelier one stays.
            top.setdefault(self._text(token_id), max(logprob, LEAST_LOGPROB))
        return top | {self._text(one.token_id): max(one.logprob, LEAST_LOGPROB)}

    def _text(self, token_id: int) -> str:
        """A token's text; one of no whole characters by its bytes, as OpenAI writes them."""
        spelt = self._spelling.bytes_of(token_id)
        try:
            return spelt.decode()
        except UnicodeDecodeError:
            return "bytes:" + spelt.decode("ascii", "backslashreplace")
