"""From texts to tokens: what of them is new, tokenized a part at a time, as pieces to store.

In: texts, and the documents that are there. Out: pieces of about a million tokens, each of one
document or of many short ones. It holds a piece and a few parts in memory.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import HistoryError
from coordgen_rs.store.history.corpus.tables import Document
from coordgen_rs.store.history.corpus.texts import NotTextError, Text

_PIECE_TOKENS = 1 << 20
"""Tokens that are stored at once: what a kill loses at most."""


@dataclass
class Added:
    """What adding did.

    Attributes:
        num_added: Documents that are new, or replaced one of the same name.
        num_unchanged: Documents that were there already.
        num_tokens: Tokens of what was added.
        skipped: What is no text or cannot be read, and why: `NAME: why`.
        lost: Documents that lay in damaged segments, which were removed.
    """

    num_added: int = 0
    num_unchanged: int = 0
    num_tokens: int = 0
    skipped: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


@dataclass
class Fresh:
    """Tokens of a document that are not stored yet.

    Attributes:
        text: The document.
        read_bytes: How much of it is stored once these are.
        tokens: Its tokens, part by part.
    """

    text: Text
    read_bytes: int
    tokens: list[NDArray[np.uint32]]

    @property
    def num_tokens(self) -> int:
        """How many there are."""
        return sum(map(len, self.tokens))


class Reading:
    """Reads texts once.

    Args:
        encode: Tokenizes a part; called in threads.
        find: The document of a name, if there is one.
        added: Counts what is read.
        threads: How many tokenize.
        pool: Has so many.

    Attributes:
        broken: Documents of which pieces were given before the rest could not be read: what was
            stored of them is to be forgotten.
    """

    def __init__(
        self,
        encode: Callable[[str], NDArray[np.uint32]],
        find: Callable[[str], Document | None],
        added: Added,
        threads: int,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._encode, self._find, self._added = encode, find, added
        self._threads, self._pool = threads, pool
        self._names: set[str] = set()
        self._failed: set[str] = set()
        self._given: dict[str, int] = {}
        self.broken: list[str] = []

    def pieces(
        self, texts: Iterable[Text | str], is_stopped: threading.Event
    ) -> Iterator[list[Fresh]]:
        """What there is to store, as much at a time as one segment is to have at first.

        Args:
            texts: The documents; a string is why one cannot be had.
            is_stopped: Set when somebody has given up waiting.

        Raises:
            HistoryError: It was stopped.
        """
        piece: list[Fresh] = []
        num_tokens = 0
        for text, end, tokens in self._tokenized(texts):
            if is_stopped.is_set():
                raise HistoryError("adding was stopped")
            if text.name in self._failed:
                continue
            if not piece or piece[-1].text is not text:
                piece.append(Fresh(text, end, []))
            piece[-1].tokens.append(tokens)
            piece[-1].read_bytes = end
            num_tokens += len(tokens)
            if num_tokens >= _PIECE_TOKENS:
                yield self._whole(piece)
                piece, num_tokens = [], 0
        if piece := self._whole(piece):
            yield piece

    def _whole(self, piece: list[Fresh]) -> list[Fresh]:
        """A piece without texts that could not be read to their ends."""
        found = [one for one in piece if one.text.name not in self._failed]
        for one in found:
            self._given[one.text.name] = self._given.get(one.text.name, 0) + one.num_tokens
        return found

    def _tokenized(
        self, texts: Iterable[Text | str]
    ) -> Iterator[tuple[Text, int, NDArray[np.uint32]]]:
        """The tokens of all parts in order, a few of which are made ahead."""
        ahead: deque[tuple[Text, int, Future[NDArray[np.uint32]]]] = deque()
        for text, part, end in self._parts(texts):
            ahead.append((text, end, self._pool.submit(self._encode, part)))
            if len(ahead) > 2 * self._threads:
                text, end, tokens = ahead.popleft()
                yield text, end, tokens.result()
        for text, end, tokens in ahead:
            yield text, end, tokens.result()

    def _parts(self, texts: Iterable[Text | str]) -> Iterator[tuple[Text, str, int]]:
        """The parts of texts that are to be added, with their ends."""
        for text in texts:
            if isinstance(text, str):
                self._added.skipped.append(text)
                continue
            start = self._start(text)
            if start is None:
                self._added.num_unchanged += 1
                continue
            try:
                for part, end in text.parts(start):
                    yield text, part, end
                if text.num_bytes == 0:
                    yield text, "", 0
            except NotTextError as error:
                self._fail(text, str(error))
            except OSError as error:
                self._fail(text, f"it cannot be read: {error.strerror or error}")
            else:
                self._added.num_added += 1

    def _fail(self, text: Text, why: str) -> None:
        """Leave out a text whose end cannot be read."""
        self._failed.add(text.name)
        if text.name in self._given:
            self.broken.append(text.name)
            self._added.num_tokens -= self._given[text.name]
            why += "; what had been stored of it, and any earlier version, was removed"
        self._added.skipped.append(f"{text.name}: {why}")

    def _start(self, text: Text) -> int | None:
        """Where adding a text begins; None if nothing of it is to be added."""
        if text.name in self._names:
            return None
        self._names.add(text.name)
        known = self._find(text.name)
        if known is None or known.sha256 != text.sha256:
            return 0
        return None if known.is_whole else known.read_bytes
