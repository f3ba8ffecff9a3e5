"""Calls between marks: what most families write, each with marks and argument syntax of its own.

In: what stands before, between and behind calls; functions. Out: the grammar of an answer. A
section of calls is an opening mark, calls, and a closing mark; text before, between and behind
sections is content. A mark that is not followed by the beginning of a call is text that mentions
it.
"""

from dataclasses import dataclass, field
from typing import Any

from coordgen_rs.server.tools.arguments.syntax import JSON, ArgumentSyntax
from coordgen_rs.server.tools.calls import Choice
from coordgen_rs.server.tools.lexicon import (
    TEXT,
    WHITE,
    Lexicon,
    Rules,
    grammar_of,
    regex,
    sequence,
)

BARE_KEYS = "arguments", "parameters"
"""Keys of a call without marks that hold its arguments."""


@dataclass(frozen=True)
class MarkedFormat:
    """A format of calls between marks.

    Attributes:
        name: What it is called in tests and documents.
        opening: The mark that opens a section.
        closing: The mark that closes a section; "" where the answer ends there.
        begin: What follows the mark, and white space, where calls begin: part of `first` and
            `before` together.
        gap: The white space that is written there.
        first: What stands before the first call of a section.
        before: What stands before a function's name.
        after: What stands between its name and its arguments.
        end: What stands behind the arguments.
        between: What stands between calls of a section; None where there is one alone.
        last: What stands behind the last call.
        syntax: How arguments are written.
        is_bare: Whether an answer that is nothing but the JSON of a call is one, too.
        prefers_bare: Whether the model was trained to write calls in that way, without marks.
        hidden: Marks within a call, which the text is to show as well.
        id_len: How long the templates of its models want the ids of calls; None for any length.
    """

    name: str
    opening: str
    closing: str = ""
    begin: str = "{"
    gap: str = ""
    first: str = ""
    before: str = '{"name": "'
    after: str = '", "arguments": '
    end: str = "}"
    between: str | None = None
    last: str = ""
    syntax: ArgumentSyntax = field(default=JSON)
    is_bare: bool = False
    prefers_bare: bool = False
    hidden: tuple[str, ...] = ()
    id_len: int | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that are special tokens in some tokenizers: the answer's text is to show them."""
        return tuple(filter(None, (self.opening, self.closing, *self.hidden)))

    def grammar(self, choice: Choice, lexicon: Lexicon) -> str:
        """What the answer is constrained to, in Lark.

        Raises:
            UnsupportedGrammarError: The schema of a function cannot be followed.
        """
        return _Grammar(self, choice, lexicon).text()


class _Grammar:
    """The writing of one grammar."""

    def __init__(self, marked: MarkedFormat, choice: Choice, lexicon: Lexicon) -> None:
        self._marked, self._choice, self._lexicon = marked, choice, lexicon
        self._rules: Rules = {"WHITE": WHITE}

    def text(self) -> str:
        """The grammar."""
        marked, choice = self._marked, self._choice
        self._write_calls()
        if choice.is_required:
            start = self._only_calls()
        elif choice.answer is not None:
            start = f"{self._sections()} | {self._answer(choice.answer)}"
        else:
            start = self._text_and_calls()
            if marked.is_bare:
                start = f"{self._bare()} | {start}"
        return grammar_of(start, self._rules)

    def _rule(self, name: str, body: str) -> str:
        self._rules[name] = body
        return name.removesuffix("[lazy]")

    def _write_calls(self) -> None:
        """The rules `call`, a call behind `before`; and `rest`, a section behind `begin`."""
        marked, literal = self._marked, self._lexicon.literal
        named = list[str]()
        for number, (name, schema) in enumerate(self._choice.parameters.items()):
            arguments, rules = marked.syntax.lark(schema, f"t{number}", self._lexicon)
            self._rules |= rules
            arguments = self._rule(f"a{number}", arguments)
            named.append(sequence(literal(name + marked.after), arguments))
        self._rule("call", sequence(f"({' | '.join(named)})", literal(marked.end)))
        behind = (marked.first + marked.before).removeprefix(marked.begin)
        closed = literal(marked.last + marked.gap + marked.closing)
        self._rule("rest", sequence(literal(behind), "call", self._more(), closed))

    def _more(self) -> str:
        """More calls, where there may be more."""
        marked = self._marked
        if marked.between is None or not self._choice.is_parallel:
            return ""
        return f"({sequence(self._lexicon.literal(marked.between + marked.before), 'call')})*"

    def _sections(self) -> str:
        """Sections of calls and nothing else, but for white space behind them."""
        marked = self._marked
        opening = self._lexicon.literal(marked.opening + marked.gap + marked.begin)
        self._rule("must", sequence(opening, "rest"))
        if not self._choice.is_parallel or not marked.closing:
            return "must WHITE?"
        return "must (WHITE? must)* WHITE?"

    def _only_calls(self) -> str:
        if not self._marked.prefers_bare:
            return self._sections()
        return sequence(self._lexicon.literal(self._marked.before), "call", self._more(), "WHITE?")

    def _text_and_calls(self) -> str:
        """Text in which calls may begin."""
        marked, lexicon = self._marked, self._lexicon
        self._rule("TEXT", TEXT)
        begun = (r"\s*" if marked.begin else "") + regex(marked.begin)
        spelt = self._rule("spelt[lazy]", rf"/(.|\n)*{regex(marked.opening)}{begun}/")
        sections, free = [sequence(spelt, "rest")], list[str]()
        if lexicon.is_token(marked.opening):
            mark = self._rule("mark", lexicon.literal(marked.opening))
            behind = self._rule("begun[lazy]", f"/{begun}/") if begun else ""
            sections.append(sequence("TEXT?", mark, behind, "rest"))
            if begun:
                free.append(f"TEXT? {mark}")
        if other := lexicon.others(marked.opening):
            free.append(f"TEXT? {self._rule('other', other)}")
        self._rule("section", " | ".join(sections))
        if self._choice.is_parallel and marked.closing:
            return f"{self._rule('chunk', ' | '.join(['section', *free]))}* TEXT?"
        ahead = f"({' | '.join(free)})*" if free else ""
        return sequence(ahead, "(section WHITE? | TEXT)?")

    def _bare(self) -> str:
        """A call without marks. It is one from the function's name on: other JSON is text."""
        keys, named = "|".join(BARE_KEYS), list[str]()
        for number, name in enumerate(self._choice.parameters):
            key = rf'\s*\{{\s*"name"\s*:\s*"{regex(name)}"\s*,\s*"({keys})"\s*:'
            begun = self._rule(f"b{number}[lazy]", f"/{key}/")
            named.append(self._rule(f"n{number}", f'{begun} " "? a{number} "}}"'))
        return self._rule("bare", sequence(f"({' | '.join(named)})", self._more(), "WHITE?"))

    def _answer(self, schema: dict[str, Any]) -> str:
        """The answer where nothing is called.

        Calls without marks are among what its JSON may be: llguidance would take the beginning of
        a call for one lexeme.
        """
        if not self._marked.prefers_bare:
            return self._lexicon.json(schema)
        calls, definitions = list[dict[str, Any]](), dict[str, object]()
        for number, (name, one) in enumerate(self._choice.parameters.items()):
            place = f"#/$defs/t{number}"
            definitions[f"t{number}"] = _moved(one, place)
            calls.append(
                {
                    "type": "object",
                    "properties": {"name": {"const": name}, BARE_KEYS[1]: {"$ref": place}},
                    "required": ["name", BARE_KEYS[1]],
                    "additionalProperties": False,
                }
            )
        definitions["answer"] = _moved(schema, "#/$defs/answer")
        either = [*calls, {"$ref": "#/$defs/answer"}]
        return self._lexicon.json({"anyOf": either, "$defs": definitions})


def _moved(schema: object, place: str) -> object:
    """A schema that stands at `place` of another one: what it refers to in itself is there, too."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _moved(value, place) for name, value in schema.items()}
    reference = found.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        found["$ref"] = place + reference[1:]
    return found
