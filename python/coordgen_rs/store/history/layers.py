"""What others write, opened below a history's own requests: documents, and a fleet's requests.

In: the tables of documents, or the directory of a fleet's build, as they change under running
processes. Out: their newest whole indexes, opened in a `SharedHistory`. It only reads.
"""

from contextlib import suppress
from pathlib import Path

from coordgen_rs._core import SharedHistory
from coordgen_rs.errors import HistoryError, HistoryIndexError
from coordgen_rs.store.history.documents import Tables
from coordgen_rs.store.history.fleet import NotBuiltError, index_path, read_list
from coordgen_rs.store.history.indexes import index_key
from coordgen_rs.store.history.store import HistoryStore

_TRIES = 3
"""A segment that was merged between two looks is gone; the next look finds where it went."""


class _Layer:
    """Indexes of one namespace, all opened with the same key."""

    def __init__(self, namespace: str, fingerprint: str, shared: SharedHistory, kind: str) -> None:
        self._namespace, self._shared = namespace, shared
        self._key = index_key(fingerprint, shared.vocab_size, namespace, kind)
        self._has_told_damage = False

    def _damage(self, message: str, *, is_there: bool) -> str | None:
        """The message, the first time that there is damage in what is opened."""
        if not is_there or self._has_told_damage:
            return None
        self._has_told_damage = True
        return message


class CorpusLayer(_Layer):
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
        super().__init__(namespace, fingerprint, shared, "corpus")
        self._folder, self._tables = store.path.parent, Tables(store, namespace)
        self._seen: tuple[str, ...] = ()
        self._unusable: tuple[str, ...] = ()
        self._told: str | None = None

    def refresh(self) -> str | None:
        """Open the segments if they are not those of the last time. Costs two queries.

        Those that could not be opened are tried again, at the cost of opening one.

        Returns:
            What is wrong with them, if that is news.

        Raises:
            HistoryError: The tables are damaged.
            sqlite3.Error: The database cannot be read.
        """
        for _ in range(_TRIES):
            found = self._tables.files()
            if found == self._seen and not any(map(self._can_be_opened, self._unusable[:1])):
                message = "a segment is damaged, and not used; add its documents again"
                return self._damage(message, is_there=self._shared.is_corpus_damaged)
            wrong = self._open(self._shared, found)
            if wrong is None:
                self._seen, self._unusable, self._told = found, (), None
                self._has_told_damage = False
                return None
        # Told apart in a history of their own: what is drafted from stays until all is opened.
        self._unusable = tuple(file for file in found if not self._can_be_opened(file))
        usable = tuple(file for file in found if file not in self._unusable)
        is_done = self._open(self._shared, usable) is None
        self._seen = found if is_done else ()
        is_news, self._told = wrong != self._told, wrong
        self._has_told_damage = True
        return wrong if is_news else None

    def _can_be_opened(self, file: str) -> bool:
        return self._open(SharedHistory(self._shared.vocab_size, corpus=True), (file,)) is None

    def _open(self, shared: SharedHistory, files: tuple[str, ...]) -> str | None:
        try:
            shared.open_corpus([self._folder / file for file in files], self._key)
        except HistoryIndexError as error:
            return f"a segment cannot be used: {error}; add its documents again"
        return None


class FleetLayer(_Layer):
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
        super().__init__(namespace, fingerprint, shared, "fleet")
        if not directory.is_dir():
            raise HistoryError(f"{directory} holds no fleet's history: it is not a directory")
        with suppress(NotBuiltError):  # a device needs the indexes alone
            read_list(directory).check_tokenizer(directory, fingerprint, shared.vocab_size)
        # It is looked at again with each request, from wherever the process is.
        self._path = index_path(directory.absolute(), namespace)
        self._seen: tuple[int, ...] | None = ()

    def refresh(self) -> str | None:
        """Open the index if another one took its place. Costs a look at the file's status.

        Returns:
            What is wrong with the index, if that is news; then the one before is used on.
        """
        found = self._status()
        if found == self._seen:
            message = f"{self._path}: a block is damaged; it is not used until it is replaced"
            return self._damage(message, is_there=self._shared.is_fleet_damaged)
        self._seen = found
        if found is None:
            return f"{self._path.parent} has no index for the namespace {self._namespace!r}"
        try:
            self._shared.open_fleet_index(self._path, self._key)
        except HistoryIndexError as error:
            return f"{self._path}: {error}; it is not used"
        self._has_told_damage = False
        return None

    def _status(self) -> tuple[int, ...] | None:
        """The status that tells files at one path apart; None where there is no file."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
