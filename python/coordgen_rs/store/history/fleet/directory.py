"""What a build leaves: an index for each namespace, a table of its documents, and a list of both.

In: a directory. Out: what is in it, or an error that says why it is no build. Who drafts needs the
index alone, and finds it by its name; tables and list are for merging it into another build.
"""

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from coordgen_rs.errors import HistoryError, HistoryMismatchError
from coordgen_rs.files.json_text import JsonTextError, read_json
from coordgen_rs.files.typed_json import FieldError, parse
from coordgen_rs.store.files import write_file
from coordgen_rs.store.history.fleet.documents import ROW, Table
from coordgen_rs.store.history.indexes import index_name

LIST_NAME: Final = "fleet.json"
FORMAT: Final = "coordgen-fleet-1"
_HEAD_BYTES = 80
"""The header of an index. It holds a checksum of the checksums of all blocks."""
_MOST_LIST_BYTES = 1 << 30
_NAME = re.compile(r"[0-9a-f]{32}\.(index|documents)")


@dataclass(frozen=True)
class IndexEntry:
    """What the list says of an index.

    Attributes:
        namespace: The namespace of its requests.
        num_requests: The number of its requests.
        num_tokens: Tokens of all requests, including a terminator for each.
        text_start: Byte of the index at which their tokens begin.
        head_sha256: Of the index's header, by which an index of another build is noticed.
    """

    namespace: str
    num_requests: int
    num_tokens: int
    text_start: int
    head_sha256: str


@dataclass(frozen=True)
class BuildList:
    """The content of `fleet.json`.

    Attributes:
        format: The format of all files of the build.
        fingerprint: Identifies the tokenizer.
        vocab_size: Number of ids in the vocabulary.
        max_tokens: The limit of each namespace.
        namespaces: The indexes, by the name of their namespace.
    """

    format: Literal["coordgen-fleet-1"]
    fingerprint: str
    vocab_size: int
    max_tokens: int
    namespaces: list[IndexEntry]

    def check_tokenizer(self, directory: Path, fingerprint: str, vocab_size: int) -> None:
        """Refuse a build of another tokenizer.

        Args:
            directory: Where the build is, for messages.
            fingerprint: The fingerprint that it must have.
            vocab_size: The size of the vocabulary that it must have.

        Raises:
            HistoryMismatchError: It is one.
        """
        if (self.fingerprint, self.vocab_size) != (fingerprint, vocab_size):
            raise HistoryMismatchError(
                f"{directory} was built for another tokenizer: its fingerprint and vocabulary size "
                f"are {self.fingerprint} and {self.vocab_size}, not {fingerprint} and {vocab_size}"
            )


class NotBuiltError(HistoryError):
    """A directory holds no list of a build."""


def fleet_key(fingerprint: str, vocab_size: int, namespace: str) -> bytes:
    """What an index of a fleet is opened with; no history's own index has the same."""
    parts = (fingerprint, str(vocab_size), namespace, "fleet")
    return hashlib.sha256("\0".join(parts).encode()).digest()


def index_path(directory: Path, namespace: str) -> Path:
    """Where the index of a namespace is."""
    return directory / index_name(namespace)


def table_path(directory: Path, namespace: str) -> Path:
    """Where the table of an index's documents is."""
    return index_path(directory, namespace).with_suffix(".documents")


def head_sha256(index: Path) -> str:
    """The SHA-256 of an index's header."""
    with index.open("rb") as stream:
        return hashlib.sha256(stream.read(_HEAD_BYTES)).hexdigest()


def write_list(directory: Path, listed: BuildList) -> None:
    """Write the list, which ends a build."""
    content = json.dumps(asdict(listed), indent=1).encode() + b"\n"
    write_file(directory / LIST_NAME, content, private=True)


def remove_others(directory: Path, kept: Collection[Path]) -> None:
    """Remove indexes and tables of a build that are not among those to keep."""
    for path in directory.iterdir():
        if _NAME.fullmatch(path.name) and path not in kept and path.is_file():
            path.unlink(missing_ok=True)


def read_list(directory: Path) -> BuildList:
    """The list of a build.

    Raises:
        HistoryError: It is not such a list.
        NotBuiltError: There is none.
    """
    path = directory / LIST_NAME
    try:
        return parse(BuildList, read_json(path, most_bytes=_MOST_LIST_BYTES), str(path))
    except FileNotFoundError as error:
        raise NotBuiltError(f"{directory} is not a built history: no {LIST_NAME}") from error
    except (JsonTextError, FieldError, OSError) as error:
        raise HistoryError(f"{path} cannot be used: {error}") from error


def read_table(directory: Path, entry: IndexEntry) -> Table:
    """Where in its index each document of a namespace lies.

    Raises:
        HistoryError: The files are of different builds, as one leaves them that was killed.
    """
    index, path = index_path(directory, entry.namespace), table_path(directory, entry.namespace)
    try:
        table: Table = np.load(path)
        is_whole = (
            table.dtype == ROW
            and len(table) == entry.num_requests
            and head_sha256(index) == entry.head_sha256
        )
    except (OSError, ValueError, EOFError) as error:
        raise HistoryError(f"{path} cannot be used: {error}") from error
    if not is_whole:
        raise HistoryError(
            f"{index} is not of the build that {directory / LIST_NAME} lists: build it again"
        )
    return table
