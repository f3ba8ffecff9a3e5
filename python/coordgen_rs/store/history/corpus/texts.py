"""Documents as text: files, the files of directories, and texts that came with a request.

In: paths and texts. Out: `Text`s, which give their content part by part, so that no file need fit
into memory; or why something is none.
"""

import hashlib
import io
import os
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.files.json_text import JsonTextError, open_regular

_PART_BYTES = 1 << 17
"""Bytes that are tokenized at once: what takes the interpreter's lock takes it for some ms."""

_BLOCK_BYTES = 1 << 20


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
