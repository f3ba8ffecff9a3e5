"""Text of tokens that come one at a time: whole characters, each as soon as it is certain.

In: token ids in order. Out: text that joins to what decoding all of them at once gives. It keeps
only the few tokens that the next text can depend on, and never fails: a tokenizer may take back
what it said (byte fallback turns a run of bytes with a broken one into U+FFFD throughout), but what
has been given out stays.
"""

from collections.abc import Callable, Sequence

_BROKEN = "\ufffd"
_MOST_WAITING = 4
"""Tokens that a character can have: one a byte. The first of more is broken whatever follows."""

_MOST_CONTEXT = 8


class TextPieces:
    """The text of tokens, piece by piece.

    A character of several tokens comes with its last one. Bytes that are no character come as
    U+FFFD as soon as no token can complete them; at the end of the tokens they do not come at all.

    Args:
        decode: The text of some token ids at once.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []  # given out: what follows may be written otherwise after it
        self._waiting: list[int] = []

    def __call__(self, token_id: int) -> str:
        """Take the next token; return the text that is now certain, maybe none."""
        self._waiting.append(token_id)
        text = self._text_of(self._waiting)
        if text.endswith(_BROKEN) and _BROKEN in self._decode([token_id]):
            if len(self._waiting) < _MOST_WAITING:
                return ""
            text = self._text_of(self._waiting[:1])
            return self._given(text, 1)
        return self._given(text, len(self._waiting))

    def _text_of(self, token_ids: list[int]) -> str:
        """Their text after the context: a tokenizer drops the space before the first of all."""
        before = self._decode(self._context)
        whole = self._decode(self._context + token_ids)
        return whole[len(before) :] if whole.startswith(before) else self._decode(token_ids)

    def _given(self, text: str, num_tokens: int) -> str:
        taken, self._waiting = self._waiting[:num_tokens], self._waiting[num_tokens:]
        if text:
            self._context = taken
        elif len(self._context) < _MOST_CONTEXT:
            self._context += taken
        return text
