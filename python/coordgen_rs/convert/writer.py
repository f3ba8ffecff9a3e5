"""Writing a directory that appears complete or not at all.

In: the path that is to exist at the end. Out: a `Staging` that collects files, with their sizes and
SHA-256, in a hidden directory beside that path, and renames it when everything is written.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

from coordgen_rs.bundle.manifest import FileRecord
from coordgen_rs.errors import ExportError
from coordgen_rs.store.files import unfinished_directory


class HashedFile:
    """A file being written, which knows its length and hashes what passes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: bytes | NDArray[Any]) -> None:
        """Append bytes or a C-contiguous array; raises OSError."""
        view = (memoryview(data) if isinstance(data, bytes) else data.data).cast("B")
        self._stream.write(view)
        self._digest.update(view)
        self.num_bytes += len(view)

    def align(self, boundary: int) -> None:
        """Append zeros up to the next multiple of `boundary`."""
        self.write(bytes(-self.num_bytes % boundary))

    def record(self) -> FileRecord:
        """Size and hash of what was written so far."""
        return FileRecord(self.num_bytes, self._digest.hexdigest())


class Staging:
    """The hidden directory, `directory`, and the records of the files in it."""

    def __init__(self, directory: Path, out: Path) -> None:
        self.directory, self._out = directory, out
        self.records: dict[str, FileRecord] = {}

    def check_space(self, num_bytes: int) -> None:
        """Refuse to begin an export for which the disk has no room.

        Args:
            num_bytes: At least so many will be written.

        Raises:
            ExportError: The disk has less left.
        """
        free = shutil.disk_usage(self.directory).free
        if free < num_bytes:
            raise ExportError(
                f"{self._out} cannot be written: it takes at least {num_bytes / 1e6:,.1f} MB, and "
                f"its disk has {free / 1e6:,.1f} MB left"
            )

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[HashedFile]:
        """A new file, recorded when the block ends.

        Raises:
            ExportError: It cannot be written; the message names the file where it was to be.
        """
        path = self.directory / name
        try:
            with path.open("xb") as stream:
                file = HashedFile(stream)
                yield file
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise ExportError(_cannot_write(self._out / name, error)) from error
        self.records[name] = file.record()

    def write(self, name: str, data: bytes) -> None:
        """A whole small file."""
        with self.create(name) as file:
            file.write(data)


@contextlib.contextmanager
def staged_directory(out: Path) -> Iterator[Staging]:
    """Give a `Staging` whose directory becomes `out` when the block ends without an exception.

    After any exception, an interrupt too, nothing is left behind. What a killed run left for the
    same `out` is removed first, with a `LeftoverWarning`.

    Raises:
        ExportError: `out` is taken or cannot be written, or the memory does not suffice.
    """
    out = out.absolute()
    refuse_taken(out)
    with contextlib.ExitStack() as stack:
        try:
            directory = stack.enter_context(unfinished_directory(out))
        except OSError as error:
            raise ExportError(_cannot_write(out, error)) from error
        yield Staging(directory, out)
        try:
            directory.rename(out)
        except OSError as error:
            raise ExportError(_cannot_write(out, error)) from error


def refuse_taken(out: Path) -> None:
    """Refuse a path at which no bundle can appear, before any work is done for it.

    Raises:
        ExportError: `out` exists (an empty directory is taken over), is a symbolic link or a mount
            point, or lies where this user cannot write.
    """
    out = out.absolute()
    if out.is_symlink():
        raise ExportError(f"{out} is a symbolic link: give the directory itself")
    try:
        is_free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    except OSError as error:
        raise ExportError(_cannot_write(out, error)) from error
    if not is_free:
        raise ExportError(f"{out} exists already: remove it, or give another directory")
    if os.path.ismount(out):
        raise ExportError(f"{out} is a mount point: give a directory in it")
    parent = next(folder for folder in out.parents if folder.exists())
    if not parent.is_dir():
        raise ExportError(f"{out} cannot be written: {parent} is not a directory")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ExportError(f"{out} cannot be written: no permission to write in {parent}")


@contextlib.contextmanager
def export_to(out: Path) -> Iterator[None]:
    """Refuse a path at which no bundle can appear, and turn a lack of memory into an error.

    Raises:
        ExportError: `out` is taken, see `refuse_taken`, or the memory does not suffice.
    """
    try:
        refuse_taken(out)
        yield
    except MemoryError as error:
        raise ExportError(
            f"{out} was not written: out of memory; free some, or raise the limit (ulimit -v)"
        ) from error


def _cannot_write(path: Path, error: OSError) -> str:
    return f"{path} cannot be written: {error.strerror or error}"
