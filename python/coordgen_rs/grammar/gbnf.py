"""GBNF, llama.cpp's form of grammars, as a grammar in Lark that accepts the same texts.

In: a grammar's text. Out: the same in llguidance's Lark, or an error that says where it is
malformed. llguidance's own converter reads it, but is not used to write it: it makes one lexeme of
a literal or a rule of characters, and a lexeme takes as much text as it can, where GBNF may stop
earlier (`[a-z]+ "x"`). Here each lexeme is one character.
"""

import json
import re
import sys
from typing import Any

from coordgen_rs.errors import OptionError, UnsupportedGrammarError
from coordgen_rs.errors.extras import how_to_install

MOST_CHARS = 1 << 16
"""A longer grammar is refused: it is read character by character."""

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_PLAIN = {"n": "\n", "r": "\r", "t": "\t"}
_WRITTEN = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SURROGATES = range(0xD800, 0xE000)
_AS_THEY_ARE = '"\\[]'
"""Characters that GBNF writes behind a backslash; others it does not know so."""


def lark_of_gbnf(text: str) -> str:
    """A GBNF grammar in Lark.

    Args:
        text: The grammar, with a rule `root`.

    Raises:
        OptionError: The package llguidance is missing.
        UnsupportedGrammarError: It is malformed, or too long.
    """
    try:
        from llguidance import gbnf_to_lark as gbnf
    except ImportError as error:
        raise OptionError(
            f"grammars need the package llguidance: {how_to_install('grammar')}"
        ) from error
    if len(text) > MOST_CHARS:
        raise UnsupportedGrammarError(
            f"the GBNF grammar has {len(text):,} characters, but may have {MOST_CHARS:,}"
        )
    try:
        rules = gbnf.GrammarParser().parse(_ESCAPE.sub(_one_form, text))
        return _Writer(gbnf, rules).text()
    except (gbnf.GbnfToLarkError, IndexError, RecursionError) as error:
        said = str(error) if isinstance(error, gbnf.GbnfToLarkError) else "it is cut short"
        if isinstance(error, RecursionError):
            said = "it is nested too deep"
        raise UnsupportedGrammarError(f"the GBNF grammar cannot be read: {said}") from error


class _Writer:
    """Writes rules in Lark.

    Args:
        gbnf: The module that read them.
        rules: The rules by name.

    Raises:
        UnsupportedGrammarError: There is no rule `root`.
    """

    def __init__(self, gbnf: Any, rules: dict[str, Any]) -> None:
        if "root" not in rules:
            raise UnsupportedGrammarError("the GBNF grammar has no rule root")
        self._gbnf, self._rules = gbnf, rules
        self._names = {name: f"r{number}" for number, name in enumerate(rules)} | {"root": "start"}

    def text(self) -> str:
        """All rules; raises UnsupportedGrammarError where one is missing."""
        return "".join(
            f"{self._names[name]}: {self._node(rule.alternatives)}\n"
            for name, rule in self._rules.items()
        )

    def _node(self, node: Any) -> str:
        gbnf = self._gbnf
        if isinstance(node, gbnf.AlternativeNode):
            return "(" + " | ".join(map(self._node, node.alternatives)) + ")"
        if isinstance(node, gbnf.SequenceNode):
            return " ".join(map(self._node, node.nodes)) or '""'
        if isinstance(node, gbnf.RepetitionNode):
            most = "" if node.max_times is None else node.max_times
            return f"({self._node(node.node)}){{{node.min_times},{most}}}"
        if isinstance(node, gbnf.RuleRefNode):
            if node.name not in self._names:
                raise UnsupportedGrammarError(
                    f"the GBNF grammar has no rule {node.name:.80}, which another one names"
                )
            return self._names[node.name]
        if isinstance(node, gbnf.LiteralNode):
            plain = _ESCAPE.sub(lambda found: _character(found[1]), node.value)
            return " ".join(json.dumps(one, ensure_ascii=False) for one in plain) or '""'
        # A class of characters, or a dot: any character, in GBNF line feeds, too.
        pattern = "(?s:.)" if node.rx == "." else re.sub("[&~]", r"\\\g<0>", node.rx)
        return f"/{pattern}/"


def _one_form(found: re.Match[str]) -> str:
    """An escape as the reader knows it: numbers become characters, where those mean themselves."""
    character = _character(found[1])
    if len(found[1]) == 1:
        return found[0]
    if character in _AS_THEY_ARE:
        return "\\" + character
    return found[0] if character in "-^" else _WRITTEN.get(character, character)


def _character(escape: str) -> str:
    """The character that an escape stands for, given without its backslash.

    Raises:
        UnsupportedGrammarError: It stands for none.
    """
    if len(escape) == 1:
        return _PLAIN.get(escape, escape)
    number = int(escape[1:], 16)
    if number > sys.maxunicode or number in _SURROGATES:
        raise UnsupportedGrammarError(
            f"the GBNF grammar cannot be read: \\{escape} is no character"
        )
    return chr(number)
