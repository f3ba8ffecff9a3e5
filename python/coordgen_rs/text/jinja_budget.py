"""What one rendering of a chat template may take: time, work, and what it makes.

In: what is about to be done, and what was made. Out: nothing, or `jinja2.TemplateError`. A size is
in characters; an item of a list counts as many, since it takes as much memory.
"""

import time
from collections.abc import Mapping, MappingView
from threading import local
from typing import Any

from jinja2 import TemplateError

MOST_CHARS = 8 << 20
"""Longest text that a template makes: more than any model reads."""

ITEM_CHARS = 16
"""What an item of a list counts as."""

_MOST_MADE = 8 * MOST_CHARS
"""Most characters that a rendering makes in all, also if they are dropped at once."""

_MOST_WORK = 4_000_000
"""Most rounds of loops, and calls."""

_MOST_SECONDS = 20.0
MOST_BITS = 4096
_CONTAINERS = (list, tuple, dict, set, frozenset, MappingView)


class Budget:
    """What is left to the rendering of this thread."""

    def __init__(self) -> None:
        self._spent = local()
        self.restart()

    def restart(self) -> None:
        """Begin a rendering: nothing is spent yet."""
        self._spent.work = self._spent.made = 0
        self._spent.until = time.monotonic() + _MOST_SECONDS

    def spend(self, work: int = 1) -> None:
        """Count work.

        Raises:
            TemplateError: It is too much.
        """
        spent = self._spent
        if not hasattr(spent, "work"):
            self.restart()
        spent.work += work
        if spent.work > _MOST_WORK or time.monotonic() > spent.until:
            raise TemplateError("it does not end: too many loops and calls")

    def make(self, size: int) -> None:
        """Count what was made, or is about to be.

        Raises:
            TemplateError: It is too long, or all together is too much.
        """
        check_length(size)
        self.spend()
        self._spent.made += size
        if self._spent.made > _MOST_MADE:
            raise TemplateError(f"it makes more than {_MOST_MADE:,} characters of text")


def check_length(length: int) -> None:
    """Check how long a text, or a list, would be.

    Raises:
        TemplateError: It would be too long.
    """
    if length > MOST_CHARS:
        raise TemplateError(f"a text of it is longer than {MOST_CHARS:,} characters")


def checked(value: Any) -> Any:
    """Check a value that a template has obtained, and return it.

    Raises:
        TemplateError: It is too large.
    """
    if isinstance(value, str | bytes):
        check_length(len(value))
    elif isinstance(value, _CONTAINERS):
        check_length(length_as_text(value))
    elif isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise TemplateError("its numbers are too large")
    return value


def own_size(value: Any) -> int:
    """What a value takes by itself: what a list holds was there before."""
    if isinstance(value, str | bytes):
        return len(value)
    return ITEM_CHARS * len(value) if isinstance(value, _CONTAINERS) else 1


def length_as_text(value: Any, *, is_shown: bool = False) -> int:
    """About the length of `str(value)`, which no text is made for.

    Args:
        value: Anything.
        is_shown: Whether what a text shows of quotes and control characters counts, too.
    """
    return _length(value, {}, is_shown)


def _length(value: Any, known: dict[int, int], is_shown: bool) -> int:
    """The length of nested values; each is looked at once, as lists may hold one many times."""
    if isinstance(value, str | bytes):
        return len(value) if not is_shown or value.isalnum() else len(repr(value))
    if not isinstance(value, _CONTAINERS):
        return ITEM_CHARS
    if id(value) not in known:
        items: Any = value
        if isinstance(value, Mapping):
            items = [*value.keys(), *value.values()]
        known[id(value)] = ITEM_CHARS + sum(_length(item, known, is_shown) for item in items)
    return known[id(value)]
