"""Checks of what callers pass in: token ids, rows, numbers, names, texts, paths and options.

In: a value and what to call it in messages. Out: the value in the one type that the code below
works with, or an error that names it, what it is, and what it must be. Done once, where data
enters; nothing below checks again. What there is to know of an option stands once, at its key of a
TypedDict, `Annotated[type, Option(..), "VALUE: a line of help"]`, where the last is for what the
command line has; command line, server and API read the same table.
"""

import math
import operator
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import OptionError, ShapeError, TokenOutOfRangeError, arguments

DEFAULT_NAMESPACE = "default"
"""The namespace of requests that do not name one."""

_Function = TypeVar("_Function")

_FIRST_ROWS = list(range(64))

_SHOWN = 60
"""Most characters of a wrong value in a message."""


def token_ids(what: str, ids: object, vocab_size: int) -> NDArray[np.uint32]:
    """Token ids as a new array, `(tokens,) u32`.

    Args:
        what: Its name in messages.
        ids: An array of integers, or a sequence of `int`: `(tokens,)`, maybe empty. Floats, bools,
            strings and batches are refused, never converted.
        vocab_size: All ids are below this.

    Raises:
        OptionError: They are not integers.
        ShapeError: They have more than one dimension, or none.
        TokenOutOfRangeError: One is not in the vocabulary.
    """
    found = _integers(what, ids)
    if found.ndim != 1:
        raise ShapeError(f"{what} has the shape {found.shape}, but must be (tokens,)")
    if len(found) and not 0 <= found.min() <= found.max() < vocab_size:
        wrong = found[(found < 0) | (found >= vocab_size)][0]
        raise TokenOutOfRangeError(
            f"{what}: token id {wrong} is outside the vocabulary of {vocab_size}"
        )
    return found.astype(np.uint32)


def _integers(what: str, ids: object) -> NDArray[Any]:
    """An array of integers, of any shape.

    Raises:
        OptionError: They are not integers.
        ShapeError: They are sequences of different lengths.
    """
    if isinstance(ids, str | bytes):
        raise OptionError(f"{what} must be token ids, but is text: {shown(ids)}")
    if isinstance(ids, Sequence) and not {bool, np.bool_}.isdisjoint(map(type, ids)):
        raise OptionError(f"{what} must be token ids, but holds a bool")
    try:
        found = np.asarray(ids)
    except (ValueError, TypeError, OverflowError) as error:
        raise ShapeError(f"{what} is not an array of the shape (tokens,): {error}") from error
    if found.dtype == object and all(isinstance(value, int) for value in found.flat):
        return found  # beyond 64 bits: out of range, whatever the vocabulary
    if found.shape == (0,):
        return np.zeros(0, np.uint32)
    if found.dtype.kind not in "ui":
        raise OptionError(f"{what} must be integers, but has the type {found.dtype}")
    return found


def commit_rows(rows: object, num_written: int) -> NDArray[np.uint32]:
    """Rows of a step that are to be committed, `(tokens,) u32`.

    Args:
        rows: Integers, strictly ascending.
        num_written: Rows after the committed tokens that the last step has written.

    Raises:
        OptionError: They are not integers.
        ShapeError: They do not ascend, or the last step has not written one.
    """
    if type(rows) is np.ndarray and rows.dtype == np.uint32 and rows.ndim == 1:
        found = rows  # at once: it is asked for every step
    else:
        found = _integers("rows", rows)
        if found.ndim != 1:
            raise ShapeError(f"rows has the shape {found.shape}, but must be (tokens,)")
    listed = found.tolist()
    is_first_rows = listed == _FIRST_ROWS[: len(listed)]
    if listed and not is_first_rows and (listed[0] < 0 or sorted({*listed}) != listed):
        raise ShapeError(f"rows must ascend from 0 or above, but are {shown(listed)}")
    if listed and listed[-1] >= num_written:
        raise ShapeError(
            f"row {listed[-1]} cannot be committed: there are {max(num_written, 0)} rows to commit"
        )
    return found.astype(np.uint32, copy=False)


def count(name: str, value: object, *, least: int = 1, most: int | None = None) -> int:
    """A whole number within bounds, both inclusive.

    Raises:
        OptionError: It is not an integer, or out of bounds.
    """
    if isinstance(value, bool | np.bool_):
        raise OptionError(f"{name} must be an integer, but is {value}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise OptionError(f"{name} must be an integer, but is {shown(value)}") from error
    if number < least:
        raise OptionError(f"{name} is {shown(number)}, but must be at least {least}")
    if most is not None and number > most:
        raise OptionError(f"{name} is {shown(number)}, but must be at most {most}")
    return number


def number(
    name: str,
    value: object,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
) -> float:
    """A finite number within bounds: `least` and `most` inclusive, `above` exclusive.

    Raises:
        OptionError: It is not a number, not finite, or out of bounds.
    """
    if isinstance(value, bool | np.bool_ | str | bytes):
        raise OptionError(f"{name} must be a number, but is {shown(value)}")
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionError(f"{name} must be a number, but is {shown(value)}") from error
    if not math.isfinite(found):
        raise OptionError(f"{name} is {found}, but must be finite")
    if above != -math.inf and not above < found <= most:
        raise OptionError(f"{name} is {found:g}, but must be above {above:g} and at most {most:g}")
    if found < least:
        raise OptionError(f"{name} is {found:g}, but must be at least {least:g}")
    if found > most:
        raise OptionError(f"{name} is {found:g}, but must be at most {most:g}")
    return found


def flag(name: str, value: object) -> bool:
    """True or False.

    Raises:
        OptionError: It is something else, such as 1 or "no".
    """
    if not isinstance(value, bool | np.bool_):
        raise OptionError(f"{name} must be True or False, but is {shown(value)}")
    return bool(value)


def function(name: str, value: _Function) -> _Function:
    """A callable, or None.

    Raises:
        OptionError: It is something else.
    """
    if value is not None and not callable(value):
        raise OptionError(f"{name} must be a function, but is {shown(value)}")
    return value


def of_type(name: str, value: object, *types: type) -> None:
    """Check that a value is of one of some types, or None.

    Raises:
        OptionError: It is something else.
    """
    if value is not None and not isinstance(value, types):
        names = " or ".join(one.__name__ for one in types)
        raise OptionError(f"{name} must be a {names}, but is {shown(value)}")


def having(name: str, value: object, attribute: str, kind: str) -> None:
    """Check that a value is None or has the attribute that tells its kind.

    Raises:
        OptionError: It is something else.
    """
    if value is not None and not hasattr(value, attribute):
        raise OptionError(f"{name} must be a {kind}, but is {shown(value)}")


def known(function: str, given: Collection[str], options: Collection[str]) -> None:
    """Check that a function has the options that it is given.

    Raises:
        OptionError: It has not; the message names the one that was probably meant.
    """
    for name in given:
        if name not in options:
            like = get_close_matches(name, options, n=1, cutoff=0.7)
            meant = f": did you mean {like[0]}?" if like else ""
            raise OptionError(f"{function} has no option {name}{meant}")


def text(name: str, value: object, *, may_be_empty: bool = True) -> str:
    """Text that can be encoded as UTF-8.

    Raises:
        OptionError: It is not a string, is empty but must not be, or holds half of a surrogate
            pair, as strings do that were decoded from bytes that are not UTF-8.
    """
    if not isinstance(value, str):
        raise OptionError(f"{name} must be a string, but is {shown(value)}")
    if not value and not may_be_empty:
        raise OptionError(f"{name} is empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        code = ord(value[error.start])
        raise OptionError(
            f"{name} is not valid Unicode: character {error.start} is the surrogate U+{code:04X}"
        ) from error
    return value


def one_of(name: str, value: object, choices: Collection[str]) -> str:
    """One of some names.

    Raises:
        OptionError: It is none of them; the message lists them.
    """
    if not isinstance(value, str) or value not in choices:
        raise OptionError(f"{name} is {shown(value)}, but must be one of {', '.join(choices)}")
    return value


def names(name: str, value: object) -> list[str]:
    """Some names, maybe none.

    Raises:
        OptionError: It is not a sequence of strings, or one of them is empty.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise OptionError(f"{name} must be a list of names, but is {shown(value)}")
    return [text(f"a name in {name}", item, may_be_empty=False) for item in value]


def path(name: str, value: object) -> Path:
    """A path that can be handed to the system.

    Raises:
        OptionError: It is not a path, is empty, or holds a character that no path can have.
    """
    if not isinstance(value, str | os.PathLike):
        raise OptionError(f"{name} must be a path, but is {shown(value)}")
    given = os.fspath(value)
    if not isinstance(given, str):
        raise OptionError(f"{name} must be a path of str, but is {shown(given)}")
    if not given:
        raise OptionError(f"{name} is empty")
    try:
        encoded = os.fsencode(given)
    except UnicodeEncodeError as error:
        raise OptionError(f"{name} cannot be a path here: {shown(given)}") from error
    if b"\0" in encoded:
        raise OptionError(f"{name} cannot be a path: it holds a NUL character")
    return Path(given)


def shown(value: object) -> str:
    """A wrong value for a message: on one line, cut if long."""
    if isinstance(value, int) and value.bit_length() > 200:  # Python refuses to print huge ones
        return f"an integer of {value.bit_length()} bits"
    line = ascii(value)
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}.."


@dataclass(frozen=True)
class Option:
    """What there is to know of an option beside its name.

    Attributes:
        default: What it is where it is not given.
        least: The least number that it may be.
        most: The most.
        above: What a number has to be above; where it is given, `least` says nothing.
        choices: The words that it may be; none where it may be others.
        may_be_empty: Whether a text may be.
        check: Gives a value checked, by the option's name, in place of what its type says.
        names: What bodies of HTTP requests call it, by dialect; the first is shown. A dialect that
            is missing does not have it.
        unset: What such bodies may say, too, for the default.
        types: What a value may be; `options_of` takes it from the annotation, as what follows.
        metavar: What help calls its value; empty for a flag.
        help: What it does, for the command line; empty where that does not have it.
    """

    default: Any = None
    least: Any = -math.inf
    most: Any = math.inf
    above: float = -math.inf
    choices: Sequence[str] = ()
    may_be_empty: bool = True
    check: Callable[[str, Any], Any] | None = None
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unset: Any = None
    types: Sequence[object] = ()
    metavar: str = ""
    help: str = ""

    def checked(self, name: str, value: Any) -> Any:
        """A value, in the type that the code below works with.

        Args:
            name: What messages call the option.
            value: What was given.

        Raises:
            OptionError: It is of a wrong type or out of range.
        """
        if value is None and NoneType in self.types:
            return None
        if self.check is not None:
            return self.check(name, value)
        if self.choices:
            return arguments.one_of(name, value, self.choices)
        if int in self.types:
            return arguments.count(name, value, least=self.least, most=self.most)
        if float in self.types:
            least, most, above = self.least, self.most, self.above
            return arguments.number(name, value, least=least, most=most, above=above)
        if bool in self.types:
            return arguments.flag(name, value)
        if Path in self.types:
            return arguments.path(name, value)
        if {*self.types} <= {str, NoneType}:
            return arguments.text(name, value, may_be_empty=self.may_be_empty)
        return value


@cache
def options_of(kind: Any) -> Mapping[str, Option]:
    """The options of a TypedDict, by name."""
    found = dict[str, Option]()
    for name, annotation in kind.__annotations__.items():
        given, *notes = get_args(annotation)
        option = next((note for note in notes if isinstance(note, Option)), Option())
        metavar, _, text = "".join(note for note in notes if note != option).partition(": ")
        found[name] = replace(
            option,
            names={dialect: names or (name,) for dialect, names in option.names.items()},
            types=get_args(given) if isinstance(given, UnionType) else (given,),
            metavar=metavar,
            help=text,
        )
    return found


def record(function: str, kind: type, given: Mapping[str, Any]) -> Any:
    """All options of a TypedDict: what is given, checked, and the defaults of the others.

    Args:
        function: What was called, for messages.
        kind: The TypedDict.
        given: What was given.

    Raises:
        OptionError: One is of a wrong type or out of range, or there is no such option.
    """
    options = options_of(kind)
    arguments.known(function, given, options)
    return {
        name: option.checked(name, given[name]) if name in given else option.default
        for name, option in options.items()
    }
