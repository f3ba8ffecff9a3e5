"""The documents of one namespace: added, listed and removed, while others draft from them.

In: texts. Out: documents in the tables and segments of a history. What is stored stays, whatever
happens next, and the next request drafts from it; `segments.py` opens it for them.
"""

import os
import sqlite3
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import (
    HistoryBusyError,
    HistoryError,
    HistoryWarning,
    OptionError,
    arguments,
)
from coordgen_rs.errors.arguments import DEFAULT_NAMESPACE
from coordgen_rs.store.background import Closeable
from coordgen_rs.store.files import locked
from coordgen_rs.store.history.requests import fingerprint_of
from coordgen_rs.store.history.segments import Segments
from coordgen_rs.store.history.store import HistoryStore
from coordgen_rs.store.history.texts import (
    AddResult,
    Document,
    Text,
    TextReader,
    checked_paths,
    given_text,
    name_of,
    texts_of,
)
from coordgen_rs.text.tokenizer import Tokenizer

_LOCK_NAME = "corpus"
_MOST_NAMED = 20
"""Lost documents that a warning names."""

_T = TypeVar("_T")


class Corpus(Closeable):
    """The documents of a namespace of a history.

    Documents are added and removed in a thread of low priority, where the system knows that: what
    else runs on the machine, such as a request, goes first. One thread at a time changes the
    documents of a history.

    Disk: 8.3 to 11 bytes per token, twice that while segments are merged. Memory: while documents
    are added or removed, 21 bytes for each token of the longest segment, 420 MB at most; in
    processes that draft from them, what they read, at most as much as on disk.

    Args:
        directory: The history's directory, created if missing.
        bundle: Its tokenizer reads the texts. None to list and remove only; then the history must
            be there.
        namespace: The namespace whose requests draft from the documents; no others do.
        tokenizer: The bundle's, if it is there already.

    Attributes:
        directory: The history's directory.
        namespace: The namespace.
        lost: Documents that the last change found in damaged segments, which it removed; a
            `HistoryWarning` tells of them.

    Raises:
        HistoryMismatchError: The history was written with another tokenizer or vocabulary.
        HistoryError: The history is damaged, or cannot be opened.
        OptionError: The namespace is empty.
    """

    def __init__(
        self,
        directory: Path | str,
        bundle: Bundle | None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.directory = arguments.path("directory", directory)
        self.namespace = arguments.text("namespace", namespace, may_be_empty=False)
        self.lost: list[str] = []
        self._tokenizer = tokenizer
        if bundle is not None and tokenizer is None:
            self._tokenizer = Tokenizer.of(bundle)
        with self._errors():
            self._store = HistoryStore(
                self.directory,
                fingerprint=None if bundle is None else fingerprint_of(bundle),
                vocab_size=None if bundle is None else bundle.manifest.model.vocab_size,
            )
        self._segments = Segments(self._store, self.namespace)

    def documents(self) -> list[Document]:
        """All documents, by name.

        Raises:
            HistoryError: The history cannot be read.
        """
        with self._errors():
            return self._segments.documents()

    def add(
        self,
        paths: Iterable[Path | str],
        *,
        threads: int = 1,
        wait_s: float = 0.0,
        on_progress: Callable[[AddResult], None] = lambda added: None,
    ) -> AddResult:
        """Add files, and the files of directories; those that are there unchanged stay as they are.

        A document is called as its file, by the absolute path. One of the same name with another
        text is replaced. Where adding was interrupted, doing it again goes on behind what was
        stored. Files that are not text in UTF-8 are skipped; below a directory also what begins
        with a dot, and symbolic links.

        Args:
            paths: The files and directories.
            threads: How many tokenize.
            wait_s: How long to wait for others who change the documents.
            on_progress: Called in another thread with what was done so far, whenever something was
                stored.

        Raises:
            OptionError: A path is none, or there is nothing; or a single path was given.
            HistoryBusyError: Others change the documents.
            HistoryIndexError: A segment cannot be written, as on a full disk. What was stored
                stays. Or one cannot be read, as by an older version; then nothing is changed.
            HistoryError: The database cannot be written. What was stored stays.
            BundleError: The tokenizer cannot do a text.
        """
        found, stop = checked_paths(paths), _Stop()
        threads = arguments.count("threads", threads)
        return self._added(texts_of(found, stop.check), threads, wait_s, on_progress, stop)

    def add_texts(self, texts: Mapping[str, str], *, wait_s: float = 0.0) -> AddResult:
        """Add texts by their names, as `add` does.

        Args:
            texts: Of each document its name and text.
            wait_s: Same as in `add`.

        Raises:
            OptionError: A name or text is not valid Unicode, a name is empty, a text holds a zero
                byte, or there is no mapping.
            HistoryBusyError, HistoryIndexError, HistoryError, BundleError: Same as in `add`.
        """
        if not isinstance(texts, Mapping):
            raise OptionError(f"texts must map names to texts, but is {arguments.shown(texts)}")
        found = [
            given_text(
                arguments.text("a name", name, may_be_empty=False),
                arguments.text(f"the text of {name}", text),
            )
            for name, text in texts.items()
        ]
        return self._added(found, 1, wait_s, lambda added: None, _Stop())

    def remove(self, names: Iterable[Path | str], *, wait_s: float = 0.0) -> list[str]:
        """Remove documents; the next request drafts from none of them.

        Args:
            names: Names of documents, and of directories above them. A `Path` stands for its
                absolute path.
            wait_s: Same as in `add`.

        Returns:
            The names of what was removed, and of what was wanted so and lost to damage.

        Raises:
            OptionError: A name is empty, or neither text nor path; or a single one was given.
            HistoryBusyError: Same as in `add`.
            HistoryIndexError, HistoryError: A segment cannot be written, or be read, or the
                database cannot be written. Removing again goes on.
        """
        wanted = _checked_names(names)

        def change() -> list[str]:
            known = {document.name for document in self._segments.documents()} | {*self.lost}
            found = sorted(name for name in known if is_below(name, wanted))
            self._segments.remove(found)
            return found

        return self._changed(change, wait_s, _Stop())

    def _added(
        self,
        texts: Iterable[Text | str],
        threads: int,
        wait_s: float,
        on_progress: Callable[[AddResult], None],
        stop: "_Stop",
    ) -> AddResult:
        added = AddResult()

        def change() -> AddResult:
            added.lost += self.lost
            with ThreadPoolExecutor(threads, initializer=_give_way) as pool:
                reader = TextReader(self._encoded, self._document, added, pool, 2 * threads)
                for piece in reader.pieces(texts, stop.check):
                    added.num_tokens += self._segments.add(piece)
                    on_progress(added)
                    self._segments.merge()
                self._segments.forget(reader.broken)
            return added

        return self._changed(change, wait_s, stop)

    def _changed(self, change: Callable[[], _T], wait_s: float, stop: "_Stop") -> _T:
        """Make a change in a thread of low priority, wait for it, and tell what was lost.

        Nobody else changes the documents of the history meanwhile.

        Raises:
            HistoryBusyError: Others do.
            HistoryError: It was stopped, or failed.
        """
        self.lost = []

        def run() -> _T:
            name = self._store.path.parent / _LOCK_NAME
            with locked(name, wait_s=wait_s, go_on=stop.check) as is_mine:
                if not is_mine:
                    raise HistoryBusyError(
                        f"{self.directory}: others are adding or removing documents"
                    )
                self.lost = self._segments.remove_damage()
                found = change()
                # Of what was replaced or lost, pieces may lie in segments still.
                self._segments.fill_holes()
            return found

        try:
            with ThreadPoolExecutor(1, initializer=_give_way) as pool, self._errors():
                try:  # an interrupt comes behind the call that begins, too
                    return pool.submit(run).result()
                except BaseException:
                    stop.set()
                    raise
        finally:
            if self.lost:
                named = ", ".join(map(ascii, self.lost[:_MOST_NAMED]))
                more = len(self.lost) - _MOST_NAMED
                named += f" and {more} more" if more > 0 else ""
                message = f"a damaged segment was removed; the documents that it held: {named}"
                warnings.warn(HistoryWarning(message), stacklevel=4)

    def close(self) -> None:
        """Close the database."""
        self._store.close()

    def _document(self, name: str) -> Document | None:
        return next(iter(self._segments.documents(name)), None)

    def _encoded(self, part: str) -> NDArray[np.uint32]:
        if self._tokenizer is None:
            raise OptionError("documents can be added with a bundle only, for its tokenizer")
        tokens = self._tokenizer.encode(part, special_tokens=False)
        return tokens[tokens < self._store.vocab_size]  # what is beyond, no model says

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn SQLite's and the system's errors into one that names the history.

        Raises:
            HistoryError: There was one.
        """
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            raise HistoryError(f"{self.directory}: {reason}") from error


def is_below(name: str, wanted: Collection[str]) -> bool:
    """Whether a document is called as one that is wanted, or lies below it.

    Cost: one look-up per directory above it, if `wanted` is a set. Nothing lies below "" or "/".
    """
    if name in wanted:
        return True
    above = (name[:end] for end in range(1, len(name)) if name[end] == os.sep)
    return any(
        folder in wanted or folder + os.sep in wanted for folder in above if folder.strip(os.sep)
    )


def _checked_names(names: Iterable[Path | str]) -> set[str]:
    """Names of documents or directories.

    Raises:
        OptionError: One is empty, or neither text nor path; or there is a single one.
    """
    if isinstance(names, str | bytes | os.PathLike):
        raise OptionError(f"names must be a list of names, but is {arguments.shown(names)}")
    return {
        name_of(name)
        if isinstance(name, os.PathLike)
        else arguments.text("a name", name, may_be_empty=False)
        for name in names
    }


class _Stop(threading.Event):
    """Set when somebody has given up waiting for a change."""

    def check(self) -> None:
        """Go on, unless it is set.

        Raises:
            HistoryError: It is.
        """
        if self.is_set():
            raise HistoryError("changing documents was stopped")


def _give_way() -> None:
    """Let other threads go first, where threads have priorities of their own."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
