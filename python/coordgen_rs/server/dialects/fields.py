"""The body of a request: read within bounds, parsed, and its fields read once each, none left over.

In: a request. Out: its fields, or an error. What is longer than any prompt that fits is refused by
its head. Long bodies are parsed in another thread, so that the streams of other clients do not wait
for them. A field that is null counts as absent; what is wrong with one is an error that names it,
and so is a field that nobody has read.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.errors.json_text import JsonTextError, parse_json
from coordgen_rs.server.api_error import APIError
from coordgen_rs.text.tokenizer import Tokenizer

_T = TypeVar("_T")

MOST_BODY_BYTES = 8 << 20
"""The longest body of any request, whatever the model."""

MOST_VALUES = 200_000
"""Values of lists and objects: each takes far more memory than it has letters."""

LONG_BODY_BYTES = 32 << 10
"""What is shorter is parsed sooner than it is handed to a thread: about half a millisecond."""

SLOWEST_BODY_S = 60.0
"""Seconds that a client has to send a whole body."""

_BYTES_BESIDE = 512 << 10
"""What a body may hold beside its prompt: tools, a schema, settings."""
_ESCAPED = 4
"""How many times as long a text may be that is written as JSON: three times where each letter is
one of `\\u00e4`, and some more for an expected answer beside it."""

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


class Fields:
    """The fields of one JSON object.

    Args:
        value: The object.
        where: Its own name in messages; "" for the body.

    Raises:
        APIError: It is no object.
    """

    def __init__(self, value: object, where: str = "") -> None:
        if not isinstance(value, dict):
            what = where or "the body"
            raise APIError(
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
            APIError: It is something else.
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
            APIError: It is something else.
        """
        return self.checked(name, lambda n, v: arguments.count(n, v, least=least, most=most))

    def text(self, name: str) -> str | None:
        """Text.

        Raises:
            APIError: It is something else.
        """
        return self.checked(name, arguments.text)

    def needed(self, name: str, how: str) -> str:
        """Text that has to be there; `how` is what the message says where it is not.

        Raises:
            APIError: It is absent, or something else.
        """
        text = self.text(name)
        if text is None:
            raise self.wrong(name, how)
        return text

    def one_of(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        """One of some words; `default` where it is absent.

        Raises:
            APIError: It is none of them, or absent without a default.
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
            APIError: `read` says so, or two names disagree.
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
            APIError: It is something else.
        """
        given = self.take(name)
        if not isinstance(given, list) or len(given) < least:
            raise self.wrong(name, how)
        return [Fields(one, f"{self.name(name)}[{index}]") for index, one in enumerate(given)]

    def nested(self, name: str) -> "Fields":
        """The fields of an object, of an empty one if it is absent.

        Raises:
            APIError: It is something else.
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
            APIError: It asks for something else.
        """
        value = self.take(name)
        same = [item for item in allowed if isinstance(item, bool) == isinstance(value, bool)]
        if value is not None and value not in same:
            raise self.unsupported(name, f"is not supported: {why}")

    def ignore(self, *names: str) -> None:
        """Read fields that say nothing about the answer."""
        for name in names:
            self.take(name)

    def end(self, *ignored: str, known: Sequence[str] = (), but: str | None = None) -> None:
        """Refuse what nobody has read.

        Args:
            ignored: Fields that say nothing about the answer.
            known: Fields that OpenAI has, but that cannot be had here.
            but: A field that is read next: what is wrong with it may come of another's name; None
                for none.

        Raises:
            APIError: There is something.
        """
        self.ignore(*ignored)
        for name in self._left:
            if name == but:
                continue
            param = self.name(name)
            said, code = f"{param} is not supported", "unsupported_parameter"
            if name not in known:
                shown = arguments.shown(param).strip("'")
                said, code = f"unknown field: {shown}", "unknown_parameter"
            raise APIError(said, param=param, code=code)

    def wrong(self, name: str, how: str) -> APIError:
        """The error of a field's value."""
        return APIError(f"{self.name(name)} {how}", param=self.name(name), code="invalid_value")

    def unsupported(self, name: str, how: str) -> APIError:
        """The error of a value that means something, but not here."""
        param = self.name(name)
        return APIError(f"{param} {how}", param=param, code="unsupported_value")

    def checked(self, name: str, check: Callable[[str, Any], _T]) -> _T | None:
        """A value as a check gives it; None if it is absent.

        Args:
            name: The field.
            check: Takes its name in messages, and its value; may raise an OptionError.

        Raises:
            APIError: It does.
        """
        value = self.take(name)
        if value is None:
            return None
        try:
            return check(self.name(name), value)
        except OptionError as error:
            raise APIError(str(error), param=self.name(name), code="invalid_value") from error


def most_body_bytes(tokenizer: Tokenizer, context: int) -> int:
    """How long a body may be for a model of so many tokens."""
    if tokenizer.bound is None:
        return MOST_BODY_BYTES
    longest = context * tokenizer.bound.bytes_per_token
    return min(MOST_BODY_BYTES, _BYTES_BESIDE + _ESCAPED * longest)


async def read(
    request: Request,
    most_bytes: int,
    in_thread: Callable[[Callable[[], Fields]], Awaitable[Fields]],
) -> Fields:
    """The fields of a request's body.

    Args:
        request: Nothing of its body has been read.
        most_bytes: A longer body is refused.
        in_thread: Runs what takes long.

    Raises:
        APIError: The body is compressed, too long, too slow, cut short, or no JSON object.
    """
    coding = request.headers.get("content-encoding", "identity")
    if coding.strip().lower() not in ("", "identity"):
        raise APIError(
            "the Content-Encoding of a body has to be identity: send it without compression",
            status=415,
            param="Content-Encoding",
            code="unsupported_encoding",
            headers={"Accept-Encoding": "identity"},
        )
    try:
        async with asyncio.timeout(SLOWEST_BODY_S):
            body = await _body(request, most_bytes)
    except ClientDisconnect as error:
        raise APIError("the client went away while it sent the body") from error
    except TimeoutError as error:
        raise APIError(
            f"the body did not come within {SLOWEST_BODY_S:g} s",
            status=408,
            headers={"Connection": "close"},
        ) from error

    if len(body) > LONG_BODY_BYTES:
        return await in_thread(lambda: _parsed(body))
    return _parsed(body)


def _parsed(body: bytes) -> Fields:
    """The fields of a body.

    Raises:
        APIError: It is no JSON object, or would become far more objects than it has bytes.
    """
    if _num_values(body) > MOST_VALUES and _num_values(_STRING.sub(b"", body)) > MOST_VALUES:
        raise APIError(
            f"the body has more than {MOST_VALUES:,} values in lists and objects",
            status=413,
            code="body_too_large",
        )
    try:
        return Fields(parse_json(body, "the body"))
    except JsonTextError as error:
        raise APIError(str(error), code="invalid_json") from error


def _num_values(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


async def _body(request: Request, most_bytes: int) -> bytes:
    """The bytes of a body.

    Raises:
        APIError: There are too many; where its head says so, none are read.
    """
    said = request.headers.get("content-length", "0")
    body, headers = bytearray(), dict[str, str]()
    if said.isdecimal() and int(said) <= most_bytes:
        async for piece in request.stream():
            body += piece
            if len(body) > most_bytes:
                headers = {"Connection": "close"}  # how much more there is, nobody knows
                break
        else:
            return bytes(body)
    raise APIError(
        f"the body is longer than {most_bytes:,} bytes, the most that this path takes",
        status=413,
        code="body_too_large",
        headers=headers,
    )
