"""Calls of functions in what a model says: told apart from other text, as they are made.

In: an answer's text, piece by piece. Out: content, and calls. Text that turns out to be no call is
content: nothing that the model says is lost. How calls are written is known to `forms`; whether the
answer is held to that, so that a call that has begun can be streamed, to `holding.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from coordgen_rs.server.tools.forms.form import CallForm

Parameters = Mapping[str, dict[str, Any]]
"""The JSON schema of each function's arguments, by the function's name."""


class Content(NamedTuple):
    """Text of the answer, for the client."""

    text: str


class Thought(NamedTuple):
    """Thinking, which is no part of the answer."""

    text: str


class Call(NamedTuple):
    """A call, or the next part of one.

    Attributes:
        number: Its number in the answer, from 0.
        name: The function; None where only its arguments go on.
        arguments: JSON, or a part of it.
    """

    number: int
    name: str | None
    arguments: str


Said = Content | Thought | Call


@dataclass(frozen=True)
class Calling:
    """How the calls of one answer are told.

    Attributes:
        form: How the model writes them.
        parameters: The functions that may be called.
        is_held: Whether the answer is held to the form: calls are given as they are made.
    """

    form: "CallForm"
    parameters: Parameters
    is_held: bool = False


class CallReader:
    """Reads one answer.

    Args:
        calling: What may be called, and how; None for nothing: all is content.
    """

    def __init__(self, calling: Calling | None) -> None:
        self._reader = None
        if calling is not None:
            self._reader = calling.form.reader(calling.parameters, is_held=calling.is_held)
        self.num_calls = 0

    def read(self, text: str) -> list[Said]:
        """What is certain with this piece of text."""
        if self._reader is None:
            return [Content(text)] if text else []
        return self._counted(self._reader.read(text))

    def end(self, *, is_cut: bool = False) -> list[Said]:
        """What is left at the end of the answer; `is_cut` as in `Reader`."""
        return [] if self._reader is None else self._counted(self._reader.end(is_cut=is_cut))

    @property
    def is_open(self) -> bool:
        """Whether a call has been told of which arguments are missing."""
        return self._reader is not None and self._reader.is_open

    def _counted(self, found: list[Said]) -> list[Said]:
        self.num_calls += sum(isinstance(one, Call) and one.name is not None for one in found)
        return found
