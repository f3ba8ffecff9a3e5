"""What a spelling of arguments is: a grammar for them, and a reader that gives them as JSON.

In: a function's JSON schema; text. Out: a piece of Lark; JSON, piece by piece.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from coordgen_rs.server.tools.lexicon import Lexicon


class Got(NamedTuple):
    """What a reader has made of text.

    Attributes:
        json: The next part of the arguments, as JSON.
        num_read: How many characters of the text it has used; the others are to come again, with
            more behind them.
        is_whole: Whether the arguments end there.
    """

    json: str
    num_read: int
    is_whole: bool


class ArgumentsReader(Protocol):
    """Reads the arguments of one call."""

    def read(self, text: str) -> Got:
        """What can be made of the next text.

        Raises:
            ValueError: It is not spelt in this way.
        """
        ...


@dataclass(frozen=True)
class Spelling:
    """A way to spell arguments.

    Attributes:
        lark: Takes a schema and its place in the grammar (a prefix for rules of its own): gives a
            piece of Lark for the arguments, and the rules that it refers to.
        reader: Takes a schema: gives a reader of one call's arguments.
        is_json: Whether they are JSON.
    """

    lark: Callable[[dict[str, Any], str, Lexicon], tuple[str, list[str]]]
    reader: Callable[[dict[str, Any]], ArgumentsReader]
    is_json: bool = False
