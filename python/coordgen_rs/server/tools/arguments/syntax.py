"""What a syntax of arguments is, a grammar and a reader; and the one that most models write, JSON.

In: a function's JSON schema; text. Out: a piece of Lark; JSON, piece by piece.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from coordgen_rs.files.json_text import JsonTextError, parse_json
from coordgen_rs.server.tools.lexicon import Lexicon, Rules
from coordgen_rs.server.tools.text_buffer import TextBuffer

Schema = dict[str, Any]
Tell = Callable[[str], None]
"""Takes the next part of the arguments, as JSON."""


@dataclass(frozen=True)
class ArgumentSyntax:
    """A way to write the arguments of a call.

    Attributes:
        lark: Takes a schema and its place in the grammar (a prefix for rules of its own): gives a
            piece of Lark for the arguments, and the rules that it refers to.
        read: Reads the arguments of one call, which are next in a buffer, by their schema. Raises
            `ValueError` where they are written in another way.
    """

    lark: Callable[[Schema, str, Lexicon], tuple[str, Rules]]
    read: Callable[[TextBuffer, Schema, Tell], Generator[None]]


def read_json(buffer: TextBuffer, schema: Schema, tell: Tell) -> Generator[None]:
    """Read a JSON object or array up to its end.

    Raises:
        ValueError: Something else comes.
    """
    depth, in_string, is_escaped = 0, False, False
    while True:
        if not depth:
            buffer.ahead = buffer.ahead.lstrip()
        for num_read, character in enumerate(buffer.ahead, 1):
            if is_escaped:
                is_escaped = False
            elif in_string:
                in_string, is_escaped = character != '"', character == "\\"
            elif character in "{[":
                depth += 1
            elif not depth:
                raise ValueError("not an object")
            elif character in "}]":
                depth -= 1
            else:
                in_string = character == '"'
            if not depth:
                tell(buffer.take(num_read))
                return
        tell(buffer.take(len(buffer.ahead)))
        yield


def is_object(text: str) -> bool:
    """Whether a text is a whole object in JSON."""
    try:
        return isinstance(parse_json(text, "arguments"), dict)
    except JsonTextError:
        return False


JSON = ArgumentSyntax(lambda schema, place, lexicon: (lexicon.json(schema), {}), read_json)
