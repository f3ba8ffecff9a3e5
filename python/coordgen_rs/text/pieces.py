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

_LONG_CONTEXT, _LONGEST_CONTEXT = 2, 64
"""Tokens. Decoding takes a microsecond a token, and cutting the context takes one decoding more."""


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
        self._before = ""  # its text
        self._waiting: list[int] = []

    def __call__(self, token_id: int) -> str:
        """Take the next token; return the text that is now certain, maybe none."""
        self._waiting.append(token_id)
        taken = self._waiting
        whole = self._decode(self._context + taken)
        if whole.endswith(_BROKEN) and _BROKEN in self._decode([token_id]):
            if len(taken) < _MOST_WAITING:
                return ""
            taken = taken[:1]
            whole = self._decode(self._context + taken)
        self._waiting = self._waiting[len(taken) :]
        return self._given(taken, whole)

    def _given(self, taken: list[int], whole: str) -> str:
        """The text of tokens, which become context; `whole` is that of the context and them."""
        if not whole.startswith(self._before):  # taken back: they are read alone
            self._context, self._before = taken, self._decode(taken)
            return self._before
        text = whole[len(self._before) :]
        if text and len(self._context) >= _LONG_CONTEXT:
            self._context, self._before = taken, self._decode(taken)
        elif text or len(self._context) < _LONGEST_CONTEXT:
            self._context, self._before = self._context + taken, whole
        return text
