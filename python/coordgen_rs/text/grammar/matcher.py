"""One answer under a grammar: what may follow each of its tokens, also behind free thinking.

In: the tokens given out, and paths of drafts behind them. Out: forced tokens, drafts that may be
right, and a mask of allowed tokens for each row that the answer visits. It sees no logits. While a
model thinks, every token may follow but those that end an answer; the grammar begins behind the
mark that ends thinking, or with the first token, where the model does not think.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import thread_time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import GrammarError, UnsupportedGrammarError

_WORD_BITS = 32
LOOKING_S = 0.02
"""Time of the processor for the nodes of one tree; usual trees take a millisecond or two."""
_MOST_IDLE_BYTES = 16 << 20
"""What matchers of one grammar may take that are kept for answers beside each other."""
_COMPLETE = ("NoExtension", "NoExtensionBias", "EndOfSentence")
"""Why a grammar stops that has been followed to its end."""

_TAIL = 24
"""Tokens in which the mark that ends thinking is looked for, where it has several."""


class Matcher:
    """Follows a grammar through one answer after the other; `Vocabulary.matcher` makes it.

    The core calls it: a path is a list of tokens behind those given out. The state moves along
    paths and back as it is asked, by consuming and rolling back only the tokens in which they
    differ. End tokens never reach llguidance: after one, 1.9.1 rolls back a byte too far.

    Args:
        compile: Makes an `llguidance.LLMatcher` at the grammar's start.
        vocab_size: Columns of the target's logits.
        end_token_ids: Tokens that the grammar allows where an answer may end.
        has_end: Whether the target has them too.
        num_bytes: About what the grammar takes once it is compiled.

    Attributes:
        words: `(vocab_size / 32,) u32`, rounded up: bit `i % 32` of word `i / 32` is set where
            token `i` may follow the path that `after` was last asked about.
        vocab_size: The `vocab_size` argument.

    Raises:
        UnsupportedGrammarError: The grammar cannot be followed, or allows no token at all.
    """

    def __init__(
        self,
        compile: Callable[[], Any],
        vocab_size: int,
        end_token_ids: Sequence[int],
        *,
        has_end: bool,
        num_bytes: int = 0,
    ) -> None:
        self.vocab_size = vocab_size
        self.words = np.zeros(-(-vocab_size // _WORD_BITS), np.uint32)
        self._compile, self._own_bytes = compile, num_bytes
        self._matcher = self._fresh = compile()
        self._ends, self._has_end = frozenset(end_token_ids), has_end
        self._ahead: list[int] = []
        self._given: list[int] = []
        self._never_ends, self._looks_ahead = False, True
        self._idle = [self]  # matchers of this grammar that follow no answer
        self.begin(ignore_eos=True)
        try:
            self.after([])  # it can take as long as compiling, and is kept
        except GrammarError as error:  # no answer would begin
            raise UnsupportedGrammarError(str(error)) from error
        self._fresh = self._matcher.deep_copy()

    def begin(self, *, ignore_eos: bool = False) -> None:
        """Start an answer.

        Args:
            ignore_eos: End tokens are not allowed: the answer goes on as long as the grammar does.

        Raises:
            UnsupportedGrammarError: The grammar allows no token at all.
        """
        if self._matcher.is_error() or not self._matcher.reset():
            self._matcher = self._anew()
        self._ahead, self._given, self._looks_ahead = [], [], True
        self._never_ends = ignore_eos or not self._has_end
        if self._never_ends and self._is_complete():
            raise UnsupportedGrammarError(
                "the grammar allows no answer but the empty one: there is nothing to generate"
            )

    def another(self) -> "Matcher":
        """Make another matcher of the same grammar: each follows one answer at a time.

        A copy: it may be made within a step of other requests, where nothing may be compiled.
        """
        made = Matcher(
            self._fresh.deep_copy,
            self.vocab_size,
            [*self._ends],
            has_end=self._has_end,
            num_bytes=self._own_bytes,
        )
        made._compile = self._compile
        return made

    @property
    def num_bytes(self) -> int:
        """About what this matcher takes, and those that are kept beside it."""
        return self._own_bytes * max(1, len(self._idle))

    @contextmanager
    def lent(self) -> Iterator["Matcher"]:
        """This matcher, or another one where answers run beside each other, until the block ends.

        Small ones that were made are kept: what llguidance has worked out of a grammar stays there.
        """
        try:
            matcher = self._idle.pop()
        except IndexError:  # all follow answers of other requests
            matcher = self.another()
        try:
            yield matcher
        finally:
            if matcher is self or self.num_bytes <= _MOST_IDLE_BYTES:
                self._idle.append(matcher)

    def forced(self, path: list[int]) -> list[int]:
        """The tokens after `path` of which each is the only one allowed.

        None where it costs too much to go there.

        Raises:
            GrammarError: The grammar cannot go on.
        """
        if not (self._looks_ahead and self._ends.isdisjoint(path)):
            return []
        with suppress(GrammarError):  # plain decoding may end before it comes there
            self._move(path)
        forced = [] if self._matcher.is_stopped() else self._matcher.compute_ff_tokens()
        if self._matcher.is_error():
            self._look_no_further()
            return []
        return forced

    def possible(self, tokens: list[int], parents: list[int]) -> list[bool]:
        """Which nodes of a tree the grammar may allow, `(nodes,)`; the root always.

        Nodes that are too costly to look at are left out: they would only have saved a step.

        Args:
            tokens: The token of each node; the root's is not looked at.
            parents: The parent of each node, which comes before it.

        Raises:
            GrammarError: The grammar cannot go on.
        """
        self._move([])
        possible = [True] + [False] * (len(tokens) - 1)
        children: list[list[int]] = [[] for _ in tokens]
        for node in range(len(tokens) - 1, 0, -1):
            children[parents[node]].append(node)
        waiting = [(node, 0) for node in children[0]] if self._looks_ahead else []
        until_s = thread_time() + LOOKING_S
        while waiting and self._looks_ahead and thread_time() < until_s:
            node, depth = waiting.pop()
            token = tokens[node]
            if token in self._ends:  # it needs no row, as it is said after its parent
                continue
            self._go_back(depth)
            if not children[node]:
                possible[node] = self._matcher.validate_tokens([token]) == 1
            elif self._matcher.try_consume_tokens([token]):
                possible[node] = True
                self._ahead.append(token)
                waiting += [(child, depth + 1) for child in children[node]]
            if self._matcher.is_error():
                self._look_no_further()
        return possible

    def allows(self, path: list[int]) -> bool:
        """Whether the grammar allows `path`, which holds no end token then.

        Raises:
            GrammarError: The grammar cannot go on.
        """
        self._move([])
        num_valid = 0 if self._ends.intersection(path) else self._matcher.validate_tokens(path)
        return num_valid == len(path)

    def after(self, path: list[int]) -> bool:
        """Fill `words` with what may follow `path`.

        Returns:
            Whether the answer is complete there: only an end token may follow.

        Raises:
            GrammarError: The grammar does not allow the path, or cannot go on.
        """
        self._move(path)
        is_complete = self._is_complete()
        self._fill(may_end=is_complete or not self._never_ends)
        return is_complete

    def extend(self, tokens: list[int]) -> bool:
        """Take the tokens that were given out.

        Returns:
            Whether the answer is complete with them.

        Raises:
            GrammarError: The grammar does not allow them, or cannot go on.
        """
        self._move(tokens)
        self._ahead = []
        self._given += tokens
        return self._is_complete()

    def _move(self, path: list[int]) -> None:
        """Go to the state after `path`.

        Raises:
            GrammarError: The grammar does not allow the path, or cannot go on.
        """
        num_common = 0
        for one, other in zip(self._ahead, path, strict=False):
            if one != other:
                break
            num_common += 1
        self._go_back(num_common)
        for token in path[len(self._ahead) :]:
            if not self._matcher.consume_token(token):
                self._raise(f"it does not allow token {token}")
            self._ahead.append(token)

    def _go_back(self, num: int) -> None:
        """Go back to the first `num` tokens of the path, or of none after what went wrong there.

        Raises:
            GrammarError: The grammar cannot go on.
        """
        if len(self._ahead) > num:
            is_back = self._matcher.rollback(len(self._ahead) - num)
            del self._ahead[num:]
            if not is_back:
                self._look_no_further()

    def _look_no_further(self) -> None:
        """Go on without looking ahead, which has used up a limit of llguidance's.

        The answer itself may never come to such a place: it ends as it would without drafts.

        Raises:
            GrammarError: The grammar cannot go on.
        """
        self._looks_ahead = False
        self._matcher, self._ahead = self._anew(), []
        self._move(self._given)
        self._ahead = []

    def _anew(self) -> Any:
        """An `llguidance.LLMatcher` at the grammar's start, in place of one that cannot go on."""
        copy = self._fresh.deep_copy()  # shares the lexer, which may be what cannot go on
        copy.compute_bitmask()
        if copy.is_error():
            self._fresh = self._compile()
            copy = self._fresh.deep_copy()
        return copy

    def _is_complete(self) -> bool:
        """Whether nothing may follow but an end token.

        Raises:
            GrammarError: The grammar cannot go on.
        """
        matcher = self._matcher
        if matcher.is_stopped():
            if matcher.is_error() or matcher.stop_reason() not in _COMPLETE:
                self._raise(matcher.stop_reason())
            return True
        if not (self._never_ends and matcher.is_accepting()):
            return False
        self._fill(may_end=False)
        return not self.words.any()

    def _fill(self, *, may_end: bool) -> None:
        """Compute the mask of the state.

        Raises:
            GrammarError: The grammar cannot go on.
        """
        self._matcher.unsafe_compute_mask_ptr(self.words.ctypes.data, self.words.nbytes)
        if self._matcher.is_error():
            self._raise("no mask can be computed")
        if not may_end:
            for token in self._ends:
                word, bit = divmod(token, _WORD_BITS)
                self.words[word] &= ~np.uint32(1 << bit)

    def _raise(self, reason: str) -> None:
        """Raise what stopped the grammar.

        Raises:
            GrammarError: Always.
        """
        said = " ".join(self._matcher.get_error().split("<state>")[0].split())
        raise GrammarError(f"the grammar cannot go on: {said or reason}")


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
