"""What a model says, read once: thinking, text and calls, with how likely the text's tokens were.

In: the steps of one answer, and the answer. Out: the same as parts, for whatever dialect writes
them. Marks of thinking are left out, and so is white space around them. Models with tags think
before they answer; gpt-oss says each thing in a channel of its own, which `harmony.py` reads. Which
tokens are the content's is found by reading the answer a second time, a token at a time: what comes
out as content is looked for among the tokens that went in.
"""

from codecs import getincrementaldecoder
from collections.abc import Collection, Generator, Sequence
from typing import NamedTuple

from coordgen_rs.model.answer import Answer, StepDelta, TokenLogprob
from coordgen_rs.server.dialects.request import Request
from coordgen_rs.server.tools.calls import (
    AnswerEvent,
    Call,
    CallReader,
    Content,
    Thought,
    begun_len,
)
from coordgen_rs.server.tools.formats import call_reader
from coordgen_rs.server.tools.harmony import HarmonyReader
from coordgen_rs.text.thinking import CHANNELS, Thinking
from coordgen_rs.text.token_bytes import TokenSpelling


class ThinkingReader:
    """Reads one answer.

    Args:
        thinking: How it may think; None for an answer that does not.
        calls: Reads the rest.
    """

    def __init__(self, thinking: Thinking | None, calls: CallReader) -> None:
        self._calls, self._thinks = calls, thinking is not None
        self._thoughts = CallReader()  # for which all is content
        if thinking is not None and thinking.marks is not CHANNELS:
            self._thoughts = _Tags(thinking)
        elif thinking is not None and not isinstance(calls, HarmonyReader):
            self._thoughts = HarmonyReader({})

    @property
    def num_calls(self) -> int:
        """Calls found so far."""
        return self._calls.num_calls

    @property
    def num_held(self) -> int:
        """How many of the last characters are neither told nor left out yet."""
        return len(self._calls.ahead) + len(self._thoughts.ahead)

    @property
    def is_open(self) -> bool:
        """Whether a call has begun that has not ended."""
        return self._calls.is_open

    def read(self, text: str) -> list[AnswerEvent]:
        """What is certain with this piece of text."""
        return self._behind(self._thoughts.read(text))

    def end(self, *, is_cut: bool = False) -> list[AnswerEvent]:
        """What is left at the end of the answer; `is_cut` as in `CallReader`."""
        left = self._behind(self._thoughts.end())
        return left + self._told(self._calls.end(is_cut=is_cut))

    def _behind(self, parts: list[AnswerEvent]) -> list[AnswerEvent]:
        """Thoughts, and what the calls' reader makes of the rest."""
        found: list[AnswerEvent] = []
        for one in parts:
            found += self._told(self._calls.read(one.text)) if isinstance(one, Content) else [one]
        return found

    def _told(self, found: list[AnswerEvent]) -> list[AnswerEvent]:
        """What the calls' reader tells; thoughts that it finds are text where none are wanted."""
        if self._thinks:
            return found
        return [Content(one.text) if isinstance(one, Thought) else one for one in found]


class _Tags(CallReader):
    """Reads thinking between two marks, at the beginning of an answer, or also within it."""

    def __init__(self, thinking: Thinking) -> None:
        super().__init__()
        self._marks, self._is_thinking = thinking.marks, thinking.is_open

    def _answer(self) -> Generator[None]:
        begin = self._marks.begin
        while not self._is_thinking:
            said = self.ahead.lstrip()
            self._is_thinking = said.startswith(begin)
            if self._is_thinking:
                self.ahead = said[len(begin) :]
            elif self._is_over or not begin.startswith(said):
                break
            else:
                yield
        while True:
            if self._is_thinking:
                yield from self._thought()
            yield from self._text()

    def _thought(self) -> Generator[None]:
        """Read thinking and its end mark, with the white space around it."""
        end, has_thought = self._marks.end, False
        while True:
            said, mark, behind = self.ahead.partition(end)
            kept = 0 if mark or self._is_over else begun_len(said, end)
            certain = said[: len(said) - kept].rstrip()
            shown = certain if has_thought else certain.lstrip()
            self._tell(Thought, shown)
            has_thought = has_thought or bool(shown)
            self.ahead = behind if mark else self.ahead[len(certain) :]
            if mark:
                break
            yield
        while not (said := self.ahead.lstrip()):
            self.ahead = said
            yield
        self.ahead, self._is_thinking = said, False

    def _text(self) -> Generator[None]:
        """Read text up to the next thinking, if there may be more."""
        begin = self._marks.begin if self._marks.is_repeated else ""
        while not self._is_thinking:
            place = self.ahead.find(begin) if begin else -1
            kept = 0 if self._is_over else begun_len(self.ahead, begin)
            self._tell(Content, self.take(place if place >= 0 else len(self.ahead) - kept))
            self._is_thinking = place >= 0
            if self._is_thinking:
                self.take(len(begin))
            else:
                yield


LONG_ANSWER = 200
"""Tokens from which on an answer is put together in a thread: with trees, a megabyte or more."""

_FINISH = {"stop": "stop", "length": "length", "capacity": "length", "grammar": "stop"}


class Delta(NamedTuple):
    """What is certain with a step.

    Attributes:
        events: Thinking, text and calls, in order.
        logprobs: How likely the text's tokens were, as far as they are certain.
        gain: The step.
        is_call_open: Whether a call goes on.
        choice: The number of the choice that it is of.
    """

    events: list[AnswerEvent]
    logprobs: Sequence[TokenLogprob]
    gain: StepDelta
    is_call_open: bool
    choice: int = 0


class Ended(NamedTuple):
    """The end of an answer.

    Attributes:
        events: What is left; of an answer that is written whole, all of it.
        logprobs: The same.
        answer: The answer.
        reason: "stop", "length" or "tool_calls".
        queued_s: Seconds that it waited for its turn.
        gains: Its steps, where an answer that is written whole shows them.
        choice: The number of the choice that it is.
    """

    events: list[AnswerEvent]
    logprobs: Sequence[TokenLogprob]
    answer: Answer
    reason: str
    queued_s: float
    gains: Sequence[StepDelta] = ()
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
        is_told = request.options["logprobs"] is not None
        if is_told and (request.thinking or request.calling):
            shown = request.options.get("special_tokens", ())
            self._content = ContentTokens(reader(), request.tokenizer.spelling, shown)

    def read(self, gain: StepDelta) -> Delta:
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

    def whole(self, answer: Answer, queued_s: float, gains: Sequence[StepDelta]) -> Ended:
        """All that an answer says; `gains` are its steps, where they are to be shown."""
        first, told = self._said.read(answer.text), answer.logprobs or ()
        likely = told if self._content is None else self._content.read(told)
        end = self.end(answer, queued_s)
        return end._replace(
            events=[*first, *end.events], logprobs=[*likely, *end.logprobs], gains=gains
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
