"""A fleet's index below a history, as it is replaced under running processes.

In: the directory that `build` writes, or a copy of it. Out: the newest whole index of a namespace,
opened in a `SharedHistory`. It only reads.
"""

from contextlib import suppress
from pathlib import Path

from coordgen_rs._core import SharedHistory
from coordgen_rs.errors import HistoryError, HistoryIndexError
from coordgen_rs.store.history.fleet.directory import (
    NotBuiltError,
    fleet_key,
    index_path,
    read_list,
)


class FleetLayer:
    """The index of one namespace.

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
        self._path = index_path(directory, namespace)
        self._key = fleet_key(fingerprint, shared.vocab_size, namespace)
        self._namespace, self._shared = namespace, shared
        self._seen: tuple[int, ...] | None = ()
        self._has_told_damage = False

    def refresh(self) -> str | None:
        """Open the index if another one took its place. Costs a look at the file's status.

        Returns:
            What is wrong with the index, if that is news; then the one before is used on.
        """
        found = self._status()
        if found != self._seen:
            self._seen = found
            return self._open()
        if self._shared.is_fleet_damaged and not self._has_told_damage:
            self._has_told_damage = True
            return f"{self._path}: a block is damaged; it is not used until it is replaced"
        return None

    def _open(self) -> str | None:
        if self._seen is None:
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
