"""Which tokens of an answer are its content: neither thinking, nor calls, nor the marks of either.

In: tokens, with how likely they were. Out: those of the content, once it is certain that they are.
The answer is read a token at a time here, as its text is elsewhere: what comes out as content is
looked for among the tokens that went in.
"""

from codecs import getincrementaldecoder
from collections.abc import Collection, Sequence
from typing import NamedTuple

from coordgen_rs.generation.logprobs import TokenLogprob
from coordgen_rs.server.answers.thinking import ThinkingReader
from coordgen_rs.server.tools.calls import AnswerEvent, Call, Content
from coordgen_rs.text.token_spelling import TokenSpelling


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
