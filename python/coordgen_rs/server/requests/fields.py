"""The fields of a request's body: each read once, with its type and bounds, none left over.

In: a JSON object. Out: values. A field that is null counts as absent. What is wrong is a refusal
that names the field; so is a field that nobody has read.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.server.refusal import RefusalError

_T = TypeVar("_T")


class Fields:
    """The fields of one JSON object.

    Args:
        value: The object.
        where: Its own name in messages; "" for the body.

    Raises:
        RefusalError: It is no object.
    """

    def __init__(self, value: object, where: str = "") -> None:
        if not isinstance(value, dict):
            what = where or "the body"
            raise RefusalError(
                f"{what} must be a JSON object, but is {arguments.shown(value)}",
                param=where or None,
            )
        self._where = where
        self._left = {name: item for name, item in value.items() if item is not None}

    def name(self, name: str) -> str:
        """A field's name as messages show it."""
        return f"{self._where}.{name}" if self._where else name

    def has(self, name: str) -> bool:
        """Whether a field is there that has not been read yet."""
        return name in self._left

    def peek(self, name: str) -> Any:
        """The value of a field that is read later; None if it is absent."""
        return self._left.get(name)

    def take(self, name: str) -> Any:
        """The value of a field as it is; None if it is absent."""
        return self._left.pop(name, None)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A field that is true or false.

        Raises:
            RefusalError: It is something else.
        """
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, f"must be true or false, but is {arguments.shown(value)}")
        return value

    def count(self, name: str, *, least: int = 0, most: int | None = None) -> int | None:
        """A whole number within bounds, both inclusive.

        Raises:
            RefusalError: It is something else.
        """
        return self.checked(name, lambda n, v: arguments.count(n, v, least=least, most=most))

    def text(self, name: str) -> str | None:
        """Text.

        Raises:
            RefusalError: It is something else.
        """
        return self.checked(name, arguments.text)

    def one_of(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        """One of some words; `default` where it is absent.

        Raises:
            RefusalError: It is none of them, or absent without a default.
        """
        word = self.text(name) or default
        if word is None or word not in choices:
            raise self.wrong(name, f"must be one of {', '.join(choices)}")
        return word

    def alias(self, *names: str, read: Callable[[str], _T | None]) -> _T | None:
        """A value that has several names.

        Args:
            names: The names.
            read: Reads the field of a name; None where it is absent.

        Raises:
            RefusalError: `read` says so, or two names disagree.
        """
        found = [(name, value) for name in names if (value := read(name)) is not None]
        for name, value in found[1:]:
            first, other = found[0]
            if value != other:
                raise self.wrong(name, f"is {value}, but {self.name(first)} is {other}")
        return found[0][1] if found else None

    def objects(self, name: str, how: str, *, least: int = 0) -> list["Fields"]:
        """The fields of each object in a list.

        Args:
            name: The field.
            how: What the message says where it is no list, or a shorter one.
            least: How many there must be.

        Raises:
            RefusalError: It is something else.
        """
        given = self.take(name)
        if not isinstance(given, list) or len(given) < least:
            raise self.wrong(name, how)
        return [Fields(one, f"{self.name(name)}[{index}]") for index, one in enumerate(given)]

    def nested(self, name: str) -> "Fields":
        """The fields of an object, of an empty one if it is absent.

        Raises:
            RefusalError: It is something else.
        """
        value = self.take(name)
        return Fields({} if value is None else value, self.name(name))

    def only(self, name: str, *allowed: object, why: str) -> None:
        """Read a field that may only say what happens anyway.

        Args:
            name: The field.
            allowed: Its values that change nothing.
            why: What the message says about others.

        Raises:
            RefusalError: It asks for something else.
        """
        value = self.take(name)
        if value is not None and not any(_is_same(value, item) for item in allowed):
            raise self.unsupported(name, f"is not supported: {why}")

    def ignore(self, *names: str) -> None:
        """Read fields that say nothing about the answer."""
        for name in names:
            self.take(name)

    def end(self, known: Sequence[str] = (), *, but: str | None = None) -> None:
        """Refuse what nobody has read.

        Args:
            known: Fields that OpenAI has, but that cannot be had here.
            but: A field that is read next: what is wrong with it may come of another's name; None
                for none.

        Raises:
            RefusalError: There is something.
        """
        for name in self._left:
            if name == but:
                continue
            is_known = name in known
            raise RefusalError(
                f"{self.name(name)} is not supported" if is_known else _unknown(self.name(name)),
                param=self.name(name),
                code="unsupported_parameter" if is_known else "unknown_parameter",
            )

    def wrong(self, name: str, how: str) -> RefusalError:
        """The refusal of a field's value."""
        return RefusalError(f"{self.name(name)} {how}", param=self.name(name), code="invalid_value")

    def unsupported(self, name: str, how: str) -> RefusalError:
        """The refusal of a value that means something, but not here."""
        param = self.name(name)
        return RefusalError(f"{param} {how}", param=param, code="unsupported_value")

    def checked(self, name: str, check: Callable[[str, Any], _T]) -> _T | None:
        """A value as a check gives it; None if it is absent.

        Args:
            name: The field.
            check: Takes its name in messages, and its value; may raise an OptionError.

        Raises:
            RefusalError: It does.
        """
        value = self.take(name)
        if value is None:
            return None
        try:
            return check(self.name(name), value)
        except OptionError as error:
            raise RefusalError(str(error), param=self.name(name), code="invalid_value") from error


def _is_same(value: object, other: object) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def _unknown(name: str) -> str:
    return f"unknown field: {arguments.shown(name).strip(chr(39))}"
