"""What a model says, read once: thinking, text and calls, with how likely the text's tokens were.

In: the steps of one answer, and the answer. Out: the same as parts, for whatever dialect writes
them. Which tokens are the content's is found by reading the answer a second time, a token at a
time: what comes out as content is looked for among the tokens that went in.
"""

import asyncio
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import NamedTuple

from coordgen_rs.generation.logprobs import TokenLogprob
from coordgen_rs.model.answer import Answer, Gain
from coordgen_rs.model.stream import Stream, wake
from coordgen_rs.server.answers.thinking import ThinkingReader
from coordgen_rs.server.requests.record import Request
from coordgen_rs.server.tools.calls import AnswerEvent, Call, Content
from coordgen_rs.server.tools.formats import call_reader
from coordgen_rs.text.token_bytes import TokenSpelling

LONG_ANSWER = 200
"""Tokens from which on an answer is put together in a thread: with trees, a megabyte or more."""

_MOST_AT_ONCE = 64
"""Steps that are read before others go on, where an answer is ahead of its reader."""

_FINISH = {"stop": "stop", "length": "length", "capacity": "length", "grammar": "stop"}


class Delta(NamedTuple):
    """What is certain with a step.

    Attributes:
        said: Thinking, text and calls, in order.
        logprobs: How likely the text's tokens were, as far as they are certain.
        gain: The step.
        is_call_open: Whether a call goes on.
        choice: The number of the choice that it is of.
    """

    said: list[AnswerEvent]
    logprobs: Sequence[TokenLogprob]
    gain: Gain
    is_call_open: bool
    choice: int = 0


class Ended(NamedTuple):
    """The end of an answer.

    Attributes:
        said: What is left; of an answer that is written whole, all of it.
        logprobs: The same.
        answer: The answer.
        reason: "stop", "length" or "tool_calls".
        queued_s: Seconds that it waited for its turn.
        gains: Its steps, where an answer that is written whole shows them.
        choice: The number of the choice that it is.
    """

    said: list[AnswerEvent]
    logprobs: Sequence[TokenLogprob]
    answer: Answer
    reason: str
    queued_s: float
    gains: Sequence[Gain] = ()
    choice: int = 0


class AnswerReader:
    """Reads one answer.

    Args:
        request: What was asked for.
        choice: The number of the choice that the answer is.
    """

    def __init__(self, request: Request, choice: int = 0) -> None:
        def reader() -> ThinkingReader:
            return ThinkingReader(request.thinking, call_reader(request.calling))

        self._said, self._content, self._choice = reader(), None, choice
        if request.spelling is not None and (request.thinking or request.calling):
            shown = request.options.get("special_tokens", ())
            self._content = ContentTokens(reader(), request.spelling, shown)

    def read(self, gain: Gain) -> Delta:
        """What is certain with a step."""
        said = self._said.read("".join(piece.text for piece in gain.pieces))
        likely = gain.logprobs if self._content is None else self._content.read(gain.logprobs)
        return Delta(said, likely, gain, self._said.is_open, self._choice)

    def end(self, answer: Answer, queued_s: float) -> Ended:
        """What is left at the end of the answer, all of whose steps were read."""
        finish = _FINISH.get(answer.finish_reason or "", "stop")
        is_cut = finish == "length" or answer.stats.stop_string is not None
        said = self._said.end(is_cut=is_cut)
        likely = [] if self._content is None else self._content.end(is_cut=is_cut)
        if finish == "stop" and self._said.num_calls:  # one that a stop string cuts is not whole
            finish = "length" if self._said.is_open else "tool_calls"
        return Ended(said, likely, answer, finish, queued_s, (), self._choice)

    def whole(self, answer: Answer, queued_s: float, gains: Sequence[Gain]) -> Ended:
        """All that an answer says; `gains` are its steps, where they are to be shown."""
        first, told = self._said.read(answer.text), answer.logprobs or ()
        likely = told if self._content is None else self._content.read(told)
        end = self.end(answer, queued_s)
        return end._replace(
            said=[*first, *end.said], logprobs=[*likely, *end.logprobs], gains=gains
        )


class _Ahead(NamedTuple):
    """A token of which it is not known yet what it is part of; characters, half open."""

    told: TokenLogprob
    start: int
    end: int


class ContentTokens:
    """Reads one answer.

    Args:
        reader: Tells thinking, content and calls apart.
        spelling: How tokens are spelt.
        shown: Special tokens that are part of the text.
    """

    def __init__(
        self, reader: ThinkingReader, spelling: TokenSpelling, shown: Collection[str]
    ) -> None:
        self._reader, self._spelling = reader, spelling
        self._shown = {mark.encode() for mark in shown}
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._text, self._ahead = "", list[_Ahead]()
        self._is_in_content = True  # where the last that is certain is

    def read(self, told: Sequence[TokenLogprob]) -> list[TokenLogprob]:
        """Those of the content that are certain with these tokens."""
        found: list[TokenLogprob] = []
        for one in told:
            text, start = self._text_of(one.token_id), len(self._text)
            self._ahead.append(_Ahead(one, start, start + len(text)))
            for character in text:  # so that what is told is at the end of what is settled
                self._text += character
                found += self._settled(self._reader.read(character))
        return found

    def end(self, *, is_cut: bool) -> list[TokenLogprob]:
        """Those that are left at the end of the answer; `is_cut` as in `ThinkingReader`."""
        found = self._settled(self._reader.end(is_cut=is_cut))
        left, self._ahead = self._ahead, []
        # An end token has no text: it belongs to what it ends.
        ends = [one.told for one in left if self._is_in_content and one.start == one.end]
        return [*found, *ends]

    def _text_of(self, token_id: int) -> str:
        spelt = self._spelling.bytes_of(token_id)
        if self._spelling.is_special(token_id) and spelt not in self._shown:
            return ""
        return self._decoder.decode(spelt)

    def _settled(self, said: Sequence[AnswerEvent]) -> list[TokenLogprob]:
        """The content's tokens among those ahead; all before what the reader holds is settled."""
        end = len(self._text) - self._reader.num_held
        if not said and not end:  # as long as a call goes on
            return []
        place, contents = end, list[tuple[int, int]]()
        for one in reversed(said):
            if not isinstance(one, Call):
                place = max(self._text.rfind(one.text, 0, place), 0)
                if isinstance(one, Content):
                    contents.append((place, place + len(one.text)))
        if said:
            self._is_in_content = isinstance(said[-1], Content)
        found, left = list[TokenLogprob](), list[_Ahead]()
        for it in self._ahead:
            if any(_meets(it, *content) for content in contents):
                found.append(it.told)
            elif it.end > end or it.start >= end:
                left.append(it)
        self._text = self._text[end:]
        self._ahead = [_Ahead(it.told, it.start - end, it.end - end) for it in left]
        return found


def _meets(token: _Ahead, place: int, end: int) -> bool:
    """Whether a token has a character of a part of the text, or begins it without one."""
    return token.start < end and (token.end > place or token.start == place)


async def steps(stream: Stream) -> AsyncGenerator[Gain]:
    """The steps of an answer, each once it is made.

    The stream is closed at the end, or when the reader is cancelled.
    """
    news, num_steps = asyncio.Event(), 0
    wake(stream, news)
    with stream:
        while True:
            if num_steps % _MOST_AT_ONCE == 0:
                await asyncio.sleep(0)
            while not stream.is_step_ready:
                await news.wait()
                news.clear()
            gain = stream.step()
            if gain is None:
                return
            num_steps += 1
            yield gain
