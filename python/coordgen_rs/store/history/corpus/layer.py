"""The corpus of a namespace below its history, as it grows under running processes.

In: the tables. Out: the segments, opened in a `SharedHistory`. It only reads.
"""

from coordgen_rs._core import SharedHistory
from coordgen_rs.errors import HistoryIndexError
from coordgen_rs.store.history.corpus.segments import corpus_key
from coordgen_rs.store.history.corpus.tables import Tables
from coordgen_rs.store.history.store import HistoryStore

_TRIES = 3
"""A segment that was merged between two looks is gone; the next look finds where it went."""


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
        self._folder, self._shared = store.path.parent, shared
        self._tables = Tables(store, namespace)
        self._key = corpus_key(fingerprint, shared.vocab_size, namespace)
        self._seen: tuple[str, ...] = ()
        self._unusable: tuple[str, ...] = ()
        self._told: str | None = None
        self._has_told_damage = False

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
                return self._damage()
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

    def _damage(self) -> str | None:
        if not self._shared.is_corpus_damaged or self._has_told_damage:
            return None
        self._has_told_damage = True
        return "a segment is damaged, and not used; add its documents again"
