"""What is wrong with a file, as the named error of whoever reads it.

In: a block that reads and parses a file. Out: the same block, whose errors name the file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coordgen_rs.errors import CoordgenError
from coordgen_rs.files.json_text import JsonTextError
from coordgen_rs.files.typed_json import FieldError


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
