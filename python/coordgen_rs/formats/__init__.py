"""Folders of other tools: what they have in common as bundles, and files that are read whole.

In: a path. Out: what the file holds, or a `BundleError` that names it.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coordgen_rs.bundle.directory import Bundle, Progress
from coordgen_rs.bundle.layers import MOST_OF_A_SIZE
from coordgen_rs.bundle.manifest import FileRecord
from coordgen_rs.errors import BundleDamagedError, BundleError, json_text
from coordgen_rs.errors.json_text import JsonTextError, file_errors_as, read_bytes

MOST_JSON_BYTES = 64 << 20
_MOST_BYTES = 2 << 30
"""Of a protobuf message; tokenizers are shorter."""


class ForeignFolder(Bundle):
    """A folder of another tool, whose files stay as they are.

    It says nothing of its files' contents, so only their sizes are known, and what is read whole.
    """

    has_checksums = False
    tokenizer_config = "tokenizer_config.json"

    def identity(self) -> bytes:
        """Same as in `Bundle`; hashes of what is read whole, and sizes of weights."""
        return self.manifest.to_json().encode()

    def verify(self, on_progress: Progress | None = None) -> None:
        """Does nothing: there is nothing to compare with."""


def token_ids(what: str, value: object) -> list[int]:
    """The tokens of a field that is one token or several.

    Raises:
        BundleError: They are none; the message begins with `what`.
    """
    found: list[Any] = value if isinstance(value, list) else [value]
    if any(not isinstance(token, int) or isinstance(token, bool) for token in found):
        raise BundleError(f"{what} is {found!r:.60}, expected token ids")
    return found


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that is one JSON object.

    Raises:
        BundleError: It is missing or malformed; the message names it.
    """
    with file_errors_as(BundleError, path):
        return json_text.read_object(path, most_bytes=MOST_JSON_BYTES, long_integers=True)


def read_content(path: Path) -> bytes:
    """The content of a file that is read whole.

    Raises:
        BundleDamagedError: It is missing, or cannot be read.
    """
    try:
        return read_bytes(path, most_bytes=_MOST_BYTES)
    except FileNotFoundError as error:
        raise BundleDamagedError(f"{path} is missing") from error
    except (JsonTextError, OSError) as error:
        raise BundleDamagedError(f"{path} cannot be read: {error}") from error


def check_sizes(path: Path, sizes: Mapping[str, int]) -> None:
    """Refuse sizes that no model has; `path` is the config that tells them.

    Raises:
        BundleError: There is one; the message names it.
    """
    for name, size in sizes.items():
        if not 1 <= size <= MOST_OF_A_SIZE:
            raise BundleError(f"{path}: {name} is {size}")


def check_tokens(path: Path, token_ids: Iterable[int], vocab_size: int) -> None:
    """Refuse tokens that are not in the vocabulary; `path` is the config that tells them.

    Raises:
        BundleError: There is one; the message names it.
    """
    for token in token_ids:
        if not 0 <= token < vocab_size:
            raise BundleError(f"{path}: token {token} is not in the vocabulary")


def record_of(content: bytes) -> FileRecord:
    """Size and hash of a file with that content."""
    return FileRecord(len(content), hashlib.sha256(content).hexdigest())
