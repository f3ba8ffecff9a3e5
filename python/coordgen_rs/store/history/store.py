"""The database of finished requests: SQLite in WAL mode, by namespace; and the indexes beside it.

In: token ids of finished requests. Out: the same, in the order in which they were finished. Every
change is one transaction, so a process that is killed loses at most the request in flight, and
several processes may use one database. `requests.py` drafts from it by index files, whose names
tell ours from other people's: `.index` is that of a namespace's requests, or of a fleet's;
`.corpus` a segment of its documents. What is in an index is the core's
(`src/draft/sources/history/format.rs`).
"""

import errno
import hashlib
import math
import os
import re
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import remove_abandoned
from coordgen_rs.errors import HistoryError, HistoryMismatchError, arguments
from coordgen_rs.store.background import NotCopied
from coordgen_rs.store.files import sweep

DATABASE_NAME = "history.sqlite"
SCHEMA_VERSION = 1

MOST_VOCABULARY = 2**31 - 1
"""Ids fit into an int32, and leave room for the end of a request."""

LAST_INSTANT = 253_402_300_800.0
"""The year 10000 in seconds since 1970: no later time has a date."""

_DIGITS = 1_000
"""Most digits of a limit: Python takes a while to read longer numbers."""

DEFAULT_MAX_TOKENS = 10_000_000
"""The limit of a history for which none was set."""

_SPARED = 8
"""An eighth of a limit of at least `_SPARED_FROM` tokens is evicted at once. An index holds what
is evicted, so it is built again each time; below, all is read again in no time."""

_SPARED_FROM = 8_192

_BUSY_S = 5.0
"""Seconds that a change waits for another process's change."""

_SCHEMA = f"""
CREATE TABLE properties (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE namespaces (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, epoch TEXT NOT NULL);
CREATE TABLE requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace INTEGER NOT NULL REFERENCES namespaces (id),
    finished_at REAL NOT NULL,
    prompt_len INTEGER NOT NULL,
    num_tokens INTEGER NOT NULL,
    token_ids BLOB NOT NULL
);
CREATE INDEX requests_by_namespace ON requests (namespace, number);
CREATE TABLE total (num_tokens INTEGER NOT NULL);
INSERT INTO total VALUES (0);
CREATE TRIGGER counted AFTER INSERT ON requests
BEGIN UPDATE total SET num_tokens = num_tokens + new.num_tokens; END;
CREATE TRIGGER discounted AFTER DELETE ON requests
BEGIN UPDATE total SET num_tokens = num_tokens - old.num_tokens; END;
PRAGMA user_version = {SCHEMA_VERSION};
"""
"""Statements, each of which ends with its line."""

_PUT_REQUEST = (
    "INSERT INTO requests (namespace, finished_at, prompt_len, num_tokens, token_ids) "
    "VALUES (?, ?, ?, ?, ?)"
)

LIST_NAME = "fleet.json"
"""The list of a fleet's indexes, beside them."""
_MAGIC = b"coordgen"
"""What an index begins with."""
_INDEX, _SEGMENT = re.compile(r"[0-9a-f]{32}\.index"), re.compile(r"[0-9a-f]{32}\.corpus")


@dataclass(frozen=True)
class StoredRequest:
    """A finished request.

    Attributes:
        namespace: The namespace it belongs to.
        finished_at: Seconds since 1970.
        prompt_len: How many of the tokens are the prompt; the others are the answer.
        token_ids: `(tokens,) u32`.
        number: Its number in the order of storing; 0 if not stored yet.
    """

    namespace: str
    finished_at: float
    prompt_len: int
    token_ids: NDArray[np.uint32]
    number: int = 0


@dataclass(frozen=True)
class NamespaceSummary:
    """What a namespace holds."""

    namespace: str
    num_requests: int
    num_tokens: int
    first_finished_at: float
    last_finished_at: float


class NoHistoryError(HistoryError):
    """There is no database, or one in which nothing was ever created."""


class HistoryStore(NotCopied):
    """The requests of a directory.

    Args:
        directory: Created if missing; what is created is readable by its owner only.
        fingerprint: Identifies tokenizer and vocabulary; None accepts what the database has.
        vocab_size: Number of ids in the vocabulary; needed to create the database.
        read_only: Create and change nothing.

    Attributes:
        fingerprint: The fingerprint in the database.
        vocab_size: The vocabulary size in the database.
        path: The database.
        read_only: Whether nothing may be changed.
        connection: SQLite's; what else the database holds is in `segments.py`.

    Raises:
        HistoryMismatchError: The database was written with another tokenizer or vocabulary.
        HistoryError: The database is damaged, of another version or no regular file;
            NoHistoryError, a HistoryError, if there is none.
        sqlite3.OperationalError, OSError: The directory or the database cannot be written.
    """

    def __init__(
        self,
        directory: Path,
        *,
        fingerprint: str | None = None,
        vocab_size: int | None = None,
        read_only: bool = False,
    ) -> None:
        directory = directory.absolute()  # others open it again, from wherever the process is
        path = directory / DATABASE_NAME
        self.path, self.read_only = path, read_only
        if directory.exists() and not directory.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is not a directory", str(directory))
        if path.exists() and not path.is_file():  # SQLite would wait for a pipe
            raise HistoryError(f"{path} is not a regular file")
        if not path.exists() and (directory / LIST_NAME).exists():  # it would write over indexes
            raise HistoryError(
                f"{directory} holds a fleet's history, which --fleet-history reads: keep your own "
                "in another directory"
            )
        if fingerprint is None or vocab_size is None or read_only:
            if not path.exists():
                raise NoHistoryError(f"{directory} holds no history: no {DATABASE_NAME}")
        else:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _create_private(path)
        mode = "mode=rwc"
        if read_only:
            # Without a log beside it nothing is to be recovered, and no file need be made for that.
            has_log = path.with_name(f"{DATABASE_NAME}-wal").exists()
            mode = "mode=ro" if has_log else "mode=ro&immutable=1"
        self.connection = sqlite3.connect(
            f"file:{quote(bytes(path.absolute()))}?{mode}",
            uri=True,
            timeout=_BUSY_S,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._open(fingerprint, vocab_size)
        except sqlite3.OperationalError:
            self.close()
            raise
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # messages quote damaged text
            self.close()
            raise HistoryError(f"{path} cannot be read: {error}") from error
        except BaseException:
            self.close()
            raise

    def _open(self, fingerprint: str | None, vocab_size: int | None) -> None:
        if not self.read_only:
            self._use_wal()
        version = self._value("PRAGMA user_version")
        if version == 0 and not self.read_only and fingerprint and vocab_size:
            with self.connection:  # another process may have been first
                self.begin()
                if self._value("PRAGMA user_version") == 0:
                    self._create(fingerprint, vocab_size)
            version = SCHEMA_VERSION
        if version == 0:  # as a disk that ran full left it
            raise NoHistoryError(f"{self.path.parent} holds no history: {self.path.name} is empty")
        if version != SCHEMA_VERSION:
            raise HistoryError(
                f"{self.path} has schema version {version}, this program reads {SCHEMA_VERSION}"
            )
        properties = dict(self.connection.execute("SELECT name, value FROM properties"))
        found, size = properties.get("fingerprint"), _number(properties.get("vocab_size"), 10)
        if not isinstance(found, str) or not 1 <= size <= MOST_VOCABULARY:
            raise self._damaged("it does not say of which vocabulary it is")
        self.fingerprint, self.vocab_size = found, size
        for what, expected, found in (
            ("tokenizer fingerprint", fingerprint, self.fingerprint),
            ("vocabulary size", vocab_size, self.vocab_size),
        ):
            if expected not in (None, found):
                raise HistoryMismatchError(
                    f"{self.path} was written with another tokenizer: its {what} is {found}, "
                    f"not {expected}"
                )

    def _use_wal(self) -> None:
        """Switch to WAL, waiting for other processes, which SQLite does not do here by itself.

        Raises:
            sqlite3.OperationalError: The database stays locked.
        """
        end = time.monotonic() + _BUSY_S
        while True:
            try:
                self.connection.execute("PRAGMA journal_mode = WAL").fetchall()
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(0.01)
        # A commit outlasts the process; only a power failure may take the last ones.
        self.connection.execute("PRAGMA synchronous = NORMAL")
        self.connection.execute("PRAGMA secure_delete = ON")

    def _create(self, fingerprint: str, vocab_size: int) -> None:
        for statement in _SCHEMA.split(";\n"):  # `executescript` would commit before it
            self.connection.execute(statement)
        self.connection.executemany(
            "INSERT INTO properties VALUES (?, ?)",
            [("fingerprint", fingerprint), ("vocab_size", str(vocab_size))],
        )

    def begin(self) -> None:
        """Begin a transaction, having waited for those of other processes.

        Within `with store.connection`, which ends it: that is SQLite's own code, where no interrupt
        comes between.

        Raises:
            sqlite3.Error: It cannot be written; then nothing is changed.
        """
        self.connection.execute("BEGIN IMMEDIATE")

    def rows(self, query: str, *parameters: object, of: tuple[type, ...]) -> list[tuple[Any, ...]]:
        """The rows of a query, their values checked: SQLite keeps to no types, and files rot.

        Args:
            query: Selects.
            parameters: Its own.
            of: The type of each value: `int` for counts, `float` for finite numbers.

        Raises:
            HistoryError: A value is another.
            sqlite3.Error: The database cannot be read.
        """
        found = self.connection.execute(query, parameters).fetchall()
        for row in found:
            for value, kind in zip(row, of, strict=True):
                if not _is(value, kind):
                    what = {str: "a text", int: "a count", float: "a number"}[kind]
                    raise self._damaged(f"{value!r:.60} where {what} should be")
        return found

    def _value(self, query: str, *parameters: object) -> int:
        (value,) = self.connection.execute(query, parameters).fetchone() or (None,)
        if not isinstance(value, int | None):
            raise self._damaged(f"{value!r:.60} where a number should be")
        return value or 0

    def _damaged(self, what: str) -> HistoryError:
        return HistoryError(f"{self.path} is damaged: {what}")

    @property
    def max_tokens(self) -> int:
        """Most tokens of all namespaces together: beyond them, the oldest requests are evicted.

        An eighth of the limit is evicted at once, so that indexes are seldom built again; of a
        limit below 8,192 tokens, no more than must be. The newest request stays if it fits alone.
        Kept in the database, for all who open it. What is there already is evicted when the next
        request is stored.

        Raises:
            HistoryError: It is damaged.
        """
        query = "SELECT value FROM properties WHERE name = 'max_tokens'"
        row = self.connection.execute(query).fetchone()
        if row is None:
            return DEFAULT_MAX_TOKENS
        limit = _number(row[0], _DIGITS)
        if limit < 1:  # it would evict everything
            raise self._damaged(f"its max_tokens is {row[0]!r:.60}; set it again")
        return limit

    @max_tokens.setter
    def max_tokens(self, max_tokens: int) -> None:
        max_tokens = arguments.count("max_tokens", max_tokens)
        self.connection.execute(
            "INSERT OR REPLACE INTO properties VALUES ('max_tokens', ?)", (str(max_tokens),)
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of all namespaces."""
        return self._value("SELECT num_tokens FROM total")

    def epoch(self, namespace: str) -> str:
        """Changes with each clearing and eviction: nothing older is used; "" for none."""
        query = "SELECT epoch FROM namespaces WHERE name = ?"
        row = self.connection.execute(query, (namespace,)).fetchone()
        return str(row[0]) if row else ""

    def count_tokens(self, namespace: str) -> int:
        """Tokens of a namespace."""
        query = "SELECT SUM(num_tokens) FROM requests JOIN namespaces ON id = namespace "
        return self._value(query + "WHERE name = ?", namespace)

    def add(self, requests: list[StoredRequest]) -> dict[str, int]:
        """Store requests and evict the oldest ones, all or nothing.

        Args:
            requests: Their own numbers do not matter. One above `max_tokens` is evicted at once.

        Returns:
            How many requests were evicted, by namespace.

        Raises:
            HistoryError: Its limit, or a request that is to be evicted, is damaged.
            sqlite3.Error: The database cannot be written.
        """
        with self.connection:
            self.begin()
            for one in requests:
                namespace, blob = self._namespace_id(one.namespace), one.token_ids.astype("<u4")
                row = (namespace, one.finished_at, one.prompt_len, len(blob), blob.tobytes())
                self.connection.execute(_PUT_REQUEST, row)
            evicted = self._evict()
        with suppress(OSError):  # nobody opens them any more, and the next ones take their place
            remove_indexes(self.path.parent, evicted, others=False)
        return evicted

    def _namespace_id(self, namespace: str) -> int:
        self.connection.execute(
            "INSERT OR IGNORE INTO namespaces (name, epoch) VALUES (?, ?)",
            (namespace, secrets.token_hex(8)),
        )
        return self._value("SELECT id FROM namespaces WHERE name = ?", namespace)

    def _evict(self) -> dict[str, int]:
        limit, newest = self.max_tokens, self._value("SELECT MAX(number) FROM requests")
        spared = limit // _SPARED if limit >= _SPARED_FROM else 0
        surplus = self.num_tokens - limit
        surplus += spared if surplus > 0 else 0
        evicted: list[tuple[int]] = []
        names: Counter[str] = Counter()
        for number, num_tokens, name in self._sizes("ORDER BY number"):
            if surplus <= 0 or (number == newest and surplus <= spared):  # that fits by itself
                break
            evicted.append((number,))
            names[name] += 1
            surplus -= num_tokens
        self.connection.executemany("DELETE FROM requests WHERE number = ?", evicted)
        query = "UPDATE namespaces SET epoch = ? WHERE name = ?"
        self.connection.executemany(query, [(secrets.token_hex(8), name) for name in names])
        return dict(names)

    def newest(self, namespace: str, num_tokens: int) -> int:
        """The number behind which a namespace's newest requests begin, of so many tokens.

        The newest one of all is among them, however long it is.
        """
        rows = self._sizes("WHERE name = ? ORDER BY number DESC", namespace)
        for place, (number, length, _) in enumerate(rows):
            num_tokens -= length
            if num_tokens < 0 and place > 0:
                return number
        return 0

    def _sizes(self, which: str, *parameters: object) -> Iterator[tuple[int, int, str]]:
        """Number, tokens and namespace of requests.

        Raises:
            HistoryError: One is damaged.
        """
        query = "SELECT number, num_tokens, name FROM requests JOIN namespaces ON id = namespace "
        for number, num_tokens, name in self.connection.execute(query + which, parameters):
            if not _is(num_tokens, int) or not _is(name, str):
                raise self._damaged(f"request {number} is not whole; clear the history")
            yield number, num_tokens, name

    def read(self, namespace: str | None = None, after: int = 0) -> Iterator[StoredRequest]:
        """The requests of a namespace, or of all, with numbers above `after`, the oldest first."""
        query = (
            "SELECT name, finished_at, prompt_len, token_ids, number "
            "FROM requests JOIN namespaces ON id = namespace WHERE number > ? "
        )
        parameters = [after] if namespace is None else [after, namespace]
        query += "ORDER BY number" if namespace is None else "AND name = ? ORDER BY number"
        for row in self.connection.execute(query, parameters):
            name, finished_at, prompt_len, blob, number = row
            is_whole = all(map(_is, row, (str, float, int, bytes, int)))
            if not is_whole or len(blob) % 4 or prompt_len > len(blob) // 4:
                raise self._damaged(f"request {number} is not whole; clear the history")
            token_ids = np.frombuffer(blob, "<u4").astype(np.uint32)
            yield StoredRequest(name, float(finished_at), prompt_len, token_ids, number)

    def namespaces(self) -> list[NamespaceSummary]:
        """All namespaces, by name."""
        query = (
            "SELECT name, COUNT(*), SUM(num_tokens), MIN(finished_at), MAX(finished_at) "
            "FROM requests JOIN namespaces ON id = namespace GROUP BY name ORDER BY name"
        )
        rows = self.rows(query, of=(str, int, int, float, float))
        return [NamespaceSummary(*row[:3], *map(float, row[3:])) for row in rows]

    def epochs(self) -> dict[str, str]:
        """The epochs of all namespaces, by their names, also where their requests are damaged."""
        rows = self.connection.execute("SELECT name, epoch FROM namespaces")
        return {name: str(epoch) for name, epoch in rows if isinstance(name, str)}

    def clear(self, namespace: str | None = None) -> int:
        """Erase the requests of a namespace, or of all; return how many there were."""
        names, of_names, of_requests = tuple[str, ...](), "", ""
        if namespace is not None:
            names, of_names = (namespace,), " WHERE name = ?"
            of_requests = f" WHERE namespace = (SELECT id FROM namespaces{of_names})"
        with self.connection:
            self.begin()
            cleared = self.connection.execute(f"DELETE FROM requests{of_requests}", names).rowcount
            self.connection.execute(f"DELETE FROM namespaces{of_names}", names)
        self.connection.execute("VACUUM")
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return cleared

    def close(self) -> None:
        """Close the database."""
        self.connection.close()


def told_evictions(store: HistoryStore, evicted: dict[str, int]) -> str:
    """A message that says what was evicted, and from which namespaces."""
    parts = (f"{count} of {name!r}" for name, count in sorted(evicted.items()))
    return (
        f"{store.path.parent} holds at most {store.max_tokens} tokens, so the oldest requests were "
        f"evicted: {', '.join(parts)}"
    )


def _create_private(path: Path) -> None:
    """Create the file, for its owner only, if it is not there; SQLite's own beside it follow it."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _is(value: object, kind: type) -> bool:
    """Whether a value of the database is of a kind, as `HistoryStore.rows` takes it."""
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, kind) and (not isinstance(value, int) or value >= 0)


def _number(value: object, most_digits: int) -> int:
    """A number that is kept as a text; 0 for what is none."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value) if len(value) <= most_digits else 0
    return 0


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
