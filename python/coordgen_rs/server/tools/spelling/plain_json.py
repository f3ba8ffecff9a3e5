"""Arguments as JSON: what most models write.

In: text that begins with an object. Out: the same, up to the brace that closes it.
"""

import re
from typing import Any

from coordgen_rs.files.json_text import JsonTextError, parse_json
from coordgen_rs.server.tools.lexicon import Lexicon
from coordgen_rs.server.tools.spelling.spelling import Got, Spelling

_INSIDE = re.compile(r'[^"\\]+')
_OUTSIDE = re.compile(r'[^"{}\[\]]+')


class JsonExtent:
    """Finds where a JSON object or array ends; arguments are those of a call."""

    def __init__(self) -> None:
        self._depth, self._in_string, self._is_escaped = 0, False, False

    def read(self, text: str) -> Got:
        """The text up to the end of the value.

        Raises:
            ValueError: It begins with neither a brace nor a bracket.
        """
        at = 0
        while at < len(text):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            run = (_INSIDE if self._in_string else _OUTSIDE).match(text, at)
            if not self._depth and (run or text[at] not in "{["):
                raise ValueError("not an object")
            if run:
                at = run.end()
                continue
            self._pass(text[at])
            at += 1
            if not self._depth:
                return Got(text[:at], at, is_whole=True)
        return Got(text, at, is_whole=False)

    def _pass(self, character: str) -> None:
        if character == '"':
            self._in_string = not self._in_string
        elif self._in_string:
            self._is_escaped = True
        else:
            self._depth += 1 if character in "{[" else -1


def is_object(text: str) -> bool:
    """Whether a text is a whole object in JSON."""
    try:
        return isinstance(parse_json(text, "arguments"), dict)
    except JsonTextError:
        return False


def _lark(schema: dict[str, Any], place: str, lexicon: Lexicon) -> tuple[str, list[str]]:
    return lexicon.json(schema), []


JSON = Spelling(_lark, lambda schema: JsonExtent(), is_json=True)
