"""The tables of documents, in the history's database: documents, their pieces, and segments.

In: names. Out: which documents there are, and where in which segment their pieces lie. The tokens
themselves are in the segments alone (`segments.py`).
"""

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from coordgen_rs.store.history.store import HistoryStore

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


@dataclass(frozen=True)
class Document:
    """A document of a corpus.

    Attributes:
        name: What it is called.
        num_bytes: The length of its text.
        read_bytes: How much of it has been added: less where that was interrupted.
        num_tokens: Tokens of what has been added.
        added_at: Seconds since 1970.
        sha256: Of its text.
    """

    name: str
    num_bytes: int
    read_bytes: int
    num_tokens: int
    added_at: float
    sha256: str

    @property
    def is_whole(self) -> bool:
        """Whether all of it has been added."""
        return self.read_bytes == self.num_bytes


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


class Tables:
    """The documents of one namespace.

    Args:
        store: The database.
        namespace: The namespace.
    """

    def __init__(self, store: HistoryStore, namespace: str) -> None:
        self._store, self._namespace = store, namespace

    def create(self) -> None:
        """Make the tables, unless they are there.

        Raises:
            sqlite3.Error: The database cannot be written.
        """
        if not self.exist():
            with self._store.connection:
                self._store.begin()
                for statement in _SCHEMA:
                    self._store.connection.execute(statement)

    def exist(self) -> bool:
        """Whether any document was ever added to the history."""
        return bool(self._texts("SELECT name FROM sqlite_master WHERE name = 'segments'"))

    @staticmethod
    def namespaces(store: HistoryStore) -> list[str]:
        """The namespaces that have documents."""
        tables = Tables(store, "")
        query = "SELECT DISTINCT namespace FROM documents ORDER BY namespace"
        return tables._texts(query) if tables.exist() else []

    def files(self) -> tuple[str, ...]:
        """The segments' file names, the oldest first."""
        query = "SELECT file FROM segments WHERE namespace = ? ORDER BY number"
        return tuple(self._texts(query, self._namespace)) if self.exist() else ()

    def all_files(self) -> set[str]:
        """Those of all namespaces."""
        return {*self._texts("SELECT file FROM segments")}

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Of each segment all tokens, and those of documents that are still there."""
        query = (
            "SELECT file, segments.num_tokens, TOTAL(pieces.num_tokens + 1) FROM segments "
            "LEFT JOIN pieces ON segment = file WHERE namespace = ? GROUP BY file"
        )
        rows = self._store.rows(query, self._namespace, of=(str, int, float))
        return {file: (whole, int(used)) for file, whole, used in rows}

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

    def put(self, name: str, sha256: str, num_bytes: int, read_bytes: int) -> int:
        """Note how much of a document has been added; return its id.

        One with the same name and other text is replaced, its pieces forgotten. Within a change.
        """
        if any(known.sha256 != sha256 for known in self.documents(name)):
            self.forget([name])
        self._do(
            "INSERT INTO documents (namespace, name, sha256, num_bytes, read_bytes, added_at) "
            "VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (namespace, name) DO UPDATE SET read_bytes = excluded.read_bytes",
            (self._namespace, name, sha256, num_bytes, read_bytes, time.time()),
        )
        query = "SELECT id FROM documents WHERE namespace = ? AND name = ?"
        ((number,),) = self._store.rows(query, self._namespace, name, of=(int,))
        return int(number)

    def put_segment(self, file: str, num_tokens: int) -> None:
        """Note a new segment. Within a change."""
        self._do(
            "INSERT INTO segments (file, namespace, num_tokens) VALUES (?, ?, ?)",
            (file, self._namespace, num_tokens),
        )

    def put_piece(self, document: int, segment: str, start: int, num_tokens: int) -> None:
        """Note a new piece of a document. Within a change."""
        self._do(
            "INSERT INTO pieces (document, segment, start, num_tokens) VALUES (?, ?, ?, ?)",
            (document, segment, start, num_tokens),
        )

    def move(self, pieces: Iterable[Piece]) -> None:
        """Note where pieces lie now, told by their numbers. Within a change."""
        query = "UPDATE pieces SET segment = ?, start = ? WHERE number = ?"
        self._do(query, *((piece.segment, piece.start, piece.number) for piece in pieces))

    def forget(self, names: Iterable[str]) -> None:
        """Forget documents; their tokens are in the segments still. Within a change."""
        which = [(self._namespace, name) for name in names]
        identity = "(SELECT id FROM documents WHERE namespace = ? AND name = ?)"
        self._do(f"DELETE FROM pieces WHERE document = {identity}", *which)
        self._do("DELETE FROM documents WHERE namespace = ? AND name = ?", *which)

    def forget_segments(self, files: Iterable[str]) -> None:
        """Forget segments, whose pieces were moved or forgotten. Within a change."""
        self._do("DELETE FROM segments WHERE file = ?", *((file,) for file in files))

    def pieces(self, segments: Collection[str], without: Collection[str] = ()) -> list[Piece]:
        """The pieces in some segments, those of a document together.

        Args:
            segments: The segments' file names.
            without: Documents whose pieces are left out.
        """
        query = (
            "SELECT name, pieces.number, segment, start, num_tokens FROM pieces "
            "JOIN documents ON id = document WHERE segment = ? ORDER BY document, pieces.number"
        )
        of = (str, int, str, int, int)
        rows = [row for segment in segments for row in self._store.rows(query, segment, of=of)]
        return [Piece(*place) for name, *place in rows if name not in without]

    def segments_of(self, names: Collection[str]) -> set[str]:
        """The segments in which documents have pieces."""
        query = (
            "SELECT segment FROM pieces JOIN documents ON id = document "
            "WHERE namespace = ? AND name = ?"
        )
        return {file for name in names for file in self._texts(query, self._namespace, name)}

    def documents_in(self, segment: str) -> list[str]:
        """The names of the documents that have pieces in a segment."""
        query = "SELECT DISTINCT name FROM pieces JOIN documents ON id = document WHERE segment = ?"
        return self._texts(query, segment)

    def _texts(self, query: str, *parameters: object) -> list[str]:
        return [text for (text,) in self._store.rows(query, *parameters, of=(str,))]

    def _do(self, statement: str, *rows: tuple[object, ...]) -> None:
        """Change the tables, once for each row of parameters."""
        self._store.connection.executemany(statement, rows)
