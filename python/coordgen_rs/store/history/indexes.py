"""The index files of a history's directory: what they are called, and their removal.

In: namespaces. Out: names, which tell ours from other people's files. What is in an index is the
core's (`src/draft/sources/history/format.rs`).
"""

import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from coordgen_rs._core import remove_abandoned
from coordgen_rs.store.files import sweep

_MAGIC = b"coordgen"
"""What an index begins with."""
_NAME = re.compile(r"[0-9a-f]{32}\.index")


def index_name(namespace: str) -> str:
    """The file name of a namespace's index: any text can name a namespace."""
    return hashlib.sha256(namespace.encode()).hexdigest()[:32] + ".index"


def remove_indexes(directory: Path, namespaces: Iterable[str], *, others: bool) -> None:
    """Remove the indexes of some namespaces, and what killed runs left of them.

    Args:
        directory: The history's directory.
        namespaces: The namespaces whose indexes are removed, whatever is in them.
        others: Whether indexes of namespaces that are not known any more are removed too; a file
            is one only if both its name and its first bytes say so.
    """
    for name in map(index_name, namespaces):
        (directory / name).unlink(missing_ok=True)
        remove_abandoned(directory / name)
    for path in directory.iterdir() if others else ():
        if _NAME.fullmatch(path.name) and path.is_file() and _first_bytes(path) == _MAGIC:
            path.unlink(missing_ok=True)
    if others:
        remove_unfinished(directory)


def remove_unfinished(directory: Path) -> None:
    """Remove what killed runs left of the indexes of any namespace."""
    sweep(directory, _NAME)


def _first_bytes(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as stream:
        return stream.read(len(_MAGIC))
    return b""
