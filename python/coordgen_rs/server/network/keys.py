"""API keys: who asks, told by the key that comes with a request.

In: keys as an administrator gives them. Out: the same, checked, each with the name of its owner.
Names are made of a key's hash where none is given, so that a key is never kept or shown.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from coordgen_rs.bundle.json_text import JsonTextError, read_bytes
from coordgen_rs.errors import OptionError

_MOST_FILE_BYTES = 1 << 20


class ApiKey(NamedTuple):
    """A key that clients send.

    Attributes:
        name: The name of its owner.
        secret: What they send.
    """

    name: str
    secret: bytes

    def __repr__(self) -> str:
        return f"ApiKey({self.name!r})"


def api_key(secret: str, name: str = "") -> ApiKey:
    """A key as a user gives it.

    Raises:
        OptionError: It cannot be sent in a header.
    """
    if not (secret and secret.isascii() and secret.isprintable() and " " not in secret):
        raise OptionError("the API key must be printable ASCII without spaces: it is a header")
    return ApiKey(
        name or f"key-{hashlib.sha256(secret.encode()).hexdigest()[:12]}", secret.encode()
    )


def read_keys(path: Path) -> list[ApiKey]:
    """The keys of a file: one a line, behind its name or alone; `#` begins a comment line.

    Raises:
        OptionError: The file cannot be read, or a line is none of these.
    """
    try:
        lines = read_bytes(path, most_bytes=_MOST_FILE_BYTES).decode().splitlines()
    except (OSError, JsonTextError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or error
        raise OptionError(f"--api-key-file {path} cannot be read: {said}") from error
    found = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            raise OptionError(f"{path}, line {number}: expected a key, or a name and a key")
        try:
            found.append(api_key(words[-1], words[0] if len(words) == 2 else ""))
        except OptionError as error:
            raise OptionError(f"{path}, line {number}: {error}") from error
    if not found:
        raise OptionError(f"--api-key-file {path} holds no key")
    return found


def checked_keys(keys: Iterable[ApiKey]) -> tuple[ApiKey, ...]:
    """Keys that all differ; those of one name are one client's.

    Raises:
        OptionError: One is given twice.
    """
    found = tuple(keys)
    secrets = [key.secret for key in found]
    for index, key in enumerate(found):
        if key.secret in secrets[:index]:
            raise OptionError(f"the API key of {key.name} is given twice")
    return found
