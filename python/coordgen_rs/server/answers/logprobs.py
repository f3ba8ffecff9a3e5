"""How likely the tokens of an answer were, in OpenAI's two shapes.

In: records of tokens, as steps tell them. Out: objects for JSON: entries of `content`, as chats and
responses have them, or the lists of the older completions. Each token comes once, also one that
adds no text, such as an end token.
"""

from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from typing import Any

from coordgen_rs.generation.logprobs import TokenLogprob
from coordgen_rs.text.token_spelling import TokenSpelling

_LEAST = -9999.0
"""What OpenAI has for what is so unlikely that nothing else is known; JSON has no infinity."""


def entries(told: Iterable[TokenLogprob], spelling: TokenSpelling) -> list[dict[str, Any]]:
    """What chats and responses tell: an entry for each token, with its alternatives."""
    return [
        _entry(one.token_id, one.logprob, spelling)
        | {"top_logprobs": [_entry(*other, spelling) for other in one.top]}
        for one in told
    ]


def _entry(token_id: int, logprob: float, spelling: TokenSpelling) -> dict[str, Any]:
    spelt = spelling.bytes_of(token_id)
    return {"token": _text(spelt), "logprob": max(logprob, _LEAST), "bytes": [*spelt]}


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
            "token_logprobs": [max(one.logprob, _LEAST) for one in told],
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
            top.setdefault(self._text(token_id), max(logprob, _LEAST))
        return top | {self._text(one.token_id): max(one.logprob, _LEAST)}

    def _text(self, token_id: int) -> str:
        """A token's text; one of no whole characters by its bytes, as OpenAI writes them."""
        spelt = self._spelling.bytes_of(token_id)
        try:
            return spelt.decode()
        except UnicodeDecodeError:
            return "bytes:" + spelt.decode("ascii", "backslashreplace")


def _text(spelt: bytes) -> str:
    return spelt.decode(errors="replace")
