"""A model's vocabulary as grammars read it, by the package `llguidance`.

In: a tokenizer and the target's end tokens, then grammars. Out: a `Matcher` for each, or an error
that names what of the grammar cannot be followed, before anything is generated.
"""

import json
from _thread import LockType
from collections.abc import Sequence
from hashlib import sha256
from threading import Lock
from typing import Any, assert_never
from weakref import WeakValueDictionary

from coordgen_rs.errors import GrammarError, OptionError, UnsupportedGrammarError, arguments
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.text.grammar.json_schema import llguidance_lark, llguidance_schema
from coordgen_rs.text.grammar.kinds import (
    AfterThinking,
    Gbnf,
    Grammar,
    JsonSchema,
    Lark,
    LarkOfSchemas,
    Regex,
    lark_of_gbnf,
)
from coordgen_rs.text.grammar.limits import TooCostlyError, check_cost, is_cheap, with_deep_stack
from coordgen_rs.text.grammar.matcher import AfterThinkingMatcher, Marks, Matcher
from coordgen_rs.text.thinking import Thinking
from coordgen_rs.text.tokenizer import Tokenizer, package_errors_as

MOST_KEPT_BYTES = 64 << 20
"""What compiled grammars may take that are kept: the states that an answer has met make the next
one's faster. The latest stays, however large."""
_BYTES_PER_LETTER = 150
"""Of a compiled grammar, for each letter of its text: an enum takes 50, properties up to 170."""
_LEAST_BYTES = 2 << 20
"""Of any compiled grammar, with the states that answers meet."""

_MOST_AT_ONE_PLACE = 400
"""Items of the parser, such as words among which a text goes on, in a grammar that a caller writes.
The time of a step grows by their third power where each has many readings, to 0.04 s with these;
schemas, which have few readings, keep the package's 2,000."""
_MOST_REFUSED = 1_000
"""Grammars that cost too much, of which it is known."""


class Vocabulary:
    """The tokens of a target as byte strings, ready for grammars. Making one takes seconds.

    Args:
        tokenizer: The target's.
        vocab_size: Columns of the target's logits.
        end_token_ids: Tokens that end an answer; each is allowed where the grammar may end.

    Attributes:
        vocab_size: The `vocab_size` argument.

    Raises:
        OptionError: The package llguidance is missing.
        GrammarError: The tokenizer is of a kind that it cannot read.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, end_token_ids: Sequence[int] = ()
    ) -> None:
        try:
            import llguidance
        except ImportError as error:
            raise OptionError(
                f"grammars need the package llguidance: {how_to_install('grammar')}"
            ) from error
        self.vocab_size = vocab_size
        self._package, self._compiled = llguidance, dict[Grammar, Matcher]()
        self._alive: WeakValueDictionary[Grammar, Matcher] = WeakValueDictionary()
        self._refused = dict[bytes, str]()
        self._making: WeakValueDictionary[Grammar, LockType] = WeakValueDictionary()
        self._lock, self._tokenizer = Lock(), tokenizer
        self._has_end = len(end_token_ids) > 0
        with package_errors_as(GrammarError, "the tokenizer cannot be used with a grammar"):
            self._tokens = llguidance.LLTokenizer(
                tokenizer.to_json(),
                n_vocab=vocab_size,
                eos_token=list(end_token_ids) or None,
            )

    @property
    def num_bytes(self) -> int:
        """About what the grammars take that are kept."""
        return sum(matcher.num_bytes for matcher in self._compiled.values())

    def matcher(self, grammar: Grammar) -> Matcher:
        """What follows a grammar through answers, one at a time (`Matcher.another`).

        The same grammar gets the same matcher.

        Raises:
            OptionError: It is no grammar.
            UnsupportedGrammarError: It cannot be followed; the message names what of it.
            GivenUpError: Nobody waits for it any more (`is_wanted`).
        """
        if not isinstance(grammar, Grammar):
            raise OptionError(
                "grammar must be a JsonSchema, Regex, Lark or Gbnf, but is "
                + arguments.shown(grammar)
            )
        with self._lock:  # threads ask while another's answer runs
            making = self._making.setdefault(grammar, Lock())
        with making:  # who asks for another grammar does not wait for this one
            found = self._alive.get(grammar) or self._made(grammar)
            with self._lock:
                self._alive[grammar] = found
                self._compiled.pop(grammar, None)
                self._compiled[grammar] = found  # now the latest
                while len(self._compiled) > 1 and self.num_bytes > MOST_KEPT_BYTES:
                    del self._compiled[next(iter(self._compiled))]
        return found

    def _made(self, grammar: Grammar) -> Matcher:
        if isinstance(grammar, AfterThinking):
            inner = self.matcher(grammar.grammar).another()  # it may be compiled already
            return AfterThinkingMatcher(
                inner, self._marks(grammar.thinking), self._tokens.eos_tokens
            )
        text, what, num_levels = self._definition(grammar)
        limits = self._limits(grammar)
        taken = 0 if is_cheap(grammar) else self._taken(text, what, num_levels)
        return Matcher(
            lambda: self._compile(text, what, num_levels, limits),
            self.vocab_size,
            self._tokens.eos_tokens,
            has_end=self._has_end,
            num_bytes=max(_LEAST_BYTES, _BYTES_PER_LETTER * len(text), taken),
        )

    def _taken(self, text: str, what: str, num_levels: int) -> int:
        """The bytes that compiling takes.

        Raises:
            TooCostlyError: It costs too much; at once where that is known.
            GivenUpError: Same as in `check_cost`.
        """
        name = sha256(text.encode()).digest()
        if name in self._refused:
            raise TooCostlyError(self._refused[name])
        try:
            return check_cost(text, what, num_levels)
        except TooCostlyError as error:
            if len(self._refused) >= _MOST_REFUSED:
                self._refused.clear()
            self._refused[name] = str(error)
            raise

    def _marks(self, thinking: Thinking) -> Marks:
        marks, tokenizer = thinking.marks, self._tokenizer

        def ids(text: str) -> tuple[int, ...]:
            return tuple(tokenizer.encode(text, special_tokens=False).tolist())

        gap = ids("\n\n")
        return Marks(
            () if thinking.is_open else ids(marks.begin),
            thinking.is_open,
            ids(marks.end),
            ids(marks.header) if marks.header else (),
            ids(marks.between + marks.header) if marks.header else (),
            gap[0] if len(gap) == 1 else None,
            lambda tokens: marks.end in tokenizer.decode(tokens),
        )

    def _definition(self, grammar: JsonSchema | Regex | Lark | Gbnf) -> tuple[str, str, int]:
        """A grammar in llguidance's form, its name in messages, and how deep it may be at most.

        Raises:
            UnsupportedGrammarError: It cannot be read.
        """
        matcher = self._package.LLMatcher
        match grammar:
            case JsonSchema(text=text, any_whitespace=any_whitespace):
                closed = llguidance_schema(json.loads(text), any_whitespace=any_whitespace)
                with package_errors_as(UnsupportedGrammarError, "the JSON schema cannot be read"):
                    made = matcher.grammar_from_json_schema(closed)
                return made, "the JSON schema", closed.count("{")
            case Regex(pattern=pattern):
                return matcher.grammar_from_regex(pattern), "the regular expression", 0
            case Lark(text=text):
                if not isinstance(grammar, LarkOfSchemas):
                    text = llguidance_lark(text)
                return matcher.grammar_from_lark(text), "the Lark grammar", text.count(":")
            case Gbnf(text=text):
                lark = lark_of_gbnf(text)
                return matcher.grammar_from_lark(lark), "the GBNF grammar", lark.count("(")
            case _:
                assert_never(grammar)

    def _limits(self, grammar: Grammar) -> Any:
        """The `llguidance.LLParserLimits` of a grammar."""
        rows: dict[str, Any] = {}
        if not isinstance(grammar, JsonSchema | Regex | LarkOfSchemas):
            # Where each character is a lexeme, as in GBNF, a mask looks at items for each beginning
            # of a token. With the package's 50,000, one of a small vocabulary could take a second.
            rows["max_items_in_row"] = _MOST_AT_ONE_PLACE
            rows["step_max_items"] = min(50_000, 5_000 + self.vocab_size // 2)
        return self._package.LLParserLimits(**rows)

    def _compile(self, text: str, what: str, num_levels: int, limits: Any) -> Any:
        """An `llguidance.LLMatcher` at the grammar's start.

        Raises:
            UnsupportedGrammarError: The grammar cannot be followed.
        """
        matcher = with_deep_stack(
            num_levels,
            lambda: self._package.LLMatcher(self._tokens, text, log_level=0, limits=limits),
            what,
        )
        if matcher.is_error():
            raise UnsupportedGrammarError(
                f"{what} cannot be followed: {_on_one_line(matcher.get_error())}"
            )
        warnings = matcher.get_grammar_warnings()
        if warnings:
            raise UnsupportedGrammarError(
                f"{what} cannot be followed as it is: {_on_one_line('; '.join(warnings))}"
            )
        return matcher


def _on_one_line(reason: str) -> str:
    """A reason without the state that follows it, and without line breaks."""
    return " ".join(reason.split("<state>")[0].split("<backtrace>")[0].split())
