"""gpt-oss: messages with channels, of which one to `functions.NAME` is a call.

In: text behind `<|start|>assistant`. Out: thinking (the channel `analysis`), content (`final`, and
`commentary` to nobody), calls. What is no such message is content as it stands.
"""

import re
from collections.abc import Generator

from coordgen_rs.server.tools.calls import Call, Content, Parameters, Said, Thought
from coordgen_rs.server.tools.forms.form import Choice, Reader
from coordgen_rs.server.tools.lexicon import TEXT, WHITE, Lexicon
from coordgen_rs.server.tools.spelling.marks import begun_len
from coordgen_rs.server.tools.spelling.plain_json import JsonExtent, is_object

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_ADDRESSED = "to=functions."
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_TO = re.compile(r"to=functions\.([^\s<]+)")
_SAYS = re.compile(r"<\|channel\|>\s*(\w+)")
_LONGEST_HEADER = 400
"""Characters; a longer one is none."""


class Harmony:
    """The form."""

    name = "harmony"
    id_len: int | None = None
    marks = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS)

    def is_of(self, template: str) -> bool:
        """See `CallForm`."""
        return _CHANNEL in template and _MESSAGE in template

    def reader(self, parameters: Parameters, *, is_held: bool) -> Reader:
        """See `CallForm`."""
        return HarmonyReader(parameters, is_held=is_held)

    def grammar(self, choice: Choice, lexicon: Lexicon) -> str:
        """See `CallForm`.

        Raises:
            UnsupportedGrammarError: The schema of a function cannot be followed.
        """
        literal = lexicon.literal
        rules = [TEXT, WHITE, f"next: {literal(_START + 'assistant')}"]
        named = list[str]()
        for number, (name, schema) in enumerate(choice.parameters.items()):
            arguments = lexicon.json({"type": "object"} if name in lexicon.loose else schema)
            rules.append(f"a{number}: {arguments}")
            to = literal(f" to=functions.{name}")
            named.append(f"{literal(_CHANNEL + 'commentary')} {to} kind? a{number}")
            named.append(f"{to} {literal(_CHANNEL + 'commentary')} kind? a{number}")
        kinds = (f" {_CONSTRAIN}json", f"{_CONSTRAIN}json", " json", "")
        named = [one.replace("kind?", "kind") for one in named]
        rules.append(f"kind: {' | '.join(literal(kind + _MESSAGE) for kind in kinds)}")
        ended = literal("<|call|>")
        behind = ended and f"({ended} WHITE?)?"
        rules.append(f"call: ({' | '.join(named)}) WHITE? {behind}")
        end = literal(_ENDS[0])
        thought = f"{literal(_CHANNEL + 'analysis' + _MESSAGE)} TEXT? {end}"
        rules.append(f"thought: {thought}")
        rules.append(f"commentary: {literal(_CHANNEL + 'commentary' + _MESSAGE)} TEXT? {end}")
        final = "TEXT?" if choice.answer is None else lexicon.json(choice.answer)
        rules.append(f"final: {literal(_CHANNEL + 'final' + _MESSAGE)} {final} {end}?")
        calls = "call (next call)*" if choice.is_parallel else "call"
        if choice.is_required:
            start = f"(thought next)* {calls}"
        else:
            start = f"((thought | commentary) next)* (final | thought | {calls})"
        return "\n".join([f"start: {start}", *rules])


class HarmonyReader:
    """Reads one answer; arguments are those of `CallForm.reader`."""

    def __init__(self, parameters: Parameters, *, is_held: bool) -> None:
        self._parameters, self._is_held = parameters, is_held
        self._ahead, self._is_over, self._is_cut = "", False, False
        self._found: list[Said] = []
        self._num_calls, self.is_open = 0, False
        self._is_begun = False  # whether anything was said: what is addressed comes first
        self._is_behind_call = False
        self._is_plain = False  # whether it was said without a header: then no other is cut
        self._walk = self._messages()

    def read(self, text: str) -> list[Said]:
        """See `Reader`."""
        self._ahead += text
        next(self._walk)
        found, self._found = self._found, []
        return found

    def end(self, *, is_cut: bool) -> list[Said]:
        """See `Reader`."""
        self._is_over, self._is_cut = True, is_cut
        return self.read("")

    def _messages(self) -> Generator[None]:
        while True:
            yield from self._message()
            if self._is_over and not self._ahead:
                while True:
                    yield

    def _message(self) -> Generator[None]:
        """Read a message with its header."""
        while (end := self._ahead.find(_MESSAGE)) < 0:
            header = self._ahead.lstrip()
            marks = (_START, _CHANNEL) if self._is_begun else (_START, _CHANNEL, _ADDRESSED)
            may_be_one = any(_may_begin(header, mark) for mark in marks)
            if self._is_over or not may_be_one or len(header) > _LONGEST_HEADER:
                is_cut = self._is_cut and self._is_held and not self._is_plain and may_be_one
                is_blank = not header and self._is_behind_call
                if not (self._is_over and (header.startswith(marks) or is_cut or is_blank)):
                    self._say(Content, self._ahead)
                    self._is_plain = True
                self._ahead = ""
                if self._is_over:
                    return
            yield
        header, self._ahead = self._ahead[:end], self._ahead[end + len(_MESSAGE) :]
        self._is_begun, self._is_plain = True, False
        to, says = _TO.search(header), _SAYS.search(header)
        self._is_behind_call = to is not None and to[1] in self._parameters
        if to is not None and self._is_behind_call:
            yield from self._call(to[1])
        else:
            kind = Thought if says is not None and says[1] == "analysis" else Content
            yield from self._text(kind)

    def _text(self, kind: type[Content] | type[Thought]) -> Generator[None]:
        while True:
            found = [(at, mark) for mark in (*_ENDS, _START) if (at := self._ahead.find(mark)) >= 0]
            if found:
                at, mark = min(found)
                self._say(kind, self._ahead[:at])
                self._ahead = self._ahead[at + len(mark) * (mark != _START) :]
                return
            kept = 0 if self._is_over else max(begun_len(self._ahead, m) for m in (*_ENDS, _START))
            self._say(kind, self._ahead[: len(self._ahead) - kept])
            self._ahead = self._ahead[len(self._ahead) - kept :]
            if self._is_over:
                return
            yield

    def _call(self, name: str) -> Generator[None]:
        """Read arguments: as they come where they are held, else all at once."""
        self._num_calls += 1
        number, extent, said = self._num_calls - 1, JsonExtent(), ""
        if self._is_held:
            self._found.append(Call(number, name, ""))
            self.is_open = True
        while True:
            self._ahead = self._ahead if said else self._ahead.lstrip()
            try:
                got = extent.read(self._ahead)
            except ValueError:
                break
            self._ahead, said = self._ahead[got.num_read :], said + got.json
            if self._is_held and got.json:
                self._found.append(Call(number, None, got.json))
            self.is_open = self._is_held and not got.is_whole
            if got.is_whole or self._is_over:
                break
            yield
        if not self._is_held:
            if is_object(said):
                self._found.append(Call(number, name, said))
            else:
                self._num_calls -= 1
                self._say(Content, said)
                yield from self._text(Content)
                return
        for mark in _ENDS:
            self._ahead = self._ahead.lstrip()
            while not self._is_over and mark.startswith(self._ahead) and self._ahead != mark:
                yield
                self._ahead = self._ahead.lstrip()
            self._ahead = self._ahead.removeprefix(mark)
        if self._is_cut and any(mark.startswith(self._ahead) for mark in _ENDS):
            self._ahead = ""

    def _say(self, kind: type[Content] | type[Thought], text: str) -> None:
        self._is_begun = True
        if text:
            self._found.append(kind(text))


def _may_begin(text: str, mark: str) -> bool:
    return text.startswith(mark) or mark.startswith(text)


FORM = Harmony()
