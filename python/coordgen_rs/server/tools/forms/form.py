"""What a form of calls is: how it is recognised, read, and held to.

In: a chat template; functions; an answer's text. Out: whether the template is for the form; a
reader; a grammar. Each file beside this one has a form, most of them a `Frame`.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from coordgen_rs.server.tools.calls import Parameters, Said
from coordgen_rs.server.tools.lexicon import Lexicon


@dataclass(frozen=True)
class Choice:
    """What the answer may be, besides or instead of text.

    Attributes:
        parameters: The functions that may be called.
        is_required: Whether one has to be called: then nothing else is said.
        is_parallel: Whether more than one may be called.
        answer: The JSON schema that the answer is held to where nothing is called; None for text.
    """

    parameters: Parameters
    is_required: bool = False
    is_parallel: bool = True
    answer: dict[str, Any] | None = None


class Reader(Protocol):
    """Reads the calls of one answer.

    Attributes:
        is_open: Whether a call has been told of which arguments are missing.
    """

    @property
    def is_open(self) -> bool:
        """See the class."""
        ...

    def read(self, text: str) -> list[Said]:
        """What is certain with this piece of text."""
        ...

    def end(self, *, is_cut: bool) -> list[Said]:
        """What is left at the end of the answer.

        Args:
            is_cut: Whether a limit or a stop string ended it: a mark that has begun is no text.
        """
        ...


class CallForm(Protocol):
    """A way to write calls.

    Attributes:
        name: What it is called.
        marks: Texts that are special tokens in some tokenizers: the answer's text is to show them.
        id_len: How long the templates of its models want the ids of calls; None for any length.
    """

    @property
    def name(self) -> str:
        """See the class."""
        ...

    @property
    def id_len(self) -> int | None:
        """See the class."""
        ...

    @property
    def marks(self) -> tuple[str, ...]:
        """See the class."""
        ...

    def is_of(self, template: str) -> bool:
        """Whether a chat template, given by its source, is for models that write this form."""
        ...

    def grammar(self, choice: Choice, lexicon: Lexicon) -> str:
        """What the answer is held to, in Lark.

        Raises:
            UnsupportedGrammarError: The schema of a function cannot be followed.
        """
        ...

    def reader(self, parameters: Parameters, *, is_held: bool) -> Reader:
        """Read an answer.

        Args:
            parameters: The functions that may be called.
            is_held: Whether the answer is held to the grammar.
        """
        ...
