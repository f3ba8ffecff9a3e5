"""JSON files of other tools, each of them one object."""

from pathlib import Path
from typing import Any

from coordgen_rs.errors import BundleError
from coordgen_rs.files.json_text import JsonTextError, read_json

MOST_JSON_BYTES = 64 << 20


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that is one JSON object.

    Raises:
        BundleError: It is missing or malformed; the message names it.
    """
    try:
        document = read_json(path, most_bytes=MOST_JSON_BYTES, long_integers=True)
    except JsonTextError as error:
        raise BundleError(str(error)) from error
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from error
    if not isinstance(document, dict):
        raise BundleError(f"{path} does not hold an object")
    return document
