"""Writing a directory that appears complete or not at all.

In: the path that is to exist at the end. Out: a `Staging` that collects files, with their sizes and
SHA-256, in a hidden directory beside that path, and renames it when everything is written.
"""

import contextlib
import hashlib
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

from coordgen_rs.bundle.manifest import FileRecord
from coordgen_rs.errors import ExportError


class HashedFile:
    """A file being written, which knows its length and hashes what passes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: bytes | NDArray[Any]) -> None:
        """Append bytes or a C-contiguous array.

        Raises:
            ExportError: The disk is full.
        """
        view = (memoryview(data) if isinstance(data, bytes) else data.data).cast("B")
        try:
            self._stream.write(view)
        except OSError as error:
            raise ExportError(_cannot_write(Path(self._stream.name), error)) from error
        self._digest.update(view)
        self.num_bytes += len(view)

    def align(self, boundary: int) -> None:
        """Appends zeros up to the next multiple of `boundary`."""
        self.write(bytes(-self.num_bytes % boundary))

    def record(self) -> FileRecord:
        """Size and hash of what was written so far."""
        return FileRecord(self.num_bytes, self._digest.hexdigest())


class Staging:
    """The hidden directory and the records of the files in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.records: dict[str, FileRecord] = {}

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[HashedFile]:
        """A new file, recorded when the block ends.

        Raises:
            ExportError: It cannot be written.
        """
        path = self.directory / name
        try:
            with path.open("xb") as stream:
                file = HashedFile(stream)
                yield file
        except OSError as error:
            raise ExportError(_cannot_write(path, error)) from error
        self.records[name] = file.record()

    def write(self, name: str, data: bytes) -> None:
        """A whole small file."""
        with self.create(name) as file:
            file.write(data)


@contextlib.contextmanager
def staged_directory(out: Path) -> Iterator[Staging]:
    """Gives a `Staging` whose directory becomes `out` when the block ends without an exception.

    After any exception, an interrupt too, nothing is left behind.

    Raises:
        ExportError: `out` exists (an empty directory is taken over), or cannot be written.
    """
    out = out.absolute()
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ExportError(f"{out} exists already")
    directory = out.with_name(f".{out.name}.{secrets.token_hex(4)}.partial")
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise ExportError(_cannot_write(directory, error)) from error
    try:
        yield Staging(directory)
        try:
            directory.rename(out)
        except OSError as error:
            raise ExportError(_cannot_write(out, error)) from error
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _cannot_write(path: Path, error: OSError) -> str:
    return f"{path} cannot be written: {error.strerror or error}"
