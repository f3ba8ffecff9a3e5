"""Calls between marks: what most families write, each with marks and a spelling of its own.

In: what stands before, between and behind calls. Out: a form. A section of calls is an opening
mark, calls, and a closing mark; text before, between and behind sections is content. A mark that is
not followed by the beginning of a call is text that mentions it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coordgen_rs.grammar.json_text import json_text
from coordgen_rs.server.tools.calls import Parameters
from coordgen_rs.server.tools.forms.form import Choice, Reader
from coordgen_rs.server.tools.lexicon import TEXT, WHITE, Lexicon, regex
from coordgen_rs.server.tools.spelling.plain_json import JSON
from coordgen_rs.server.tools.spelling.spelling import Spelling

BARE_KEYS = "arguments", "parameters"
"""Keys of a call without marks that hold its arguments."""


@dataclass(frozen=True)
class Frame:
    """A form of calls between marks.

    Attributes:
        name: What it is called in tests and documents.
        is_of: See `CallForm`.
        opening: The mark that opens a section.
        begin: What follows the mark, and white space, where calls begin: part of `first` and
            `before` together.
        gap: The white space that is written there.
        first: What stands before the first call of a section.
        before: What stands before a function's name.
        after: What stands between its name and its arguments.
        end: What stands behind the arguments.
        between: What stands between calls of a section; None where there is one alone.
        last: What stands behind the last call.
        closing: The mark that closes a section; "" where the answer ends there.
        spelling: How arguments are spelt.
        is_bare: Whether an answer that is nothing but the JSON of a call is one, too.
        prefers_bare: Whether the model was trained to write calls in that way, without marks.
        hidden: Marks within a call, which the text is to show as well.
        id_len: See `CallForm`.
    """

    name: str
    is_of: Callable[[str], bool]
    opening: str
    closing: str
    before: str
    after: str
    begin: str = "{"
    gap: str = ""
    first: str = ""
    end: str = ""
    between: str | None = None
    last: str = ""
    spelling: Spelling = field(default=JSON)
    is_bare: bool = False
    prefers_bare: bool = False
    hidden: tuple[str, ...] = ()
    id_len: int | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that are special tokens in some tokenizers."""
        return tuple(mark for mark in (self.opening, self.closing, *self.hidden) if mark)

    def reader(self, parameters: Parameters, *, is_held: bool) -> Reader:
        """Read an answer; see `CallForm`."""
        from coordgen_rs.server.tools.forms.frame_reader import FrameReader

        return FrameReader(self, parameters, is_held=is_held)

    def grammar(self, choice: Choice, lexicon: Lexicon) -> str:
        """What the answer is held to; see `CallForm`.

        Raises:
            UnsupportedGrammarError: The schema of a function cannot be followed.
        """
        return _Writing(self, choice, lexicon).text()


class _Writing:
    """The writing of one grammar."""

    def __init__(self, frame: Frame, choice: Choice, lexicon: Lexicon) -> None:
        self._frame, self._choice, self._lexicon = frame, choice, lexicon
        self._rules = [WHITE]

    def text(self) -> str:
        frame, choice = self._frame, self._choice
        arguments = dict[str, str]()
        for number, (name, schema) in enumerate(choice.parameters.items()):
            loose = {"type": "object"} if name in self._lexicon.loose else schema
            arguments[name], rules = frame.spelling.lark(loose, f"t{number}", self._lexicon)
            self._rules += rules
        self._write_calls(arguments)
        if choice.is_required:
            start = self._only_calls()
        elif choice.answer is not None:
            start = f"{self._marked()} | {self._answer(choice.answer)}"
        elif frame.is_bare:
            start = f"{self._bare(arguments)} | {self._text_and_calls()}"
        else:
            start = self._text_and_calls()
        return "\n".join([f"start: {start}", *self._rules])

    def _rule(self, name: str, body: str) -> str:
        self._rules.append(f"{name}: {body}")
        return name

    def _write_calls(self, arguments: Mapping[str, str]) -> None:
        """The rules `call`, a call behind `before`; and `rest`, a section behind `begin`."""
        frame, literal = self._frame, self._lexicon.literal
        one = " | ".join(
            _sequence(literal(name + frame.after), f"a{number}")
            for number, name in enumerate(arguments)
        )
        for number, body in enumerate(arguments.values()):
            self._rule(f"a{number}", body)
        self._rule("call", _sequence(f"({one})", literal(frame.end)))
        calls = "call"
        if frame.between is not None and self._choice.is_parallel:
            calls = f"call ({_sequence(literal(frame.between + frame.before), 'call')})*"
        behind = (frame.first + frame.before).removeprefix(frame.begin)
        self._rule("rest", _sequence(literal(behind), calls, self._closed()))

    def _closed(self) -> str:
        frame = self._frame
        return self._lexicon.literal(frame.last + frame.gap + frame.closing)

    def _marked(self) -> str:
        """Sections of calls and nothing else, but for white space behind them."""
        frame, literal = self._frame, self._lexicon.literal
        section = _sequence(literal(frame.opening + frame.gap + frame.begin), "rest")
        self._rule("must", section)
        if not self._choice.is_parallel or not frame.closing:
            return "must WHITE?"
        return "must (WHITE? must)* WHITE?"

    def _only_calls(self) -> str:
        if not self._frame.prefers_bare:
            return self._marked()
        return _sequence(self._lexicon.literal(self._frame.before), "call", self._more(), "WHITE?")

    def _more(self) -> str:
        """More calls without marks."""
        between = self._frame.between if self._frame.prefers_bare else None
        if between is None or not self._choice.is_parallel:
            return ""
        return f"({_sequence(self._lexicon.literal(between + self._frame.before), 'call')})*"

    def _text_and_calls(self) -> str:
        """Text in which calls may begin."""
        frame, lexicon = self._frame, self._lexicon
        self._rules.append(TEXT)
        white = r"\s*" if frame.begin else ""
        begun = white + regex(frame.begin)
        sections = [_sequence("spelt", "rest")]
        free = []
        if lexicon.is_token(frame.opening):
            mark = self._rule("mark", lexicon.literal(frame.opening))
            sections.append(_sequence("TEXT?", mark, "begun" if begun else "", "rest"))
            if begun:
                self._rule("begun[lazy]", f"/{begun}/")
                free.append(f"TEXT? {mark}")
        self._rule("spelt[lazy]", rf"/(.|\n)*{regex(frame.opening)}{begun}/")
        if other := lexicon.others(frame.opening):
            free.append(f"TEXT? {self._rule('other', other)}")
        self._rule("section", " | ".join(sections))
        if self._choice.is_parallel and frame.closing:
            chunk = self._rule("chunk", " | ".join(["section", *free]))
            return f"{chunk}* TEXT?"
        ahead = f"({' | '.join(free)})* " if free else ""
        return f"{ahead}(section WHITE? | TEXT)?"

    def _bare(self, arguments: Mapping[str, str]) -> str:
        """A call without marks. It is one from the function's name on: other JSON is text."""
        keys, named = "|".join(BARE_KEYS), list[str]()
        for number, name in enumerate(arguments):
            key = rf'\s*\{{\s*"name"\s*:\s*"{regex(name)}"\s*,\s*"({keys})"\s*:'
            self._rule(f"b{number}[lazy]", f"/{key}/")
            named.append(self._rule(f"n{number}", f'b{number} " "? a{number} "}}"'))
        return self._rule("bare", _sequence(f"({' | '.join(named)})", self._more(), "WHITE?"))

    def _answer(self, schema: dict[str, object]) -> str:
        """The answer where nothing is called.

        Calls without marks are among what its JSON may be: llguidance would take the beginning of
        a call for one lexeme.
        """
        if not self._frame.prefers_bare:
            return self._lexicon.json(schema)
        places = {name: f"#/$defs/t{n}" for n, name in enumerate(self._choice.parameters)}
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": name}, BARE_KEYS[1]: {"$ref": place}},
                "required": ["name", BARE_KEYS[1]],
                "additionalProperties": False,
            }
            for name, place in places.items()
        ]
        definitions = {
            place.removeprefix("#/$defs/"): moved(self._choice.parameters[name], place)
            for name, place in places.items()
        }
        definitions["answer"] = moved(schema, "#/$defs/answer")
        either = [*calls, {"$ref": "#/$defs/answer"}]
        return f"%json {json_text({'anyOf': either, '$defs': definitions})}"


def moved(schema: object, place: str) -> object:
    """A schema that stands at `place` of another one: what it refers to in itself is there, too."""
    if isinstance(schema, list):
        return [moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: moved(value, place) for name, value in schema.items()}
    reference = found.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        found["$ref"] = place + reference[1:]
    return found


def _sequence(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def bare_pattern(parameters: Parameters) -> re.Pattern[str]:
    """The beginning of a call without marks, up to its arguments."""
    names = "|".join(map(re.escape, parameters))
    keys = "|".join(BARE_KEYS)
    return re.compile(rf'\s*\{{\s*"name"\s*:\s*"({names})"\s*,\s*"(?:{keys})"\s*:\s*(?=\{{)')
