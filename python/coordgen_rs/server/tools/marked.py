"""Calls between marks: what most families write, each with marks and argument syntax of its own.

In: what stands before, between and behind calls; functions; an answer's text, piece by piece. Out:
the grammar of an answer; content, and calls. A section of calls is an opening mark, calls, and a
closing mark; text before, between and behind sections is content. A mark that is not followed by
the beginning of a call is text that mentions it.

Where the answer is constrained to the format, a call that has begun can only be one, so it is given
as it is made: its name, then its arguments. Elsewhere it is given when it is complete, and checked;
what is no call stays content.
"""

import re
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from coordgen_rs.errors.json_text import JsonTextError, parse_json
from coordgen_rs.server.tools.calls import (
    CallConstraint,
    CallReader,
    Content,
    Parameters,
    begun_len,
    calls_of,
)
from coordgen_rs.server.tools.syntax import (
    JSON,
    TEXT,
    WHITE,
    ArgumentSyntax,
    Lexicon,
    Rules,
    as_json,
    grammar_of,
    is_object,
    regex,
    sequence,
)

_BARE_KEYS = "arguments", "parameters"
"""Keys of a call without marks that hold its arguments."""


@dataclass(frozen=True)
class MarkedFormat:
    """A format of calls between marks.

    Attributes:
        name: What it is called in tests and documents.
        opening: The mark that opens a section.
        closing: The mark that closes a section; "" where the answer ends there.
        call: A call, with `NAME` for its function and `ARGUMENTS` for those.
        begin: What follows the mark, and white space, where calls begin: part of `first` and
            `before` together.
        gap: The white space that is written there.
        first: What stands before the first call of a section.
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
    call: str = '{"name": "NAME", "arguments": ARGUMENTS}'
    begin: str = "{"
    gap: str = ""
    first: str = ""
    between: str | None = None
    last: str = ""
    syntax: ArgumentSyntax = field(default=JSON)
    is_bare: bool = False
    prefers_bare: bool = False
    hidden: tuple[str, ...] = ()
    id_len: int | None = None

    @property
    def before(self) -> str:
        """What stands before a function's name."""
        return self.call.partition("NAME")[0]

    @property
    def after(self) -> str:
        """What stands between its name and its arguments."""
        return self.call.partition("NAME")[2].partition("ARGUMENTS")[0]

    @property
    def end(self) -> str:
        """What stands behind the arguments."""
        return self.call.partition("ARGUMENTS")[2]

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that are special tokens in some tokenizers: the answer's text is to show them."""
        return tuple(filter(None, (self.opening, self.closing, *self.hidden)))

    def grammar(self, choice: CallConstraint, lexicon: Lexicon) -> str:
        """What the answer is constrained to, in Lark.

        Raises:
            UnsupportedGrammarError: The schema of a function cannot be followed.
        """
        return _Grammar(self, choice, lexicon).text()


class _Grammar:
    """The writing of one grammar."""

    def __init__(self, marked: MarkedFormat, choice: CallConstraint, lexicon: Lexicon) -> None:
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
        keys, named = "|".join(_BARE_KEYS), list[str]()
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
                    "properties": {"name": {"const": name}, _BARE_KEYS[1]: {"$ref": place}},
                    "required": ["name", _BARE_KEYS[1]],
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


class MarkedReader(CallReader):
    """Reads one answer.

    Args:
        marked: How calls are written.
        parameters: The functions that may be called.
        is_constrained: Whether the answer is constrained to that.
    """

    def __init__(
        self, marked: MarkedFormat, parameters: Parameters, *, is_constrained: bool
    ) -> None:
        super().__init__()
        self._marked, self._parameters = marked, parameters
        self._is_constrained = is_constrained
        names, keys = "|".join(map(re.escape, parameters)), "|".join(_BARE_KEYS)
        self._bare_head = re.compile(
            rf'\s*\{{\s*"name"\s*:\s*"({names})"\s*,\s*"(?:{keys})"\s*:\s*(?=\{{)'
        )
        self._bare_heads = [
            f'{{"name":"{name}","{key}":{{' for name in parameters for key in _BARE_KEYS
        ]
        self._is_begun = False  # whether something other than white space was said
        self._is_behind_call = False  # and nothing but white space since

    def _answer(self) -> Generator[None]:
        opening = self._marked.opening
        while not self._is_over:
            start = self.ahead.find(opening)
            if self._may_be_bare():
                yield from self._read_bare()
            elif start < 0:
                yield from self._wait_at(len(self.ahead) - begun_len(self.ahead, opening))
            elif self._is_constrained:
                yield from self._read_section(start)
            else:
                yield from self._read_whole_section(start)
        self._finish()

    def _finish(self) -> None:
        """Tell what is left at the end of the answer."""
        start = self.ahead.find(self._marked.opening)
        if self._is_constrained:
            self._give(self._begun_at() if self._is_cut else len(self.ahead))
        elif calls := self._calls_in(self.ahead):
            self._tell_calls(calls)
        elif start < 0 or not self._tell_section(start, len(self.ahead)):
            self._give(len(self.ahead))

    def _give(self, num_chars: int, *, before_call: bool = False) -> None:
        """Content; white space before and behind a call is not meant for anybody."""
        text = self.take(num_chars)
        if self._is_behind_call or (before_call and not self._is_begun and text.isspace()):
            text = text.lstrip()
        if text:
            self._is_begun, self._is_behind_call = True, False
            self._tell(Content, text)

    def _wait_at(self, start: int) -> Generator[None]:
        """Tell what stands before a mark, and wait: white space alone may come to nothing."""
        if self._is_begun or not self.ahead[:start].isspace():
            self._give(start)
        yield

    # Calls without marks, and what may be the beginning of one.

    def _may_be_bare(self) -> bool:
        """Whether the answer may be nothing but a call without marks."""
        if self._is_begun:
            return False
        if not self._is_constrained:
            return self.ahead.lstrip()[:1] in ("", "{", "[")
        tight = "".join(self.ahead.split())
        return self._marked.is_bare and (
            any(head.startswith(tight) for head in self._bare_heads)
            or self._bare_head.match(self.ahead) is not None
        )

    def _read_bare(self) -> Generator[None]:
        match = self._bare_head.match(self.ahead) if self._is_constrained else None
        if match is None:
            yield  # more text tells, or only the end
        else:
            self.take(match.end())
            yield from self._read_calls(self._calls(match[1], ""))

    def _begun_at(self) -> int:
        """Where a call may have begun that has not got to its function."""
        if self.ahead.strip() and self._may_be_bare():
            return 0
        start = self.ahead.find(self._marked.opening)
        if start < 0 and (self._is_behind_call or not self._is_begun):  # else it may well be text
            start = len(self.ahead) - begun_len(self.ahead, self._marked.opening)
        return start if start >= 0 else len(self.ahead)

    # Calls that the answer is constrained to.

    def _read_section(self, start: int) -> Generator[None]:
        """Read calls behind an opening mark, or tell a mark as content that is only mentioned."""
        begin, behind = self._marked.begin, start + len(self._marked.opening)
        said = self.ahead[behind:].lstrip() if begin else self.ahead[behind:]
        if said.startswith(begin):
            self._give(start, before_call=True)
            self.ahead = said
            yield from self._read_calls(self._section())
        elif begin.startswith(said):
            yield from self._wait_at(start)
        else:
            self._give(behind)

    def _read_calls(self, calls: Generator[None]) -> Generator[None]:
        self._is_begun = self._is_behind_call = True
        try:
            yield from calls
        except ValueError:  # the grammar allows no such text; what was told stands
            self._give(len(self.ahead))

    def _section(self) -> Generator[None]:
        """Read the calls of a section."""
        marked = self._marked
        self.is_open = self.num_calls > 0
        yield from self.skip(marked.first, marked.before)
        yield from self._calls((yield from self._name()), marked.last + marked.closing)

    def _calls(self, name: str, closing: str) -> Generator[None]:
        """Read calls and what closes them, from the name of the first on."""
        marked = self._marked
        again = "" if marked.between is None else (marked.between + marked.before).strip()
        while True:
            self._tell_call(name)
            self.is_open = True
            yield from marked.syntax.read(self, self._parameters[name], self._tell_arguments)
            yield from self.skip(marked.end)
            self.is_open = False
            mark = yield from self.which(closing, again)
            self.take(len(mark))
            if not mark or mark != again:
                return
            self.is_open = True
            name = yield from self._name()

    def _name(self) -> Generator[None, None, str]:
        """Read a name up to what stands behind it.

        Raises:
            ValueError: It is that of no function.
        """
        after = self._marked.after.rstrip()
        longest = max(map(len, self._parameters)) + len(after)
        self.ahead = self.ahead.lstrip()
        while (end := self.ahead.find(after)) < 0 and len(self.ahead) <= longest:
            yield
            self.ahead = self.ahead.lstrip()
        name = self.ahead[: max(end, 0)]
        if name not in self._parameters:
            raise ValueError("no function")
        self.take(end + len(after))
        return name

    # Calls that it is not constrained to.

    def _read_whole_section(self, start: int) -> Generator[None]:
        """Tell a section that is closed, as calls or as content."""
        closing, behind = self._marked.closing, start + len(self._marked.opening)
        end = self.ahead.find(closing, behind) if closing else -1
        if end < 0:
            yield from self._wait_at(start)
        elif self._tell_section(start, end):
            self.take(end + len(closing) - start)
        else:
            self._give(behind)

    def _tell_section(self, start: int, end: int) -> bool:
        """Tell a section as calls, and the text before it; whether it is any. It stays ahead."""
        inside = self.ahead[start + len(self._marked.opening) : end]
        if calls := self._calls_in(inside.removesuffix(self._marked.closing)):
            self._give(start, before_call=True)
            self._tell_calls(calls)
        return bool(calls)

    def _tell_calls(self, calls: list[tuple[str, str]]) -> None:
        for name, arguments in calls:
            self._tell_call(name, arguments)
        self._is_begun = self._is_behind_call = True

    def _calls_in(self, text: str) -> list[tuple[str, str]]:
        """Functions and arguments of the calls that a text is; none if it is anything else."""
        return self._listed(text.strip()) or self._written(text.strip())

    def _listed(self, text: str) -> list[tuple[str, str]]:
        """The same of calls in JSON, in whatever order and spacing."""
        try:
            parsed = parse_json(text, "a call")
        except JsonTextError:
            return []
        calls = [self._named(one) for one in (parsed if isinstance(parsed, list) else [parsed])]
        return [one for one in calls if one] if all(calls) else []

    def _named(self, call: Any) -> tuple[str, str] | None:
        """Function and arguments of a call; None where it is none of a known function."""
        match call:
            case {"name": str(name)} if name in self._parameters:
                arguments = call.get("arguments", call.get("parameters", {}))
                if isinstance(arguments, dict):
                    return name, as_json(arguments)
        return None

    def _written(self, text: str) -> list[tuple[str, str]]:
        """The same of calls as the format has them."""
        reader = MarkedReader(self._marked, self._parameters, is_constrained=True)
        reader.ahead = text + self._marked.closing
        try:
            next(reader._section(), None)
        except ValueError:
            return []
        if reader.is_open or reader.ahead.strip():
            return []
        calls = [(one.name or "", one.arguments) for one in calls_of(reader._told)]
        return calls if all(is_object(arguments) for _, arguments in calls) else []
