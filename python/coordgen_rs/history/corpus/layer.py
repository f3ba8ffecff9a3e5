"""The corpus of a namespace below its history, as it grows under running processes.

In: the tables. Out: the segments, opened in a `SharedHistory`. It only reads.
"""

from coordgen_rs._core import SharedHistory
from coordgen_rs.errors import HistoryIndexError
from coordgen_rs.history.corpus.segments import corpus_key
from coordgen_rs.history.corpus.tables import Tables
from coordgen_rs.history.store import HistoryStore

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
        self._has_told_damage = False

    def refresh(self) -> str | None:
        """Open the segments if they are not those of the last time. Costs two queries.

        Returns:
            What is wrong with them, if that is news.

        Raises:
            HistoryError: The tables are damaged.
            sqlite3.Error: The database cannot be read.
        """
        for _ in range(_TRIES):
            found = self._tables.files()
            if found == self._seen:
                return self._damage()
            wrong = self._open(found)
            if wrong is None:
                break
        else:
            usable = [file for file in found if self._open((file,)) is None]
            self._open(tuple(usable))
        self._seen, self._has_told_damage = found, wrong is not None
        return wrong

    def _open(self, files: tuple[str, ...]) -> str | None:
        try:
            self._shared.open_corpus([self._folder / file for file in files], self._key)
        except HistoryIndexError as error:
            return f"a segment cannot be used: {error}; add its documents again"
        return None

    def _damage(self) -> str | None:
        if not self._shared.is_corpus_damaged or self._has_told_damage:
            return None
        self._has_told_damage = True
        return "a segment is damaged, and not used; add its documents again"
