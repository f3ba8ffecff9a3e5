"""Finished requests of one namespace, as a source of drafts.

In: the tokens of each request that finished. Out: a `SharedHistory` that drafters read from.
The requests are kept in a database (`store.py`), and an index over them in a file next
to it, which is rebuilt from the database if it is missing, damaged or of another version.
"""

import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Self, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coordgen_rs._core import SharedHistory
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import (
    CoordgenError,
    HistoryIndexError,
    HistoryWarning,
    OptionError,
    arguments,
)
from coordgen_rs.errors.arguments import DEFAULT_NAMESPACE
from coordgen_rs.store.background import Closeable, Lease, OpenedHere, Task, TaskQueue
from coordgen_rs.store.history.fleet import FleetLayer, index_path
from coordgen_rs.store.history.segments import CorpusLayer
from coordgen_rs.store.history.store import (
    MOST_VOCABULARY,
    HistoryStore,
    NoHistoryError,
    StoredRequest,
    index_key,
    remove_unfinished,
    told_evictions,
)

_MERGE_AT_CLOSE = 4_096
_MERGE_WHILE_RUNNING = 65_536
_GROWTH = 8
"""An index is built again when it lacks that many tokens, and an eighth of what it has, so that a
token is sorted about eight times in all."""

_CORPUS, _FLEET = "the documents of the history", "the fleet's history"

_TERMINATOR = np.array([SharedHistory.TERMINATOR], np.uint32)


class HistoryOptions(TypedDict, total=False):
    """What may be said of a history besides its directory and tokenizer; see `History`."""

    namespace: str
    max_tokens: int | None
    fleet: str | Path | None
    fleet_namespace: str | None
    keep: bool


class History(Closeable):
    """Finished requests of one namespace: stored, and drafted from.

    Give it to `make_drafter` and `generate`. Requests of other namespaces are never drafted from.
    Documents that were added to the namespace (`history.corpus`) are drafted from as well.
    If the disk fails, generation continues: requests that cannot be written cause one
    `HistoryWarning`, and are kept in memory.

    Disk: 4 bytes per token in the database, 8.3 to 11 in the index.

    Args:
        directory: Holds the database and its indexes, created if missing; None keeps all in memory.
        namespace: Any text but an empty one, for example task and user.
        fingerprint: Identifies tokenizer and vocabulary, see `fingerprint_of`.
        vocab_size: Number of ids in the vocabulary.
        max_tokens: Limit of all namespaces of the directory together; beyond it, the oldest
            requests are evicted, those of other namespaces with a `HistoryWarning`: an eighth of
            the limit at once, or no more than must be where that is below 8,192 tokens. What is
            evicted is not drafted from any more, by other processes from their next request on.
            The directory keeps the number for whoever opens it next; None leaves it as it is, ten
            million at first.
        fleet: A directory that `coordgen history build` writes, or a copy of it, to draft from as
            well. Read only; the next request takes up an index that was replaced there.
        fleet_namespace: The namespace of the fleet index to draft from; None for `namespace`.
        keep: Whether finished requests are kept and drafted from; False leaves the fleet's alone.

    Attributes:
        shared: What drafters read from.

    Raises:
        HistoryMismatchError: The history, or the fleet's, was written with another tokenizer or
            vocabulary.
        HistoryError: The database is damaged, or of another version, or the fleet's directory is
            missing.
        OptionError: The namespace is empty or no valid text, nor is the fingerprint, the directory
            is no path, `keep` is False but there is a directory, or no fleet, `vocab_size` is
            not 1 to 2^31 - 1, or `max_tokens` is below 1.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        fingerprint: str = "",
        vocab_size: int,
        max_tokens: int | None = None,
        fleet: str | Path | None = None,
        fleet_namespace: str | None = None,
        keep: bool = True,
    ) -> None:
        vocab_size = arguments.count("vocab_size", vocab_size, most=MOST_VOCABULARY)
        if not keep and (directory is not None or fleet is None):
            raise OptionError("keep=False needs a fleet, and no directory")
        if fleet_namespace is not None and fleet is None:
            raise OptionError("a fleet_namespace needs a fleet, but there is none")
        self.shared = SharedHistory(
            vocab_size, fleet=fleet is not None, corpus=directory is not None
        )
        self._keeps = keep
        self.namespace = arguments.text("namespace", namespace, may_be_empty=False)
        self._fingerprint = arguments.text("fingerprint", fingerprint) or "unknown"
        self._opened = OpenedHere()
        self._lock = threading.RLock()
        self._background = TaskQueue()
        self._storing, self._to_write = TaskQueue(), list[HistoryStore]()
        self._merger = Lease(is_over=True)  # until it has looked for the last time
        self._has_warned = self._is_warming = self._is_closing = False
        self._epoch, self._seen = "", 0
        self._layers = dict[str, CorpusLayer | FleetLayer]()
        self._wrong = dict[str, str | None]()  # of each layer, as it was told
        if max_tokens is not None:
            max_tokens = arguments.count("max_tokens", max_tokens)
        if fleet is not None:
            layer = arguments.text("fleet_namespace", fleet_namespace or self.namespace)
            place = arguments.path("fleet", fleet)
            self._layers[_FLEET] = FleetLayer(place, layer, self._fingerprint, self.shared)
        path = None if directory is None else arguments.path("directory", directory)
        self._store = None if path is None else self._open_store(path)
        if self._store is not None:
            self._layers[_CORPUS] = CorpusLayer(self._store, self.namespace, self.shared)
            if max_tokens is not None and not self._store.read_only:
                with self._going_on("written"):
                    self._store.max_tokens = max_tokens
        self.refresh()

    @classmethod
    def of(
        cls, directory: str | Path | None, bundle: Bundle, **options: Unpack[HistoryOptions]
    ) -> Self:
        """Open a history for a bundle's tokenizer.

        Args:
            directory: Same as in the class.
            bundle: Its tokenizer and vocabulary are those of the history.
            options: Those of the class: `namespace`, `max_tokens`, `fleet`, `fleet_namespace` and
                `keep`.

        Raises:
            HistoryMismatchError: Same as in the class.
            HistoryError: Same as in the class.
            OptionError: Same as in the class.
        """
        vocab_size = bundle.manifest.model.vocab_size
        return cls(directory, fingerprint=fingerprint_of(bundle), vocab_size=vocab_size, **options)

    def refresh(self) -> None:
        """Load what other processes stored, and rebuild the index if it is damaged.

        Also take up documents that were added, and the fleet's index, if another took its place.
        `generate` calls it when a request begins. Costs a few queries, and a copy of what is new.

        Raises:
            ForkedError: This process is a fork of the one that opened the history.
        """
        self._opened.check("history")
        with self._lock:
            self._refresh_requests()
            for what, layer in self._layers.items():
                self._refresh_layer(what, layer)
            if self.shared.is_shared_cold and not self._is_warming:
                self._is_warming = True
                self._background.add(self._warm)

    def _warm(self) -> None:
        """Read ahead what others made: no step waits for the disk then, and damage is found."""
        try:
            while not self._is_closing and self.shared.warm_shared():
                pass
        finally:
            self._is_warming = False

    def _refresh_requests(self) -> None:
        if self._store is None:
            return
        with self._going_on("read"):
            epoch, is_damaged = self._store.epoch(self.namespace), self.shared.is_damaged
            if is_damaged or epoch != self._epoch:
                wrong = "a block of the history's index is damaged" if is_damaged else None
                self._load(self._store, epoch, wrong)
            for request in self._store.read(self.namespace, after=self._seen):
                self.shared.remember(request.token_ids, request.number)
                self._seen = request.number

    def _refresh_layer(self, what: str, layer: CorpusLayer | FleetLayer) -> None:
        """Take up what others wrote; where that fails, requests are drafted from all the same."""
        try:
            wrong = layer.refresh()
        except (sqlite3.Error, OSError, CoordgenError) as error:
            wrong = f"they cannot be read: {error}"
        if wrong is not None and wrong != self._wrong.get(what):
            self._warn(f"{what}: {wrong}")
        self._wrong[what] = wrong

    def add(self, prompt_ids: ArrayLike, answer_ids: ArrayLike) -> None:
        """Store a finished request, if requests are kept; `generate` calls it.

        Args:
            prompt_ids: `(tokens,)` integers.
            answer_ids: `(tokens,)` integers.

        Raises:
            OptionError: They are not integers.
            ShapeError: They have more than one dimension.
            TokenOutOfRangeError: A token is not in the vocabulary.
            ForkedError: This process is a fork of the one that opened the history.
        """
        prompt, answer = self._checked(prompt_ids, answer_ids)
        with self._lock:
            self._add(self._store, prompt, answer)

    def add_later(
        self, prompt_ids: ArrayLike, answer_ids: ArrayLike, on_done: Callable[[], object]
    ) -> Task[None]:
        """The same as `add`, in a thread of the history, which `close` waits for.

        Args:
            prompt_ids: Same as in `add`.
            answer_ids: Same as in `add`.
            on_done: Called by that thread when the request is stored, or cannot be.

        Raises:
            OptionError, ShapeError, TokenOutOfRangeError, ForkedError: Same as in `add`.
        """
        prompt, answer = self._checked(prompt_ids, answer_ids)
        task = Task(partial(self._add_beside, prompt, answer), on_done)
        self._storing.add(task.run)
        return task

    def _checked(
        self, prompt_ids: ArrayLike, answer_ids: ArrayLike
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        self._opened.check("history")
        vocab_size = self.shared.vocab_size
        prompt = arguments.token_ids("the prompt", prompt_ids, vocab_size)
        return prompt, arguments.token_ids("the answer", answer_ids, vocab_size)

    def _add_beside(self, prompt: NDArray[np.uint32], answer: NDArray[np.uint32]) -> None:
        """Add a request over a connection of its own, for which no other reader waits."""
        store = self._store
        if store is not None and self._keeps and not self._to_write:
            with self._going_on("written"):
                self._to_write.append(
                    HistoryStore(
                        store.path.parent,
                        fingerprint=self._fingerprint,
                        read_only=store.read_only,
                    )
                )
        self._add(self._to_write[0] if self._to_write else None, prompt, answer)

    def _add(
        self, store: HistoryStore | None, prompt: NDArray[np.uint32], answer: NDArray[np.uint32]
    ) -> None:
        """Add a request to the database, or to memory where it cannot be written."""
        if not self._keeps:
            return
        tokens, is_stored = np.concatenate([prompt, answer]), False
        if store is not None:
            request = StoredRequest(self.namespace, time.time(), len(prompt), tokens)
            with self._going_on("written"):
                evicted = store.add([request])
                is_stored = True
                evicted.pop(self.namespace, None)
                if evicted:
                    self._warn(told_evictions(store, evicted))
        if is_stored:
            self.refresh()
        else:
            self.shared.remember(tokens)
        self._start_merging(_MERGE_WHILE_RUNNING)

    def close(self) -> None:
        """Update the index if that pays, and close the database; in a fork, nothing."""
        if self._opened.is_forked:
            return
        self._is_closing = True
        self._storing.join()
        self._background.join()
        with self._lock:
            for store in self._to_write:
                store.close()
            self._to_write.clear()
            if self._store is None:
                return
            if self._lacks(_MERGE_AT_CLOSE):
                with self._going_on("indexed"):
                    self._rebuild(self._store, self._epoch)
            self._layers.pop(_CORPUS, None)
            self._store.close()
            self._store = None

    def _open_store(self, directory: Path) -> HistoryStore | None:
        vocab_size = self.shared.vocab_size
        opened = partial(
            HistoryStore, directory, fingerprint=self._fingerprint, vocab_size=vocab_size
        )
        try:
            return opened()
        except (sqlite3.Error, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            self._warn_once(f"the history in {directory} cannot be written: {reason}")
        try:
            return opened(read_only=True)
        except (NoHistoryError, sqlite3.Error, OSError):
            return None

    def _load(self, store: HistoryStore, epoch: str, wrong: str | None) -> None:
        """Reload from the index, or from the database if something is wrong with the index."""
        self.shared.clear()
        self._epoch, self._seen = epoch, 0
        path = index_path(store.path.parent, self.namespace)
        wrong = wrong or self._open_index(path, epoch)
        if wrong is None:
            self._background.add(self.shared.check_index)
            self._seen = self.shared.covers
            return
        num_tokens = store.count_tokens(self.namespace)
        is_rebuilt = num_tokens >= _MERGE_AT_CLOSE and not store.read_only
        if path.exists():
            fate = "left alone" if store.read_only else "rebuilt" if is_rebuilt else "removed"
            self._warn(f"{wrong}: it is {fate}")
        if is_rebuilt and num_tokens >= _MERGE_WHILE_RUNNING:
            # Until it is built, the newest requests are drafted from.
            self._seen = store.newest(self.namespace, _MERGE_WHILE_RUNNING)
            self._start_merging()
            return
        with self._going_on("indexed"):
            if is_rebuilt:
                self._rebuild(store, epoch)
            elif not store.read_only:  # whoever evicted requests may not have come to remove it
                path.unlink(missing_ok=True)
        self._seen = self.shared.covers

    def _open_index(self, path: Path, epoch: str) -> str | None:
        """Draft from the index; return the reason if that is not possible."""
        try:
            self.shared.open_index(path, self._key(epoch))
        except HistoryIndexError as error:
            return str(error)
        return None

    def _lacks(self, at_least: int) -> bool:
        """Whether building the index again pays."""
        grown = self.shared.num_indexed_tokens // _GROWTH
        return self.shared.num_recent_tokens >= max(at_least, grown)

    def _start_merging(self, at_least: int = 0) -> None:
        """Build the index again in the background, if that pays and nobody is at it."""
        with self._lock:
            store = self._store
            if store is None or store.read_only:
                return
            if self._merger.is_over and self._lacks(at_least):
                merger = Lease()
                self._background.add(partial(self._merge, store.path.parent, merger))
                self._merger = merger

    def _merge(self, directory: Path, merger: Lease) -> None:
        try:
            with (
                self._going_on("indexed"),
                closing(HistoryStore(directory, fingerprint=self._fingerprint)) as store,
            ):
                while not self._rebuild(store, store.epoch(self.namespace), merger):
                    pass
        finally:
            merger.is_over = True

    def _rebuild(self, store: HistoryStore, epoch: str, merger: Lease | None = None) -> bool:
        """Build an index of the whole database, and draft from it.

        Args:
            store: The database.
            epoch: Of the namespace there.
            merger: Over when it reads nothing any more: from then on another may begin.

        Returns:
            Whether that is done: False where the history was cleared, or evicted from, meanwhile.

        Raises:
            HistoryIndexError: It cannot be written, or not be read again.
        """
        if store.read_only or not epoch:
            return True
        path, key = index_path(store.path.parent, self.namespace), self._key(epoch)
        remove_unfinished(path.parent)
        parts, covers = [], 0
        for request in store.read(self.namespace):
            parts += [request.token_ids, _TERMINATOR]
            covers = request.number
        documents = np.concatenate(parts) if parts else _TERMINATOR[:0]
        SharedHistory.write_index(path, documents, self.shared.vocab_size, covers, key)
        with self._lock:
            is_current = epoch == self._epoch
            wrong = self._open_index(path, epoch) if is_current else None
            if store.epoch(self.namespace) != epoch:
                path.unlink(missing_ok=True)
                return False
            if wrong is not None:
                raise HistoryIndexError(wrong)
            if is_current:
                self._seen = max(self._seen, covers)
            if merger is not None:
                merger.is_over = True
        return True

    def _key(self, epoch: str) -> bytes:
        return index_key(self._fingerprint, self.shared.vocab_size, self.namespace, epoch)

    @contextmanager
    def _going_on(self, what: str) -> Iterator[None]:
        """Turn failures of the disk and database into a single warning."""
        try:
            yield
        except (sqlite3.Error, OSError, CoordgenError) as error:
            self._warn_once(f"the history cannot be {what}: {error}")

    def _warn_once(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(f"{message}; generation continues without")

    def _warn(self, message: str) -> None:
        warnings.warn(HistoryWarning(message), stacklevel=2)


def fingerprint_of(bundle: Bundle) -> str:
    """Identifies a tokenizer: the SHA-256 of its file."""
    return bundle.manifest.files[bundle.manifest.tokenizer].sha256
