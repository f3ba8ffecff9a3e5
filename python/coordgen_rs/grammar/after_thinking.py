"""A grammar for what a model says behind its thinking, which is free.

In: the tokens given out, and paths of drafts behind them. Out: what a `Matcher` gives. While the
model thinks, every token may follow but those that end an answer; the grammar begins behind the
mark that ends thinking, or with the first token, where the model does not think.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.grammar.matcher import Matcher

_WORD_BITS = 32
_TAIL = 24
"""Tokens in which the mark that ends thinking is looked for, where it has several."""


class Marks(NamedTuple):
    """The marks around thinking, as tokens.

    Attributes:
        begin: Those that begin it; none where the prompt has done so.
        is_open: Whether the prompt has begun it.
        end: Those that end it.
        header: Those before an answer without thinking.
        after: Those between thinking and the answer.
        gap: A token of white space that may stand there.
        is_end: Whether some tokens have the text of the end in them.
    """

    begin: tuple[int, ...]
    is_open: bool
    end: tuple[int, ...]
    header: tuple[int, ...]
    after: tuple[int, ...]
    gap: int | None
    is_end: Callable[[Sequence[int]], bool]


class _At(NamedTuple):
    """How far an answer is: `phase`, and what the next token's meaning depends on."""

    phase: str  # "start", "thinking", "after", "gap" or "answer"
    tokens: tuple[int, ...] = ()


class AfterThinkingMatcher(Matcher):
    """Follows thinking, and then a grammar.

    Args:
        inner: Follows the grammar; used by this matcher alone.
        marks: The marks around thinking.
        end_token_ids: Tokens that end an answer.
    """

    def __init__(self, inner: Matcher, marks: Marks, end_token_ids: Sequence[int]) -> None:
        self.vocab_size = inner.vocab_size
        self.words = np.zeros_like(inner.words)
        self._inner, self._marks, self._ends = inner, marks, frozenset(end_token_ids)
        self._idle, self._own_bytes = [self], inner.num_bytes
        free = np.ones(len(self.words) * _WORD_BITS, bool)
        free[self.vocab_size :] = False
        free[[token for token in self._ends if token < self.vocab_size]] = False
        self._free = np.packbits(free, bitorder="little").view(np.uint32)
        self.begin(ignore_eos=True)

    def begin(self, *, ignore_eos: bool = False) -> None:
        """Start an answer; same as in `Matcher`."""
        self._inner.begin(ignore_eos=ignore_eos)
        self._inner.after([])
        self._first: NDArray[np.uint32] = self._inner.words.copy()
        self._at = _At("thinking" if self._marks.is_open else "start")

    def another(self) -> Matcher:
        """Make another matcher of the same grammar."""
        return AfterThinkingMatcher(self._inner.another(), self._marks, [*self._ends])

    def forced(self, path: list[int]) -> list[int]:
        """The tokens after `path` of which each is the only one allowed; none while it thinks."""
        return self._inner.forced(path) if self._at.phase == "answer" else []

    def possible(self, tokens: list[int], parents: list[int]) -> list[bool]:
        """Which nodes of a tree may be allowed; same as in `Matcher`."""
        if self._at.phase == "answer":
            return self._inner.possible(tokens, parents)
        possible = [True]
        for token, parent in zip(tokens[1:], parents[1:], strict=True):
            possible.append(possible[parent] and token not in self._ends)
        return possible

    def after(self, path: list[int]) -> bool:
        """Fill `words` with what may follow `path`; same as in `Matcher`."""
        at, answer = self._walked(path)
        if at.phase == "answer":
            is_complete = self._inner.after(answer)
            np.copyto(self.words, self._inner.words)
            return is_complete
        np.copyto(self.words, self._free if at.phase == "thinking" else 0)
        for token in self._next_marks(at):
            word, bit = divmod(token, _WORD_BITS)
            self.words[word] |= np.uint32(1 << bit)
        if self._may_answer(at):
            self.words |= self._words_behind(at.tokens)
        return False

    def extend(self, tokens: list[int]) -> bool:
        """Take the tokens that were given out; same as in `Matcher`."""
        self._at, answer = self._walked(tokens)
        return self._at.phase == "answer" and self._inner.extend(answer)

    def _walked(self, path: Sequence[int]) -> tuple[_At, list[int]]:
        """Where a path leads, and those of its tokens that are the answer's."""
        at = self._at
        for number, token in enumerate(path):
            if at.phase == "answer":
                return at, [*path[number:]]
            at = self._after(at, token)
            if at.phase == "answer" and at.tokens:  # these are the answer's first
                return _At("answer"), [*at.tokens, *path[number + 1 :]]
        return at, []

    def _after(self, at: _At, token: int) -> _At:
        marks, tokens = self._marks, (*at.tokens, token)
        if at.phase == "thinking":
            return self._thought(tokens)
        if at.phase == "gap":
            is_gap = token == marks.gap and not self._is_first(token)
            return _At("answer") if is_gap else _At("answer", tokens)
        if at.phase == "after":
            return _At("answer") if tokens == marks.after else _At("after", tokens)
        if marks.begin[: len(tokens)] == tokens:
            return _At("thinking") if tokens == marks.begin else _At("start", tokens)
        if marks.header:
            return _At("answer") if tokens == marks.header else _At("start", tokens)
        return _At("answer", tokens)

    def _thought(self, tokens: tuple[int, ...]) -> _At:
        end = self._marks.end
        is_over = tokens[-1:] == end if len(end) == 1 else self._marks.is_end(tokens)
        if not is_over:
            return _At("thinking", tokens[-_TAIL:] if len(end) > 1 else ())
        return _At("after" if self._marks.after else "gap")

    def _next_marks(self, at: _At) -> list[int]:
        """Tokens of marks that may come next."""
        marks, num = self._marks, len(at.tokens)
        if at.phase == "gap":
            return [] if marks.gap is None else [marks.gap]
        sequences = {"start": (marks.begin, marks.header), "after": (marks.after,)}
        return [
            sequence[num]
            for sequence in sequences.get(at.phase, ())
            if len(sequence) > num and sequence[:num] == at.tokens
        ]

    def _may_answer(self, at: _At) -> bool:
        """Whether the answer may have begun, with the tokens `at` if there are any."""
        return at.phase == "gap" or (at.phase == "start" and not self._marks.header)

    def _words_behind(self, tokens: tuple[int, ...]) -> NDArray[np.uint32]:
        """What the grammar allows behind the answer's first tokens; nothing if not these."""
        if not tokens:
            return self._first
        path = [*tokens]
        if not self._inner.allows(path):
            return np.zeros_like(self._first)
        self._inner.after(path)
        return self._inner.words

    def _is_first(self, token: int) -> bool:
        """Whether the grammar may begin with a token."""
        word, bit = divmod(token, _WORD_BITS)
        return bool(self._first[word] >> np.uint32(bit) & np.uint32(1))
