"""Segments of documents: read, written, merged, and written anew without what was removed.

In: pieces with new tokens, and the names of documents. Out: files beside the database, and tables
that name them; what is in the tables, and the newest whole segments, opened below a history's own
requests, as they change under running processes. Each segment is an index over some documents,
written once, under a random name, and never changed. It is whole before a table names it, and
removed after none does, so that a kill leaves a stray file at most, which the next change removes.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coordgen_rs._core import SharedHistory
from coordgen_rs.errors import HistoryIndexError
from coordgen_rs.store.history.store import HistoryStore, index_key, new_segment_name, remove_strays
from coordgen_rs.store.history.texts import Document, NewTokens

_TRIES = 3
"""A segment that was merged between two looks is gone; the next look finds where it went."""

MOST_TOKENS = 20_000_000
"""Most tokens of a segment: sorting takes about 21 bytes of memory each."""

_FEW = 1 << 18
"""Segments of fewer tokens are sorted in no time, and count as equally long."""

_AT_A_TIME = 4
"""Segments of about one length that are merged, so that a token is sorted three times or four."""

_BLOCK_BYTES = 1 << 20

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS documents ("
    "id INTEGER PRIMARY KEY AUTOINCREMENT, namespace TEXT NOT NULL, name TEXT NOT NULL, "
    "sha256 TEXT NOT NULL, num_bytes INTEGER NOT NULL, read_bytes INTEGER NOT NULL, "
    "added_at REAL NOT NULL, UNIQUE (namespace, name))",
    "CREATE TABLE IF NOT EXISTS segments ("
    "number INTEGER PRIMARY KEY AUTOINCREMENT, file TEXT NOT NULL UNIQUE, "
    "namespace TEXT NOT NULL, num_tokens INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS pieces ("
    "number INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER NOT NULL, "
    "segment TEXT NOT NULL, start INTEGER NOT NULL, num_tokens INTEGER NOT NULL)",
    "CREATE INDEX IF NOT EXISTS pieces_by_document ON pieces (document)",
    "CREATE INDEX IF NOT EXISTS pieces_by_segment ON pieces (segment)",
)

_PUT_DOCUMENT = (
    "INSERT INTO documents (namespace, name, sha256, num_bytes, read_bytes, added_at) "
    "VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (namespace, name) DO UPDATE SET read_bytes = excluded.read_bytes"
)
_PUT_PIECE = "INSERT INTO pieces (document, segment, start, num_tokens) VALUES (?, ?, ?, ?)"

_DAMAGE = ("there is none", "it is no index", "it is cut off", "its header is damaged")
"""Reasons of the core (`index.rs`, `format.rs`) for which a segment will never be usable again. For
any other, such as too many open files, it may be whole."""


class Piece(NamedTuple):
    """A part of a document, as it lies in a segment.

    Attributes:
        number: In the order of adding.
        segment: The segment's file name.
        start: Byte of the file at which its tokens begin.
        num_tokens: Their number, without the terminator behind them.
    """

    number: int
    segment: str
    start: int
    num_tokens: int


def to_merge(sizes: Mapping[str, int]) -> list[str]:
    """Which segments are to become one; none while there are few of each length.

    Args:
        sizes: Tokens by name.
    """
    tiers: dict[int, list[str]] = {}
    for name in sorted(sizes, key=lambda name: (sizes[name], name)):
        tier = (max(sizes[name], _FEW) // _FEW).bit_length() // 2  # four times as long, one more
        tiers.setdefault(tier, []).append(name)
    for _, names in sorted(tiers.items()):
        if len(names) < _AT_A_TIME:
            continue
        totals = accumulate(sizes[name] for name in names)
        chosen = [name for name, total in zip(names, totals, strict=True) if total <= MOST_TOKENS]
        if len(chosen) > 1:
            return chosen
    return []


class Segments:
    """The documents of one namespace; nobody else may change them while they are changed here.

    Args:
        store: The database.
        namespace: The namespace.

    Attributes:
        folder: The directory of the segments.
        key: What they are opened with.
    """

    def __init__(self, store: HistoryStore, namespace: str) -> None:
        self._store, self._namespace = store, namespace
        self.folder, self._vocab_size = store.path.parent, store.vocab_size
        self.key = index_key(store.fingerprint, store.vocab_size, namespace, "corpus")

    def exist(self) -> bool:
        """Whether any document was ever added to the history."""
        return bool(self._texts("SELECT name FROM sqlite_master WHERE name = 'segments'"))

    @staticmethod
    def namespaces(store: HistoryStore) -> list[str]:
        """The namespaces that have documents."""
        segments = Segments(store, "")
        query = "SELECT DISTINCT namespace FROM documents ORDER BY namespace"
        return segments._texts(query) if segments.exist() else []

    def files(self) -> tuple[str, ...]:
        """The segments' file names, the oldest first."""
        query = "SELECT file FROM segments WHERE namespace = ? ORDER BY number"
        return tuple(self._texts(query, self._namespace)) if self.exist() else ()

    def documents(self, name: str | None = None) -> list[Document]:
        """The documents, by name; or the one that is called so, if there is one."""
        if not self.exist():
            return []
        query = (
            "SELECT name, num_bytes, read_bytes, COALESCE(SUM(num_tokens), 0), added_at, sha256 "
            "FROM documents LEFT JOIN pieces ON document = id WHERE namespace = ? "
        )
        query += ("" if name is None else "AND name = ? ") + "GROUP BY id ORDER BY name"
        parameters = [self._namespace] if name is None else [self._namespace, name]
        of = (str, int, int, int, float, str)
        return [Document(*row) for row in self._store.rows(query, *parameters, of=of)]

    def _texts(self, query: str, *parameters: object) -> list[str]:
        return [text for (text,) in self._store.rows(query, *parameters, of=(str,))]

    def add(self, piece: Sequence[NewTokens]) -> int:
        """Write a segment of new tokens; return their number, without terminators.

        Raises:
            HistoryIndexError: It cannot be written; then nothing is changed.
            sqlite3.Error: The same.
        """
        end = np.array([SharedHistory.TERMINATOR], np.uint32)
        parts = [part for one in piece if one.num_tokens for part in (*one.tokens, end)]
        file, start = new_segment_name(), 0
        with self._removing_if_failed(file):
            if parts:
                start = SharedHistory.write_index(
                    self.folder / file, np.concatenate(parts), self._vocab_size, 0, self.key
                )
            with self._store.connection:
                self._store.begin()
                for one in piece:
                    document = self._put(one)
                    if one.num_tokens:
                        self._do(_PUT_PIECE, (document, file, start, one.num_tokens))
                        start += 4 * (one.num_tokens + 1)
                if parts:
                    self._put_segment(file, sum(map(len, parts)))
        return sum(one.num_tokens for one in piece)

    def _put(self, new: NewTokens) -> int:
        """Note how much of a document has been added; return its id.

        One with the same name and other text is replaced, its pieces forgotten.
        """
        text, namespace = new.text, self._namespace
        if any(known.sha256 != text.sha256 for known in self.documents(text.name)):
            self._forget([text.name])
        row = (namespace, text.name, text.sha256, text.num_bytes, new.read_bytes, time.time())
        self._do(_PUT_DOCUMENT, row)
        query = "SELECT id FROM documents WHERE namespace = ? AND name = ?"
        ((number,),) = self._store.rows(query, namespace, text.name, of=(int,))
        return int(number)

    def _put_segment(self, file: str, num_tokens: int) -> None:
        query = "INSERT INTO segments (file, namespace, num_tokens) VALUES (?, ?, ?)"
        self._do(query, (file, self._namespace, num_tokens))

    def merge(self) -> None:
        """Merge segments, until there are few of each length.

        Raises:
            HistoryIndexError: One cannot be written; those that were merged before stay so.
            sqlite3.Error: The same.
        """
        while chosen := to_merge({file: used for file, (_, used) in self._sizes().items()}):
            self._rewrite([chosen])

    def fill_holes(self) -> None:
        """Write segments anew that hold what was replaced. Raises as `merge`."""
        for file, (whole, used) in self._sizes().items():
            if used < whole:
                self._rewrite([[file]])
        self.merge()

    def _sizes(self) -> dict[str, tuple[int, int]]:
        """Of each segment all tokens, and those of documents that are still there."""
        query = (
            "SELECT file, segments.num_tokens, TOTAL(pieces.num_tokens + 1) FROM segments "
            "LEFT JOIN pieces ON segment = file WHERE namespace = ? GROUP BY file"
        )
        rows = self._store.rows(query, self._namespace, of=(str, int, float))
        return {file: (whole, int(used)) for file, whole, used in rows}

    def remove(self, names: Collection[str]) -> None:
        """Remove documents.

        Raises:
            HistoryIndexError: A segment cannot be written; then nothing is removed.
            sqlite3.Error: The same.
        """
        query = (
            "SELECT segment FROM pieces JOIN documents ON id = document "
            "WHERE namespace = ? AND name = ?"
        )
        files = {file for name in names for file in self._texts(query, self._namespace, name)}
        self._rewrite([[file] for file in files], without=set(names))

    def forget(self, names: Collection[str]) -> None:
        """Forget documents; `fill_holes` then erases their text.

        Raises:
            sqlite3.Error: The database cannot be written.
        """
        with self._store.connection:
            self._store.begin()
            self._forget(names)

    def _forget(self, names: Collection[str], files: Iterable[str] = ()) -> None:
        """Forget documents, and segments, within a change; the tokens are in the files still."""
        which = [(self._namespace, name) for name in names]
        identity = "(SELECT id FROM documents WHERE namespace = ? AND name = ?)"
        self._do(f"DELETE FROM pieces WHERE document = {identity}", *which)
        self._do("DELETE FROM documents WHERE namespace = ? AND name = ?", *which)
        self._do("DELETE FROM segments WHERE file = ?", *((file,) for file in files))

    def remove_damage(self) -> list[str]:
        """Forget what lies in damaged segments, and remove what killed runs left.

        Only a segment that is missing, or is not what was written, is damaged.

        Returns:
            The names of the documents that are lost.

        Raises:
            HistoryIndexError: A segment cannot be read now, or by this version; then nothing is
                changed.
            OSError: The same.
            sqlite3.Error: The database cannot be written.
        """
        lost: list[str] = []
        if not self.exist():
            with self._store.connection:
                self._store.begin()
                for statement in _SCHEMA:
                    self._store.connection.execute(statement)
        query = "SELECT DISTINCT name FROM pieces JOIN documents ON id = document WHERE segment = ?"
        damaged = [file for file in self.files() if self._is_damaged(self.folder / file)]
        for file in damaged:
            names = self._texts(query, file)
            with self._store.connection:
                self._store.begin()
                self._forget(names, [file])
            lost += names
        remove_strays(self.folder, {*self._texts("SELECT file FROM segments")})
        return lost

    def _is_damaged(self, path: Path) -> bool:
        """Whether a segment is missing, or is not what was written.

        Raises:
            HistoryIndexError: That cannot be told.
            OSError: The same.
        """
        if SharedHistory.is_whole_index(path, self.key):
            return False
        opened = SharedHistory(self._vocab_size)
        try:
            opened.open_index(path, self.key)
        except HistoryIndexError as error:
            if str(error).endswith(_DAMAGE):
                return True
            raise HistoryIndexError(f"{path}: {error}; nothing was changed") from error
        if opened.check_index():
            return False
        with path.open("rb") as stream:  # where the disk fails, reading raises
            while stream.read(_BLOCK_BYTES):
                pass
        return True

    def _rewrite(self, groups: Sequence[Sequence[str]], without: Collection[str] = ()) -> None:
        """Write a segment in place of each group, some documents left out."""
        written: list[tuple[str, list[Piece]]] = []
        with self._removing_if_failed(*(new_segment_name() for _ in groups)) as names:
            for file, group in zip(names, groups, strict=True):
                if pieces := self._pieces(group, without):
                    written.append((file, self._gathered(file, group, pieces)))
            replaced = [file for group in groups for file in group]
            with self._store.connection:
                self._store.begin()
                self._forget(without, replaced)
                for file, pieces in written:
                    query = "UPDATE pieces SET segment = ?, start = ? WHERE number = ?"
                    self._do(query, *((it.segment, it.start, it.number) for it in pieces))
                    self._put_segment(file, sum(it.num_tokens + 1 for it in pieces))
        self._unlink(replaced)

    def _pieces(self, segments: Collection[str], without: Collection[str]) -> list[Piece]:
        """The pieces in some segments, those of a document together, some documents left out."""
        query = (
            "SELECT name, pieces.number, segment, start, num_tokens FROM pieces "
            "JOIN documents ON id = document WHERE segment = ? ORDER BY document, pieces.number"
        )
        of = (str, int, str, int, int)
        rows = [row for segment in segments for row in self._store.rows(query, segment, of=of)]
        return [Piece(*place) for name, *place in rows if name not in without]

    def _gathered(self, file: str, sources: Sequence[str], pieces: Sequence[Piece]) -> list[Piece]:
        """Write a segment of pieces that lie in others; return where they lie in it."""
        places = [(sources.index(one.segment), one.start, one.num_tokens) for one in pieces]
        start = SharedHistory.write_gathered_index(
            self.folder / file,
            [self.folder / source for source in sources],
            places,
            self._vocab_size,
            self.key,
            private=True,
        )
        moved = []
        for one in pieces:
            moved.append(Piece(one.number, file, start, one.num_tokens))
            start += 4 * (one.num_tokens + 1)
        return moved

    @contextmanager
    def _removing_if_failed(self, *files: str) -> Iterator[tuple[str, ...]]:
        try:
            yield files
        except BaseException:
            self._unlink(files)
            raise

    def _unlink(self, files: Collection[str]) -> None:
        for file in files:
            with suppress(OSError):  # on Windows it may be open: a stray, which goes later
                Path(self.folder, file).unlink(missing_ok=True)

    def _do(self, statement: str, *rows: tuple[object, ...]) -> None:
        """Change the tables, once for each row of parameters."""
        self._store.connection.executemany(statement, rows)


class CorpusLayer:
    """The documents of one namespace, to be drafted from.

    Args:
        store: The database.
        namespace: The namespace.
        shared: The history below which the segments are opened.
    """

    def __init__(self, store: HistoryStore, namespace: str, shared: SharedHistory) -> None:
        self._segments, self._shared = Segments(store, namespace), shared
        self._seen: tuple[str, ...] = ()
        self._unusable: tuple[str, ...] = ()
        self._wrong: str | None = None

    def refresh(self) -> str | None:
        """Open the segments if they are not those of the last time. Costs two queries.

        Those that could not be opened are tried again, at the cost of opening one.

        Returns:
            What is wrong with them.

        Raises:
            HistoryError: The tables are damaged.
            sqlite3.Error: The database cannot be read.
        """
        for _ in range(_TRIES):
            found = self._segments.files()
            if found == self._seen and not any(map(self._can_be_opened, self._unusable[:1])):
                if self._wrong is None and self._shared.is_corpus_damaged:
                    return "a segment is damaged, and not used; add its documents again"
                return self._wrong
            self._wrong = self._open(self._shared, found)
            if self._wrong is None:
                self._seen, self._unusable = found, ()
                return None
        # Told apart in a history of their own: what is drafted from stays until all is opened.
        self._unusable = tuple(file for file in found if not self._can_be_opened(file))
        usable = tuple(file for file in found if file not in self._unusable)
        self._seen = found if self._open(self._shared, usable) is None else ()
        return self._wrong

    def _can_be_opened(self, file: str) -> bool:
        return self._open(SharedHistory(self._shared.vocab_size, corpus=True), (file,)) is None

    def _open(self, shared: SharedHistory, files: tuple[str, ...]) -> str | None:
        try:
            paths = [self._segments.folder / file for file in files]
            shared.open_corpus(paths, self._segments.key)
        except HistoryIndexError as error:
            return f"a segment cannot be used: {error}; add its documents again"
        return None
