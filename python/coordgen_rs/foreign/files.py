"""Files of other tools, read whole.

In: a path. Out: what the file holds, or a `BundleError` that names it.
"""

import hashlib
from pathlib import Path
from typing import Any

from coordgen_rs.bundle.manifest import FileRecord
from coordgen_rs.errors import BundleDamagedError, BundleError
from coordgen_rs.files import json_text
from coordgen_rs.files.file_errors import file_errors_as
from coordgen_rs.files.json_text import JsonTextError, read_bytes

MOST_JSON_BYTES = 64 << 20
_MOST_BYTES = 2 << 30
"""Of a protobuf message; tokenizers are shorter."""


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


def record_of(content: bytes) -> FileRecord:
    """Size and hash of a file with that content."""
    return FileRecord(len(content), hashlib.sha256(content).hexdigest())
