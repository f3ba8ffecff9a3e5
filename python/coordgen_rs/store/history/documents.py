"""The documents of a history, to be read: which there are, and the files in which their tokens lie.

In: a namespace, and the tables of its documents, as they change under running processes. Out: the
documents, and their newest whole segments (`segments.py`), opened below a history's own requests.
"""

from dataclasses import dataclass

from coordgen_rs._core import SharedHistory
from coordgen_rs.errors import HistoryIndexError
from coordgen_rs.store.history.indexes import index_key
from coordgen_rs.store.history.store import HistoryStore

_TRIES = 3
"""A segment that was merged between two looks is gone; the next look finds where it went."""


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


class Tables:
    """The documents of one namespace, to be read; `segments.py` changes them.

    Args:
        store: The database.
        namespace: The namespace.
    """

    def __init__(self, store: HistoryStore, namespace: str) -> None:
        self._store, self._namespace = store, namespace

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


class CorpusLayer:
    """The documents of one namespace.

    Args:
        store: The database.
        namespace: The namespace.
        fingerprint: Identifies the tokenizer.
        shared: The history below which the segments are opened.
    """

    def __init__(
        self, store: HistoryStore, namespace: str, fingerprint: str, shared: SharedHistory
    ) -> None:
        self._shared, self._key = (
            shared,
            index_key(fingerprint, shared.vocab_size, namespace, "corpus"),
        )
        self._folder, self._tables = store.path.parent, Tables(store, namespace)
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
            found = self._tables.files()
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
            shared.open_corpus([self._folder / file for file in files], self._key)
        except HistoryIndexError as error:
            return f"a segment cannot be used: {error}; add its documents again"
        return None
