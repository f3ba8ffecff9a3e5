"""Values of options: from what was typed to what commands work with, checked as the API checks.

Each function takes the name of an option and returns a type for `argparse`. A wrong value is an
`OptionError` that names the option, raised while the command line is parsed.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from coordgen_rs.cli.terminal.byte_size import parse_bytes
from coordgen_rs.cli.terminal.text import from_argument
from coordgen_rs.errors import OptionError, arguments

_T = TypeVar("_T")


def count(name: str, *, least: int = 1, most: int = 2**63 - 1) -> Callable[[str], int]:
    """A whole number within bounds, both inclusive."""

    def parse(typed: str) -> int:
        try:
            value = int(typed)
        except ValueError as error:
            raise OptionError(
                f"{name} must be an integer, but is {arguments.shown(typed)}"
            ) from error
        return arguments.count(name, value, least=least, most=most)

    return parse


def number(
    name: str, *, least: float = -float("inf"), most: float = float("inf")
) -> Callable[[str], float]:
    """A finite number within bounds, both inclusive."""

    def parse(typed: str) -> float:
        try:
            value = float(typed)
        except ValueError as error:
            raise OptionError(
                f"{name} must be a number, but is {arguments.shown(typed)}"
            ) from error
        return arguments.number(name, value, least=least, most=most)

    return parse


def size(name: str) -> Callable[[str], int]:
    """A number of bytes: 800000000, 800M, 2G."""

    def parse(typed: str) -> int:
        try:
            return parse_bytes(typed)
        except OptionError as error:
            raise OptionError(f"{name}: {error}") from error

    return parse


def path(name: str) -> Callable[[str], Path]:
    """A path; not an empty one, which would be the working directory."""
    return lambda typed: arguments.path(name, typed)


def text(name: str, *, may_be_empty: bool = True) -> Callable[[str], str]:
    """Text in UTF-8."""

    def parse(typed: str) -> str:
        return arguments.text(name, from_argument(name, typed), may_be_empty=may_be_empty)

    return parse


def names(name: str) -> Callable[[str], list[str]]:
    """One name or more, with commas between them."""

    def parse(typed: str) -> list[str]:
        found = [part.strip() for part in from_argument(name, typed).split(",")]
        if not all(found):
            raise OptionError(f"{name} must be names, but is {arguments.shown(typed)}")
        return found

    return parse


def several(parse: Callable[[str], _T]) -> Callable[[str], list[_T]]:
    """Values with commas between them, each of which `parse` reads."""
    return lambda typed: [parse(part.strip()) for part in typed.split(",")]


def one_of(name: str, choices: Sequence[str]) -> Callable[[str], str]:
    """One of some words."""

    def parse(typed: str) -> str:
        arguments.one_of(name, typed, choices)
        return typed

    return parse


def refuse(options: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Refuse options that would be ignored.

    Args:
        options: None where an option was not given.
        names: Of the options, as attributes.
        why: What the message says after the option.

    Raises:
        OptionError: One was given; the message names it.
    """
    for name in names:
        given = getattr(options, name)
        if given is not None and given is not False:
            raise OptionError(f"--{name.replace('_', '-')} {why}")
