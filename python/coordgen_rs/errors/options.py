"""Options as data: what there is to know of one stands once, at its key of a TypedDict.

In: TypedDicts whose keys are `Annotated[type, Option(..), "VALUE: a line of help"]`, where the last
is for what the command line has, and what a caller gives. Out: records, which have every key,
checked. The command line and the server read the same table.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args

from coordgen_rs.errors import arguments


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
