"""How much a request asks for: tokens of an answer, and answers.

In: fields of a body, under all the names that clients send them by. Out: numbers, or a refusal that
names the field. Two names of one thing must agree.
"""

from collections.abc import Callable
from typing import TypeVar

from coordgen_rs.server.asked.fields import Fields

MOST_CHOICES = 16
"""Most answers to a request."""

ALL_THAT_FIT = -1
"""What llama.cpp's clients send for an answer as long as the context has room for."""

_T = TypeVar("_T")


def limit_of(fields: Fields, *names: str, default: int | None = None) -> int | None:
    """The most tokens of the answer; None for as many as fit.

    Args:
        fields: The fields of the body.
        names: The names of the limit, the first one first in messages.
        default: Where none is given.

    Raises:
        RefusalError: It is out of range, or the names disagree.
    """
    limit = alias_of(fields, *names, read=lambda name: _limit(fields, name))
    if limit == ALL_THAT_FIT:
        return None
    return default if limit is None else limit


def num_choices_of(fields: Fields) -> int:
    """How many answers to give.

    Raises:
        RefusalError: It is out of range, or more are to be made than given.
    """
    num_choices = fields.count("n", least=1, most=MOST_CHOICES) or 1
    best_of = fields.count("best_of", least=1)
    if best_of is not None and best_of != num_choices:
        raise fields.wrong(
            "best_of",
            f"is {best_of}, but n is {num_choices}: all answers that are made are given, so leave "
            "best_of out",
        )
    return num_choices


def alias_of(fields: Fields, *names: str, read: Callable[[str], _T | None]) -> _T | None:
    """A value that has several names.

    Args:
        fields: The fields of the body.
        names: The names.
        read: Reads the field of a name; None where it is absent.

    Raises:
        RefusalError: `read` says so, or two names disagree.
    """
    found = [(name, value) for name in names if (value := read(name)) is not None]
    for name, value in found[1:]:
        first, other = found[0]
        if value != other:
            raise fields.wrong(name, f"is {value}, but {fields.name(first)} is {other}")
    return found[0][1] if found else None


def _limit(fields: Fields, name: str) -> int | None:
    limit = fields.count(name, least=ALL_THAT_FIT)
    if limit == 0:
        raise fields.wrong(name, "must be at least 1, or -1 for as many tokens as fit")
    return limit
