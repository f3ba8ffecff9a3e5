"""What machines give each other: exported requests, and the indexes of a fleet's build.

In: lines that any program may have written. Out: a header and `StoredRequest`s, all checked; it
writes no line, `cli/commands/history.py` does. In: a directory. Out: what is in it, or an error
that says why it is no build; and an index, opened below a history's own requests. Who drafts needs
the index alone, and finds it by its name; the list is for merging it into another build, and so are
the tables of documents beside it (`lab/fleet/tables.py`).
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import numpy as np

from coordgen_rs._core import SharedHistory
from coordgen_rs.errors import HistoryError, HistoryIndexError, HistoryMismatchError
from coordgen_rs.errors.json_text import (
    FieldError,
    JsonTextError,
    parse,
    parse_json_lines,
    read_json,
)
from coordgen_rs.store.history.store import (
    LAST_INSTANT,
    LIST_NAME,
    MOST_VOCABULARY,
    StoredRequest,
    index_key,
    index_name,
)

EXPORT_FORMAT: Final = "coordgen-history-1"
_MOST_LINE_BYTES = 256 << 20

BUILD_FORMAT: Final = "coordgen-fleet-1"
_MOST_LIST_BYTES = 1 << 30


@dataclass(frozen=True)
class ExportHeader:
    """The first line of an export."""

    format: Literal["coordgen-history-1"]
    fingerprint: str
    vocab_size: int


@dataclass(frozen=True)
class _Line:
    """Any line behind it: one request."""

    namespace: str
    finished_at: float
    prompt_len: int
    token_ids: list[int]


def read_exported(stream: BinaryIO, name: str) -> tuple[ExportHeader, Iterator[StoredRequest]]:
    """The header, and the requests as they are read.

    Args:
        stream: Opened for bytes.
        name: The stream's name in messages.

    Raises:
        HistoryError: A line is malformed, also while requests are read; the message names it.
    """
    lines = _lines(stream, name)
    where, first = next(lines, (name, None))
    if first is None:
        raise HistoryError(f"{name} is no exported history: it begins with no header")
    try:
        header = parse(ExportHeader, first, where)
    except FieldError as error:
        raise HistoryError(f"{where} is not the header of an exported history: {error}") from error
    if not 1 <= header.vocab_size <= MOST_VOCABULARY or not header.fingerprint:
        raise HistoryError(f"{where} has an impossible vocab_size or fingerprint")
    return header, (_request(value, where, header.vocab_size) for where, value in lines)


def _lines(stream: BinaryIO, name: str) -> Iterator[tuple[str, Any]]:
    try:
        for number, value in parse_json_lines(stream, name, most_line_bytes=_MOST_LINE_BYTES):
            yield f"{name}, line {number}", value
    except JsonTextError as error:
        raise HistoryError(str(error)) from error


def _request(value: Any, where: str, vocab_size: int) -> StoredRequest:
    try:
        line = parse(_Line, value, where)
    except FieldError as error:
        raise HistoryError(f"{where} is not a request: {error}") from error
    if not 0 <= line.finished_at < LAST_INSTANT:
        raise HistoryError(f"{where} is not a request: finished_at is {line.finished_at}")
    if not 0 <= line.prompt_len <= len(line.token_ids):
        raise HistoryError(f"{where} is not a request: prompt_len is {line.prompt_len}")
    if line.token_ids and not 0 <= min(line.token_ids) <= max(line.token_ids) < vocab_size:
        raise HistoryError(f"{where} is not a request: token ids outside the vocabulary")
    token_ids = np.asarray(line.token_ids, np.uint32)
    return StoredRequest(line.namespace, line.finished_at, line.prompt_len, token_ids)


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


def index_path(directory: Path, namespace: str) -> Path:
    """Where the index of a namespace is."""
    return directory / index_name(namespace)


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


class FleetLayer:
    """The fleet's index of one namespace.

    Args:
        directory: Holds the indexes; none need be there yet.
        namespace: The namespace whose index is read.
        fingerprint: Identifies the tokenizer.
        shared: The history below which the index is opened.

    Raises:
        HistoryError: There is no such directory.
        HistoryMismatchError: The indexes were built for another tokenizer or vocabulary.
    """

    def __init__(
        self, directory: Path, namespace: str, fingerprint: str, shared: SharedHistory
    ) -> None:
        if not directory.is_dir():
            raise HistoryError(f"{directory} holds no fleet's history: it is not a directory")
        with suppress(NotBuiltError):  # a device needs the indexes alone
            read_list(directory).check_tokenizer(directory, fingerprint, shared.vocab_size)
        self._namespace, self._shared = namespace, shared
        self._key = index_key(fingerprint, shared.vocab_size, namespace, "fleet")
        # It is looked at again with each request, from wherever the process is.
        self._path = index_path(directory.absolute(), namespace)
        self._seen: tuple[int, ...] | None = ()
        self._wrong: str | None = None

    def refresh(self) -> str | None:
        """Open the index if another one took its place. Costs a look at the file's status.

        Returns:
            What is wrong with the index; then the one before is used on.
        """
        try:
            status = self._path.stat()
        except OSError:
            self._seen = None
            return f"{self._path.parent} has no index for the namespace {self._namespace!r}"
        found = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        if found != self._seen:
            self._seen, self._wrong = found, None
            try:
                self._shared.open_fleet_index(self._path, self._key)
            except HistoryIndexError as error:
                self._wrong = f"{self._path}: {error}; it is not used"
        elif self._wrong is None and self._shared.is_fleet_damaged:
            return f"{self._path}: a block is damaged; it is not used until it is replaced"
        return self._wrong
