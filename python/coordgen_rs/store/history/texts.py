"""Documents as text, and their tokens: files, the files of directories, texts of a request.

In: paths and texts, and the documents that are there. Out: what of them is new, tokenized a part at
a time, so that no file need fit into memory: pieces of about a million tokens, each of one document
or of many short ones; or why something is no text.
"""

import hashlib
import io
import os
from codecs import getincrementaldecoder
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.errors.json_text import JsonTextError, open_regular

_PIECE_TOKENS = 1 << 20
"""Tokens that are stored at once: what a kill loses at most."""

_PART_BYTES = 1 << 17
"""Bytes that are tokenized at once: what takes the interpreter's lock takes it for some ms."""

_BLOCK_BYTES = 1 << 20


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


@dataclass(frozen=True)
class Text:
    """A document.

    Attributes:
        name: What it is called in the corpus.
        sha256: Of its bytes.
        num_bytes: How many there are.
        opened: Opens it, for bytes.
    """

    name: str
    sha256: str
    num_bytes: int
    opened: Callable[[], BinaryIO]

    def parts(self, start: int = 0) -> Iterator[tuple[str, int]]:
        """Its text from byte `start` on in parts that end with a line, each with its end.

        A line that is longer than a part is cut.

        Raises:
            NotTextError: It is not UTF-8 any more, or shorter.
            OSError: It cannot be read.
        """
        with self.opened() as stream:
            while start < self.num_bytes:
                stream.seek(start)
                block = stream.read(min(_PART_BYTES, self.num_bytes - start))
                if start + len(block) < self.num_bytes:
                    block = block[: _end_of_part(block)]
                try:
                    part = block.decode()
                except UnicodeDecodeError as error:
                    raise NotTextError("it changed while it was read") from error
                if not part:
                    raise NotTextError("it changed while it was read")
                start += len(block)
                yield part, start


class NotTextError(ValueError):
    """A file is not text; the message says why."""


def checked_paths(paths: Iterable[Path | str]) -> list[Path]:
    """Paths of files and directories that are there.

    Raises:
        OptionError: One is no path, or there is nothing; or they are a single path.
    """
    if isinstance(paths, str | bytes | os.PathLike):
        raise OptionError(f"paths must be a list of paths, but is {arguments.shown(paths)}")
    found = [arguments.path("a path", path) for path in paths]
    for path in found:
        if not path.exists():
            raise OptionError(f"{path}: there is no such file")
    return found


def texts_of(
    paths: Iterable[Path], go_on: Callable[[], None] = lambda: None
) -> Iterator[Text | str]:
    """The files that paths name, as `files_of` finds them; of what is none, `NAME: why`.

    `go_on` is called for each file and each block of it; it may raise, to stop.
    """
    for path in files_of(paths):
        try:
            yield file_text(path, go_on)
        except NotTextError as error:
            yield f"{path}: {error}"
        except OSError as error:
            yield f"{path}: it cannot be read: {error.strerror or error}"


def given_text(name: str, text: str) -> Text:
    """A text as a document; it is valid Unicode.

    Raises:
        OptionError: It holds a zero byte.
    """
    if "\0" in text:
        raise OptionError(f"the text of {arguments.shown(name)} holds a zero byte")
    data = text.encode()
    return Text(name, hashlib.sha256(data).hexdigest(), len(data), lambda: io.BytesIO(data))


def file_text(path: Path, go_on: Callable[[], None] = lambda: None) -> Text:
    """A file as a document, under its absolute path; it is read once to its end.

    Raises:
        NotTextError: It is not UTF-8, holds a zero byte, or is no regular file.
        OSError: It cannot be read.
    """
    digest, decoder, num_bytes = hashlib.sha256(), getincrementaldecoder("utf-8")(), 0
    try:
        with _opened(path) as stream:
            go_on()
            while block := stream.read(_BLOCK_BYTES):
                go_on()
                if b"\0" in block:
                    raise NotTextError("it is not text: it holds a zero byte")
                decoder.decode(block)
                digest.update(block)
                num_bytes += len(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise NotTextError("it is not text in UTF-8") from error
    return Text(name_of(path), digest.hexdigest(), num_bytes, lambda: _opened(path))


def _opened(path: Path) -> BinaryIO:
    """A regular file, for bytes.

    Raises:
        NotTextError: It is no regular file.
        OSError: It cannot be opened.
    """
    try:
        return open_regular(path)
    except JsonTextError as error:
        raise NotTextError(f"it {str(error).removeprefix(f'{path} ')}") from error


def name_of(path: Path | str) -> str:
    """What a file is called in a corpus: its absolute path, links not followed.

    Bytes that are not UTF-8 are written as the codes of half a surrogate pair.
    """
    return os.path.abspath(path).encode("utf-8", "backslashreplace").decode()  # noqa: PTH100


def files_of(paths: Iterable[Path]) -> Iterator[Path]:
    """The files that paths name, and those below directories, in one order everywhere.

    Below a directory, what begins with a dot and symbolic links are left out, so that there are no
    loops. What cannot be listed is given as it is, so that who reads it learns why.
    """
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        failed: list[OSError] = []
        for folder, folders, files in os.walk(path, onerror=failed.append):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            found = (Path(folder, name) for name in sorted(files) if not name.startswith("."))
            yield from (file for file in found if not file.is_symlink())
        yield from (Path(error.filename) for error in failed)


def _end_of_part(block: bytes) -> int:
    """Where a part of a longer text ends: behind a line, else behind a character."""
    end = block.rfind(b"\n") + 1
    if end > 0:
        return end
    end = len(block)
    while end > 1 and block[end - 1] & 0xC0 == 0x80:  # inside a character
        end -= 1
    return end - 1 if end > 1 else len(block)


@dataclass
class AddResult:
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
class NewTokens:
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


@dataclass
class TextReader:
    """Reads texts once.

    Attributes:
        encode: Tokenizes a part; called in threads.
        find: The document of a name, if there is one.
        added: Counts what is read.
        pool: The threads.
        ahead: How many parts are tokenized before they are asked for.
        broken: Documents of which pieces were given before the rest could not be read: what was
            stored of them is to be forgotten.
    """

    encode: Callable[[str], NDArray[np.uint32]]
    find: Callable[[str], Document | None]
    added: AddResult
    pool: ThreadPoolExecutor
    ahead: int
    broken: list[str] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _failed: set[str] = field(default_factory=set)
    _given: Counter[str] = field(default_factory=Counter)

    def pieces(
        self, texts: Iterable[Text | str], go_on: Callable[[], None]
    ) -> Iterator[list[NewTokens]]:
        """What there is to store, as much at a time as one segment is to have at first.

        Args:
            texts: The documents; a string is why one cannot be had.
            go_on: Called for each part; may raise, to stop.
        """
        piece, num_tokens = list[NewTokens](), 0
        for text, end, tokens in self._tokenized(texts):
            go_on()
            if text.name in self._failed:
                continue
            if not piece or piece[-1].text is not text:
                piece.append(NewTokens(text, end, []))
            piece[-1].tokens.append(tokens)
            piece[-1].read_bytes = end
            num_tokens += len(tokens)
            if num_tokens >= _PIECE_TOKENS:
                yield self._whole(piece)
                piece, num_tokens = [], 0
        if piece := self._whole(piece):
            yield piece

    def _whole(self, piece: list[NewTokens]) -> list[NewTokens]:
        """A piece without texts that could not be read to their ends."""
        found = [one for one in piece if one.text.name not in self._failed]
        for one in found:
            self._given[one.text.name] += one.num_tokens
        return found

    def _tokenized(
        self, texts: Iterable[Text | str]
    ) -> Iterator[tuple[Text, int, NDArray[np.uint32]]]:
        """The tokens of all parts in order, a few of which are made ahead."""
        ahead: deque[tuple[Text, int, Future[NDArray[np.uint32]]]] = deque()
        for text, part, end in self._parts(texts):
            ahead.append((text, end, self.pool.submit(self.encode, part)))
            if len(ahead) > self.ahead:
                text, end, tokens = ahead.popleft()
                yield text, end, tokens.result()
        for text, end, tokens in ahead:
            yield text, end, tokens.result()

    def _parts(self, texts: Iterable[Text | str]) -> Iterator[tuple[Text, str, int]]:
        """The parts of texts that are to be added, with their ends."""
        for text in texts:
            if isinstance(text, str):
                self.added.skipped.append(text)
                continue
            start = self._start(text)
            if start is None:
                self.added.num_unchanged += 1
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
                self.added.num_added += 1

    def _fail(self, text: Text, why: str) -> None:
        """Leave out a text whose end cannot be read."""
        self._failed.add(text.name)
        if text.name in self._given:
            self.broken.append(text.name)
            self.added.num_tokens -= self._given[text.name]
            why += "; what had been stored of it, and any earlier version, was removed"
        self.added.skipped.append(f"{text.name}: {why}")

    def _start(self, text: Text) -> int | None:
        """Where adding a text begins; None if nothing of it is to be added."""
        if text.name in self._names:
            return None
        self._names.add(text.name)
        known = self.find(text.name)
        if known is None or known.sha256 != text.sha256:
            return 0
        return None if known.is_whole else known.read_bytes
