"""The index files beside a history's database: what they are called, and their removal.

In: namespaces. Out: names, which tell ours from other people's files, and what each is opened with.
`.index` is that of a namespace's requests, or of a fleet's; `.corpus` a segment of its documents.
What is in an index is the core's (`src/draft/sources/history/format.rs`).
"""

import hashlib
import re
import secrets
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from coordgen_rs._core import remove_abandoned
from coordgen_rs.store.files import sweep

LIST_NAME = "fleet.json"
"""The list of a fleet's indexes, beside them."""
_MAGIC = b"coordgen"
"""What an index begins with."""
_INDEX, _SEGMENT = re.compile(r"[0-9a-f]{32}\.index"), re.compile(r"[0-9a-f]{32}\.corpus")


def index_name(namespace: str) -> str:
    """The file name of a namespace's index: any text can name a namespace."""
    return hashlib.sha256(namespace.encode()).hexdigest()[:32] + ".index"


def new_segment_name() -> str:
    """A name that no other segment has, so that one that is open stays what it is."""
    return f"{secrets.token_hex(16)}.corpus"


def index_key(fingerprint: str, vocab_size: int, namespace: str, kind: str) -> bytes:
    """What an index is opened with; none of another kind or namespace has the same.

    Args:
        fingerprint: Identifies the tokenizer.
        vocab_size: Number of ids in the vocabulary.
        namespace: The namespace.
        kind: `fleet`, `corpus`, or the epoch of a machine's own requests.
    """
    parts = (fingerprint, str(vocab_size), namespace, kind)
    return hashlib.sha256("\0".join(parts).encode()).digest()


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
        if _INDEX.fullmatch(path.name) and path.is_file() and _first_bytes(path) == _MAGIC:
            path.unlink(missing_ok=True)
    if others:
        remove_unfinished(directory)


def remove_unfinished(directory: Path) -> None:
    """Remove what killed runs left of the indexes of any namespace."""
    sweep(directory, _INDEX)


def remove_strays(directory: Path, kept: Collection[str]) -> None:
    """Remove the segments that are not to be kept, and what killed runs left of any."""
    sweep(directory, _SEGMENT)
    for path in directory.iterdir():
        if _SEGMENT.fullmatch(path.name) and path.name not in kept:
            with suppress(OSError):  # it may be open elsewhere, on Windows: the next one's task
                path.unlink(missing_ok=True)


def _first_bytes(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as stream:
        return stream.read(len(_MAGIC))
    return b""
