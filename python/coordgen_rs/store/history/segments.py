"""Segments of documents, as they are written, merged, and written anew without what was removed.

In: pieces with fresh tokens, and the names of documents. Out: files beside the database, and tables
that name them. Each is an index over some documents, written once, under a random name, and never
changed. It is whole before a table names it, and removed after none does, so that a kill leaves a
stray file at most, which the next change removes.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from coordgen_rs._core import SharedHistory
from coordgen_rs.errors import HistoryIndexError
from coordgen_rs.store.history.documents import Piece, Tables
from coordgen_rs.store.history.indexes import index_key, new_segment_name, remove_strays
from coordgen_rs.store.history.store import HistoryStore
from coordgen_rs.store.history.texts import Fresh

MOST_TOKENS = 20_000_000
"""Most tokens of a segment: sorting takes about 21 bytes of memory each."""

_FEW = 1 << 18
"""Segments of fewer tokens are sorted in no time, and count as equally long."""

_AT_A_TIME = 4
"""Segments of about one length that are merged, so that a token is sorted three times or four."""

_BLOCK_BYTES = 1 << 20

_DAMAGE = ("there is none", "it is no index", "it is cut off", "its header is damaged")
"""Reasons of the core (`index.rs`, `format.rs`) for which a segment will never be usable again. For
any other, such as too many open files, it may be whole."""


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
        chosen: list[str] = []
        for name in names:
            if sum(sizes[other] for other in chosen) + sizes[name] <= MOST_TOKENS:
                chosen.append(name)
        if len(chosen) > 1:
            return chosen
    return []


class Segments:
    """Changes the segments of one namespace; nobody else may meanwhile.

    Args:
        store: The database.
        namespace: The namespace.

    Attributes:
        tables: The tables of its documents.
    """

    def __init__(self, store: HistoryStore, namespace: str) -> None:
        self._store, self.tables = store, Tables(store, namespace)
        self._folder, self._vocab_size = store.path.parent, store.vocab_size
        self._key = index_key(store.fingerprint, store.vocab_size, namespace, "corpus")

    def add(self, piece: Sequence[Fresh]) -> int:
        """Write a segment of fresh tokens; return their number, without terminators.

        Raises:
            HistoryIndexError: It cannot be written; then nothing is changed.
            sqlite3.Error: The same.
        """
        end = np.array([SharedHistory.TERMINATOR], np.uint32)
        parts = [part for one in piece if one.num_tokens for part in (*one.tokens, end)]
        file = new_segment_name()
        with self._removing_if_failed(file):
            start = 0
            if parts:
                start = SharedHistory.write_index(
                    self._folder / file, np.concatenate(parts), self._vocab_size, 0, self._key
                )
            with self._store.connection:
                self._store.begin()
                for one in piece:
                    text = one.text
                    document = self.tables.put(
                        text.name, text.sha256, text.num_bytes, one.read_bytes
                    )
                    if one.num_tokens:
                        self.tables.put_piece(document, file, start, one.num_tokens)
                        start += 4 * (one.num_tokens + 1)
                if parts:
                    self.tables.put_segment(file, sum(map(len, parts)))
        return sum(one.num_tokens for one in piece)

    def merge(self) -> None:
        """Merge segments, until there are few of each length.

        Raises:
            HistoryIndexError: One cannot be written; those that were merged before stay so.
            sqlite3.Error: The same.
        """
        while chosen := to_merge({file: used for file, (_, used) in self.tables.sizes().items()}):
            self._rewrite([chosen])

    def fill_holes(self) -> None:
        """Write segments anew that hold what was replaced. Raises as `merge`."""
        for file, (whole, used) in self.tables.sizes().items():
            if used < whole:
                self._rewrite([[file]])
        self.merge()

    def remove(self, names: Collection[str]) -> None:
        """Remove documents.

        Raises:
            HistoryIndexError: A segment cannot be written; then nothing is removed.
            sqlite3.Error: The same.
        """
        self._rewrite([[file] for file in self.tables.segments_of(names)], without=set(names))

    def forget(self, names: Collection[str]) -> None:
        """Forget documents; `fill_holes` then erases their text.

        Raises:
            sqlite3.Error: The database cannot be written.
        """
        with self._store.connection:
            self._store.begin()
            self.tables.forget(names)

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
        self.tables.create()
        damaged = [file for file in self.tables.files() if self._is_damaged(self._folder / file)]
        for file in damaged:
            names = self.tables.documents_in(file)
            with self._store.connection:
                self._store.begin()
                self.tables.forget(names)
                self.tables.forget_segments([file])
            lost += names
        remove_strays(self._folder, self.tables.all_files())
        return lost

    def _is_damaged(self, path: Path) -> bool:
        """Whether a segment is missing, or is not what was written.

        Raises:
            HistoryIndexError: That cannot be told.
            OSError: The same.
        """
        if SharedHistory.is_whole_index(path, self._key):
            return False
        opened = SharedHistory(self._vocab_size)
        try:
            opened.open_index(path, self._key)
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
                if pieces := self.tables.pieces(group, without):
                    written.append((file, self._gathered(file, group, pieces)))
            replaced = [file for group in groups for file in group]
            with self._store.connection:
                self._store.begin()
                self.tables.forget(without)
                self.tables.forget_segments(replaced)
                for file, pieces in written:
                    self.tables.move(pieces)
                    self.tables.put_segment(file, sum(one.num_tokens + 1 for one in pieces))
        self._unlink(replaced)

    def _gathered(self, file: str, sources: Sequence[str], pieces: Sequence[Piece]) -> list[Piece]:
        """Write a segment of pieces that lie in others; return where they lie in it."""
        places = [(sources.index(one.segment), one.start, one.num_tokens) for one in pieces]
        start = SharedHistory.write_gathered_index(
            self._folder / file,
            [self._folder / source for source in sources],
            places,
            self._vocab_size,
            self._key,
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
                Path(self._folder, file).unlink(missing_ok=True)
