"""JSON from outside, a document or a line at a time, read so that no file can do harm.

In: a path, or bytes with a name for messages, and perhaps the dataclass that it should be. Out:
what the text says, as `json.loads` gives it, or an instance of the dataclass with every field
checked for its type; or an error that names file, line or field. `file_errors_as` turns it into the
caller's own named error. What the values mean, and whether they agree, is the caller's to check.
"""

import dataclasses
import json
import os
import re
import stat
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

from coordgen_rs._core import parse_json_text
from coordgen_rs.errors import CoordgenError

_PIECE_BYTES = 1 << 20

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_T = TypeVar("_T")

_NUMBER = re.compile("0|[1-9][0-9]{0,17}")


class JsonTextError(ValueError):
    """A file is not what it should be: JSON in UTF-8; the message names it, and the line."""


@contextmanager
def file_errors_as(kind: type[CoordgenError], path: Path | str) -> Iterator[None]:
    """Turn what reading a file raises into one kind of error.

    Args:
        kind: The error.
        path: The file, or its name in messages.

    Raises:
        CoordgenError: The block raised a JsonTextError, FieldError or OSError.
    """
    try:
        yield
    except JsonTextError as error:
        raise kind(str(error)) from error
    except FieldError as error:
        raise kind(f"{path}: {error}") from error
    except OSError as error:
        raise kind(f"{path} cannot be read: {error.strerror or error}") from error


def read_json(path: Path, *, most_bytes: int, long_integers: bool = False) -> Any:
    """Read a file that is one JSON document.

    Args:
        path: A regular file. A pipe or a device is refused, not waited for.
        most_bytes: A longer file is refused.
        long_integers: Same as in `parse_json`.

    Raises:
        JsonTextError: It is no regular file, too long, or not JSON as in `parse_json`.
        OSError: It cannot be read.
    """
    text = read_bytes(path, most_bytes=most_bytes)
    return parse_json(text, str(path), long_integers=long_integers)


def read_object(path: Path, *, most_bytes: int, long_integers: bool = False) -> dict[str, Any]:
    """Read a file that is one JSON object; arguments and errors are those of `read_json`.

    Raises:
        JsonTextError: It is something else.
        OSError: It cannot be read.
    """
    text = read_bytes(path, most_bytes=most_bytes)
    return parse_object(text, str(path), long_integers=long_integers)


def read_json_lines(path: Path, *, most_line_bytes: int) -> Iterator[tuple[int, Any]]:
    """Read a file with a JSON document on each line.

    Args:
        path: A regular file. A pipe or a device is refused, not waited for.
        most_line_bytes: A longer line is refused; the file may have any length.

    Returns:
        The number of each line, from 1, and what it says. Blank lines are left out.

    Raises:
        JsonTextError: It is no regular file, or a line is too long, or not JSON.
        OSError: It cannot be read.
    """
    with open_regular(path) as stream:
        yield from parse_json_lines(stream, str(path), most_line_bytes=most_line_bytes)


def read_bytes(path: Path, *, most_bytes: int) -> bytes:
    """Read a regular file whole.

    Args:
        path: A regular file. A pipe or a device is refused, not waited for.
        most_bytes: A longer file is refused.

    Raises:
        JsonTextError: It is no regular file, or longer.
        OSError: It cannot be read.
    """
    with open_regular(path) as stream:
        # As much as is asked for is allocated at once, so no more is asked for than there is.
        said = min(os.fstat(stream.fileno()).st_size, most_bytes)
        content = stream.read(said + 1)
        # It may be longer than was said: it grows, or its file system does not know lengths.
        more = content[said:]
        while more and len(content) <= most_bytes:
            more = stream.read(_PIECE_BYTES)
            content += more
    if len(content) > most_bytes:
        raise JsonTextError(f"{path} is longer than {most_bytes:,} bytes")
    return content


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for bytes. A pipe or a device is refused, not waited for.

    Raises:
        JsonTextError: It is no regular file.
        OSError: It cannot be opened.
    """
    # Without O_NONBLOCK, opening a named pipe waits for someone to write into it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise JsonTextError(f"{path} is {_kind(mode)}, not a regular file")
        return open(descriptor, "rb")  # noqa: PTH123 (it is a descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def parse_json_lines(
    stream: BinaryIO, name: str, *, most_line_bytes: int
) -> Iterator[tuple[int, Any]]:
    """Read JSON lines from an open stream, such as stdin.

    Args:
        stream: Opened for bytes.
        name: The stream's name in messages.
        most_line_bytes: A longer line is refused.

    Returns:
        The number of each line, from 1, and what it says. Blank lines are left out.

    Raises:
        JsonTextError: A line is too long, or not JSON as in `parse_json`.
    """
    number = 0
    while line := stream.readline(most_line_bytes + 1):
        number += 1
        where = f"{name}, line {number}"
        if len(line) > most_line_bytes:
            raise JsonTextError(f"{where} is longer than {most_line_bytes:,} bytes")
        if number > 1 and line.startswith(_BYTE_ORDER_MARK):
            raise JsonTextError(f"{where} begins with a byte order mark")
        if line.removeprefix(_BYTE_ORDER_MARK).decode(errors="replace").strip():
            yield number, parse_json(line, where)


def parse_json(text: str | bytes, name: str, *, long_integers: bool = False) -> Any:
    """Parse a JSON document.

    It is UTF-8, with or without a byte order mark. Refused is also what readers disagree on: a key
    that stands twice in an object, NaN and Infinity, numbers beyond a float64 or beyond 64 bits
    (-2^63 to 2^64 - 1), half of a surrogate pair, and more than 100 lists and objects inside each
    other.

    Args:
        text: The document.
        name: Its name for messages, and where it is one of many, its line.
        long_integers: Also take integers beyond 64 bits, such as the 10^30 that stands for "no
            limit" in tokenizer_config.json.

    Raises:
        JsonTextError: It is not such a document.
    """
    try:
        return parse_json_text(text, long_integers)
    except SyntaxError as error:
        raise JsonTextError(f"{name} {_what_is_wrong(text, error)}") from error
    except ValueError as error:
        raise JsonTextError(f"{name} {error}") from error


def parse_object(text: str | bytes, name: str, *, long_integers: bool = False) -> dict[str, Any]:
    """Parse a JSON object; arguments are those of `parse_json`.

    Raises:
        JsonTextError: It is something else.
    """
    document = parse_json(text, name, long_integers=long_integers)
    if not isinstance(document, dict):
        raise JsonTextError(f"{name} does not hold an object")
    return document


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a pipe" if stat.S_ISFIFO(mode) else "a device"


def _what_is_wrong(text: str | bytes, found: SyntaxError) -> str:
    """What Python's own reader, which counts lines and columns, says of text that is not JSON."""
    if isinstance(text, bytes):
        text = text.decode()
    try:
        json.loads(text.removeprefix("\ufeff"), parse_constant=_refuse)
    except json.JSONDecodeError as error:
        return f"is not valid JSON: {error}"
    except ValueError as error:
        return str(error)
    return f"is not valid JSON: {found}"


def _refuse(literal: str) -> None:
    raise ValueError(f"holds {literal}, which is not JSON")


class FieldError(ValueError):
    """A field is missing, of another type or out of range; the message names it."""


@dataclass(frozen=True)
class Within:
    """What a number must be, both ends included: `Annotated[int, Within(1, 8)]`."""

    least: float
    most: float


def require(holds: bool, problem: str) -> None:
    """Refuse what contradicts itself.

    Raises:
        FieldError: It does not hold; `problem` is the message.
    """
    if not holds:
        raise FieldError(problem)


def require_range(where: str, value: float, least: float, most: float) -> None:
    """Refuse a number that is not `least` to `most`, both included.

    Raises:
        FieldError: It is not; the message names the field.
    """
    require(least <= value <= most, f"{where} is {value}, expected {least} to {most}")


def parse(expected: type[_T], value: Any, where: str) -> _T:
    """Turn parsed JSON into `expected`: a dataclass, list, dict, Literal, optional or plain type.

    Unknown fields are ignored, so that a later version may add some. `object` takes anything, and
    a field whose default is None may be left out.

    Raises:
        FieldError: A field is missing, of another type, or an integer beyond 64 bits; the message
            names it.
    """
    parsed: Any = _parse_any(expected, value, where)
    return typing.cast(_T, parsed)


def _parse_any(expected: Any, value: Any, where: str) -> Any:
    if expected is object:
        return value
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if dataclasses.is_dataclass(expected):
        return _parse_fields(expected, _instance(dict, value, where), where)
    if origin is list:
        items = _instance(list, value, where)
        return [_parse_any(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(items)]
    if origin is dict:
        return {
            _parse_key(arguments[0], key, where): _parse_any(arguments[1], item, f"{where}.{key}")
            for key, item in _instance(dict, value, where).items()
        }
    if origin is Annotated:
        number = _parse_any(arguments[0], value, where)
        require_range(where, number, arguments[1].least, arguments[1].most)
        return number
    if origin is Literal:
        if value not in arguments:
            raise FieldError(f"{where} is {value!r}, expected one of {', '.join(arguments)}")
        return value
    if origin in (types.UnionType, typing.Union):  # the latter of what is Annotated
        return None if value is None else _parse_any(arguments[0], value, where)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise FieldError(f"{where} is {value!r:.60}, beyond 64 bits")
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _instance(expected, value, where)


def _parse_fields(expected: Any, value: dict[str, Any], where: str) -> Any:
    kinds, optional = _fields(expected)
    types_by_name = {k: v for k, v in kinds.items() if k in value or k not in optional}
    missing = sorted(types_by_name.keys() - value.keys())
    if missing:
        raise FieldError(f"{where} has no field {missing[0]}")
    return expected(
        **{
            name: _parse_any(kind, value[name], f"{where}.{name}")
            for name, kind in types_by_name.items()
        }
    )


@cache
def _fields(expected: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of a dataclass's fields by name, and which fields may be left out.

    Kept, as evaluating the annotations takes a third of the time of reading a manifest.
    """
    optional = {item.name for item in dataclasses.fields(expected) if item.default is None}
    return typing.get_type_hints(expected, include_extras=True), frozenset(optional)


def _parse_key(expected: Any, key: str, where: str) -> Any:
    if expected is str:
        return key
    if not _NUMBER.fullmatch(key):
        raise FieldError(f"{where} has the key {key!r:.60}, expected a number")
    return int(key)


def _instance(expected: Any, value: Any, where: str) -> Any:
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise FieldError(
            f"{where} is {type(value).__name__} {value!r:.60}, expected {expected.__name__}"
        )
    return value
