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
            text = self._text_of(one.token_id)
            start = len(self._text)
            self._ahead.append(_Ahead(one, start, start + len(text)))
            self._text += text
            if text:
                found += self._settled(self._reader.read(text))
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
        """The content's tokens among those ahead; all before the last that was said are done."""
        found: list[TokenLogprob] = []
        for number, one in enumerate(said):
            if isinstance(one, Call):
                self._is_in_content = False
                if number + 1 == len(said):
                    self._pass(len(self._text))
                continue
            # What stands before it are marks, which may have its letters, too.
            place = 0 if self._text.startswith(one.text) else self._text.rfind(one.text)
            end = max(place, 0) + len(one.text)
            self._is_in_content = isinstance(one, Content)
            if self._is_in_content:
                found += [it.told for it in self._ahead if it.start < end and _meets(it, place)]
            self._pass(end)
        return found

    def _pass(self, end: int) -> None:
        """Forget what begins before a place."""
        self._text = self._text[end:]
        self._ahead = [
            _Ahead(it.told, it.start - end, it.end - end) for it in self._ahead if it.start >= end
        ]


def _meets(token: _Ahead, place: int) -> bool:
    """Whether a token goes on beyond a place, or begins there."""
    return token.end > place or token.start == place
