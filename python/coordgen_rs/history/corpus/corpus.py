"""The documents of one namespace: added, listed and removed, while others draft from them.

In: texts. Out: documents in the tables and segments of a history. What is stored stays, whatever
happens next, and the next request drafts from it; `layer.py` opens it for them.
"""

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import HistoryBusyError, HistoryError, arguments
from coordgen_rs.errors.arguments import DEFAULT_NAMESPACE
from coordgen_rs.files.unfinished import held_name
from coordgen_rs.history.corpus.reading import Added, Reading
from coordgen_rs.history.corpus.segments import corpus_key
from coordgen_rs.history.corpus.storing import Storing
from coordgen_rs.history.corpus.tables import Document, Tables
from coordgen_rs.history.corpus.texts import Text, checked_paths, given_text, texts_of
from coordgen_rs.history.requests import fingerprint_of
from coordgen_rs.history.store import HistoryStore
from coordgen_rs.text.tokenizer import Tokenizer

_LOCK_NAME = "corpus"
_ASK_AGAIN_S = 0.05

_T = TypeVar("_T")


class Corpus:
    """The documents of a namespace of a history.

    Documents are added and removed in a thread of low priority, where the system knows that: what
    else runs on the machine, such as a request, goes first. One thread at a time changes the
    documents of a history.

    Disk: 8.3 to 11 bytes per token, twice that while segments are merged. Memory: while documents
    are added or removed, 21 bytes for each token of the longest segment, 420 MB at most; in
    processes that draft from them, what they read, at most as much as on disk.

    Args:
        directory: The history's directory, created if missing.
        bundle: Its tokenizer reads the texts.
        namespace: The namespace whose requests draft from the documents; no others do.
        tokenizer: The bundle's, if it is there already.

    Attributes:
        directory: The history's directory.
        namespace: The namespace.

    Raises:
        HistoryMismatchError: The history was written with another tokenizer or vocabulary.
        HistoryError: The history is damaged, or cannot be opened.
        OptionError: The namespace is empty.
    """

    def __init__(
        self,
        directory: Path | str,
        bundle: Bundle,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.directory = arguments.path("directory", directory)
        self.namespace = arguments.text("namespace", namespace, may_be_empty=False)
        vocab_size, fingerprint = bundle.manifest.model.vocab_size, fingerprint_of(bundle)
        self._tokenizer = Tokenizer.of(bundle) if tokenizer is None else tokenizer
        with self._errors():
            self._store = HistoryStore(
                self.directory, fingerprint=fingerprint, vocab_size=vocab_size
            )
        self._tables = Tables(self._store, self.namespace)
        key = corpus_key(fingerprint, vocab_size, self.namespace)
        self._storing = Storing(self._store, self._tables, key)

    def documents(self) -> list[Document]:
        """All documents, by name.

        Raises:
            HistoryError: The history cannot be read.
        """
        with self._errors():
            return self._tables.documents()

    def add(
        self,
        paths: Iterable[Path | str],
        *,
        threads: int = 1,
        wait_s: float = 0.0,
        on_progress: Callable[[Added], None] = lambda added: None,
    ) -> Added:
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
            OptionError: A path is none, or there is nothing.
            HistoryBusyError: Others change the documents.
            HistoryIndexError: A segment cannot be written, as on a full disk. What was stored
                stays.
            HistoryError: The database cannot be written. What was stored stays.
            BundleError: The tokenizer cannot do a text.
        """
        found = checked_paths(paths)
        threads = arguments.count("threads", threads)
        return self._added(texts_of(found), threads, wait_s, on_progress)

    def add_texts(self, texts: Mapping[str, str], *, wait_s: float = 0.0) -> Added:
        """Add texts by their names, as `add` does.

        Args:
            texts: Of each document its name and text.
            wait_s: Same as in `add`.

        Raises:
            OptionError: A name or text is not valid Unicode, or a name is empty.
            HistoryBusyError, HistoryIndexError, HistoryError, BundleError: Same as in `add`.
        """
        found = [
            given_text(
                arguments.text("a name", name, may_be_empty=False),
                arguments.text(f"the text of {name}", text),
            )
            for name, text in texts.items()
        ]
        return self._added(found, 1, wait_s, lambda added: None)

    def remove(self, names: Iterable[str], *, wait_s: float = 0.0) -> list[str]:
        """Remove documents; the next request drafts from none of them.

        Args:
            names: Names of documents, and of directories above them.
            wait_s: Same as in `add`.

        Returns:
            The names of what was removed.

        Raises:
            HistoryBusyError: Same as in `add`.
            HistoryIndexError: A segment cannot be written; then nothing is removed.
            HistoryError: The database cannot be written; then nothing is removed.
        """
        wanted = tuple(names)

        def run() -> list[str]:
            with self._held(wait_s):
                self._storing.remove_damage()
                known = [document.name for document in self._tables.documents()]
                found = [name for name in known if any(_holds(one, name) for one in wanted)]
                self._storing.remove(found)
            return found

        return self._run(run, threading.Event())

    def _added(
        self,
        texts: Iterable[Text | str],
        threads: int,
        wait_s: float,
        on_progress: Callable[[Added], None],
    ) -> Added:
        added, is_stopped = Added(), threading.Event()

        def run() -> Added:
            with self._held(wait_s), ThreadPoolExecutor(threads, initializer=_give_way) as pool:
                added.lost += self._storing.remove_damage()
                reading = Reading(self._encoded, self._document, added, threads, pool)
                for piece in reading.pieces(texts, is_stopped):
                    added.num_tokens += self._storing.add(piece)
                    on_progress(added)
                    self._storing.merge()
                self._storing.fill_holes()
            return added

        return self._run(run, is_stopped)

    def close(self) -> None:
        """Close the database."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _document(self, name: str) -> Document | None:
        return next(iter(self._tables.documents(name)), None)

    def _encoded(self, part: str) -> NDArray[np.uint32]:
        tokens = self._tokenizer.encode(part, special_tokens=False)
        return tokens[tokens < self._store.vocab_size]  # what is beyond, no model says

    @contextmanager
    def _held(self, wait_s: float) -> Iterator[None]:
        """Keep others from changing the documents of the history.

        Raises:
            HistoryBusyError: Others do.
        """
        end = time.monotonic() + wait_s
        while True:
            with held_name(self._store.path.parent / _LOCK_NAME) as is_held:
                if is_held:
                    yield
                    return
            if time.monotonic() >= end:
                raise HistoryBusyError(f"{self.directory}: others are adding or removing documents")
            time.sleep(_ASK_AGAIN_S)

    def _run(self, function: Callable[[], _T], is_stopped: threading.Event) -> _T:
        """Run a change in a thread of low priority, and wait for it."""
        with ThreadPoolExecutor(1, initializer=_give_way) as pool, self._errors():
            running = pool.submit(function)
            try:
                return running.result()
            except BaseException:
                is_stopped.set()
                raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn SQLite's and the system's errors into one that names the history.

        Raises:
            HistoryError: There was one.
        """
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise HistoryError(f"{self.directory}: {error}") from error


def _holds(wanted: str, name: str) -> bool:
    """Whether a document is called so, or lies below a directory that is."""
    return name == wanted or name.startswith(wanted.rstrip(os.sep) + os.sep)


def _give_way() -> None:
    """Let other threads go first, where threads have priorities of their own."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
