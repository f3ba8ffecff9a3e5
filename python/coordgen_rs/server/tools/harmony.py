"""gpt-oss: messages with channels, of which one to `functions.NAME` is a call.

In: text behind `<|start|>assistant`. Out: thinking (the channel `analysis`), content (`final`, and
`commentary` to nobody), calls. What is no such message is content, without the marks that end one;
`<|start|>` begins one where a role follows.
"""

import re
from collections.abc import Generator
from contextlib import suppress

from coordgen_rs.server.tools.calls import (
    CallConstraint,
    CallReader,
    Content,
    Parameters,
    Thought,
    begun_len,
)
from coordgen_rs.server.tools.syntax import (
    TEXT,
    WHITE,
    Lexicon,
    Rules,
    grammar_of,
    is_object,
    read_json,
)

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_TO = re.compile(r"to=functions\.([^\s<]+)")
_SAYS = re.compile(r"<\|channel\|>\s*(\w+)")
_HEADERS = (_START, _CHANNEL)
_NO_ROLE = re.compile(r"<\|start\|>[^\w<]")
_STOP = re.compile(rf"{'|'.join(map(re.escape, _ENDS))}|<\|start\|>(?=[\w<])")
_LONGEST_HEADER = 400
"""Characters; a longer one is none."""


class Harmony:
    """The format; attributes are those of `MarkedFormat`."""

    name = "harmony"
    id_len: int | None = None
    marks = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS)

    def grammar(self, choice: CallConstraint, lexicon: Lexicon) -> str:
        """What the answer is constrained to, in Lark.

        Raises:
            UnsupportedGrammarError: The schema of a function cannot be followed.
        """
        literal = lexicon.literal
        commentary, end = literal(_CHANNEL + "commentary"), literal("<|end|>")
        rules: Rules = {"TEXT": TEXT, "WHITE": WHITE, "next": literal(_START + "assistant")}
        calls = list[str]()
        for number, (name, schema) in enumerate(choice.parameters.items()):
            rules[f"a{number}"] = lexicon.json(schema)
            to = literal(f" to=functions.{name}")
            calls += [f"{commentary} {to} kind a{number}", f"{to} {commentary} kind a{number}"]
        kinds = (f" {_CONSTRAIN}json", f"{_CONSTRAIN}json", " json", "")
        rules["kind"] = " | ".join(literal(kind + _MESSAGE) for kind in kinds)
        ended = literal("<|call|>")
        rules["call"] = f"({' | '.join(calls)}) WHITE? {ended and f'({ended} WHITE?)?'}"
        rules["thought"] = f"{literal(_CHANNEL + 'analysis' + _MESSAGE)} TEXT? {end}"
        rules["commentary"] = f"{literal(_CHANNEL + 'commentary' + _MESSAGE)} TEXT? {end}"
        final = "TEXT?" if choice.answer is None else lexicon.json(choice.answer)
        rules["final"] = f"{literal(_CHANNEL + 'final' + _MESSAGE)} {final} {end}?"
        called = "call (next call)*" if choice.is_parallel else "call"
        if choice.is_required:
            return grammar_of(f"(thought next)* {called}", rules)
        text = "((thought | commentary) next)*"
        return grammar_of(f"{text} (final | thought | {called})", rules)


class HarmonyReader(CallReader):
    """Reads one answer, and what it thinks.

    Args:
        parameters: The functions that may be called; none where channels alone are told apart.
        is_constrained: Whether the answer is constrained to the grammar.
    """

    def __init__(self, parameters: Parameters, *, is_constrained: bool = False) -> None:
        super().__init__()
        self._parameters, self._is_constrained = parameters, is_constrained
        self._is_behind_call = False

    def _answer(self) -> Generator[None]:
        marks: tuple[str, ...] = (*_HEADERS, "to=functions.")  # what is addressed comes first
        while not self._is_over or self.ahead:
            yield from self._message(marks)
            marks = _HEADERS

    def _message(self, marks: tuple[str, ...]) -> Generator[None]:
        """Read a message; `marks` are what its header may begin with."""
        while True:
            header, mark, _ = self.ahead.lstrip().partition(_MESSAGE)
            is_none = len(header) > _LONGEST_HEADER or _NO_ROLE.match(header)
            may_be_one = not is_none and any(
                header.startswith(mark) or mark.startswith(header) for mark in (*marks, _MESSAGE)
            )
            if mark or self._is_over or not may_be_one:
                break
            yield
        if not may_be_one:
            if self.ahead.startswith(_START):  # without a role, or of a header that is too long
                self._tell(Content, self.take(len(_START)))
            yield from self._text(Content)
        elif mark:
            self.take(self.ahead.find(_MESSAGE) + len(_MESSAGE))
            yield from self._behind(header)
        else:
            is_cut = self._is_cut and self._is_constrained
            is_blank = not header and self._is_behind_call
            if not (header.startswith(marks) or is_cut or is_blank):
                self._tell(Content, self.ahead)
            self.ahead = ""

    def _behind(self, header: str) -> Generator[None]:
        """Read what stands behind a header."""
        to, says = _TO.search(header), _SAYS.search(header)
        self._is_behind_call = to is not None and to[1] in self._parameters
        if to is not None and self._is_behind_call:
            yield from self._call(to[1])
        else:
            is_thought = says is not None and says[1] == "analysis"
            yield from self._text(Thought if is_thought else Content)

    def _text(self, kind: type[Content] | type[Thought]) -> Generator[None]:
        """Read text up to a mark that ends it; the one that begins a header stays ahead."""
        while not (found := _STOP.search(self.ahead)):
            kept = max(begun_len(self.ahead, mark) for mark in (*_ENDS, _START + "a"))
            is_told = self._is_over and not self.ahead.endswith(_START)
            self._tell(kind, self.take(len(self.ahead) - (0 if is_told else kept)))
            if self._is_over:
                return
            yield
        self._tell(kind, self.take(found.start()))
        self.take(len(found[0]) if found[0] != _START else 0)

    def _call(self, name: str) -> Generator[None]:
        """Read arguments: as they come where they are constrained, else all at once."""
        parts, is_whole = list[str](), False
        if self._is_constrained:
            self._tell_call(name)
            self.is_open = True
        tell = self._tell_arguments if self._is_constrained else parts.append
        with suppress(ValueError):
            for _ in read_json(self, self._parameters[name], tell):
                if self._is_over:
                    break
                yield
            else:
                is_whole = True
        if self._is_constrained:
            self.is_open = not is_whole
        elif is_object(arguments := "".join(parts)):
            self._tell_call(name, arguments)
        else:
            self._tell(Content, arguments)
            yield from self._text(Content)
            return
        yield from self._pass_ends()

    def _pass_ends(self) -> Generator[None]:
        for mark in _ENDS:
            self.ahead = self.ahead.lstrip()
            while not self._is_over and mark.startswith(self.ahead) and self.ahead != mark:
                yield
                self.ahead = self.ahead.lstrip()
            self.ahead = self.ahead.removeprefix(mark)
        if self._is_cut and any(mark.startswith(self.ahead) for mark in _ENDS):
            self.ahead = ""


HARMONY = Harmony()
