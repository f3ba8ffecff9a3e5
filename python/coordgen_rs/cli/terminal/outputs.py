"""Files that a command writes: checked before anything is measured, and never lost when that fails.

In: the path that an option names. Out: an error while nothing has been done yet; later, a file at
that path, or else at another one that the error tells.
"""

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from coordgen_rs.errors import CoordgenError, OptionError


class NotWrittenError(CoordgenError):
    """A result is not where it was to go; the message says why, and where it is instead."""


def check_file(option: str, path: Path) -> None:
    """Refuse a path at which no file can be written; nothing is created.

    Raises:
        OptionError: There is a directory, or no directory to write into, or no permission.
    """
    if path.is_dir():
        raise OptionError(f"{option} {path}: it is a directory")
    if path.exists() and not path.is_file():  # a device, a pipe
        _check_writable(option, path, path)
        return
    folder = path.parent
    if not folder.is_dir():
        raise OptionError(f"{option} {path}: there is no directory {folder}")
    _check_writable(option, path, folder)


def check_apart(**paths: Path | None) -> None:
    """Refuse paths of options, by their names, of which two are one file: the later would win.

    Raises:
        OptionError: Two are.
    """
    seen: dict[str, str] = {}
    for name, path in paths.items():
        if path is None or (path.exists() and not path.is_file()):  # a device, a pipe
            continue
        other = seen.setdefault(os.path.realpath(path), name)
        if other != name:
            raise OptionError(f"--{name} {path}: {other} is the same file")


def check_directory(option: str, path: Path) -> None:
    """Refuse a path at which no files can be written, or no directory made; nothing is created.

    Raises:
        OptionError: There is a file, or no permission.
    """
    nearest = path
    while not os.path.lexists(nearest) and nearest.parent != nearest:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise OptionError(f"{option} {path}: {nearest} is not a directory")
    _check_writable(option, path, nearest)


def _check_writable(option: str, path: Path, what: Path) -> None:
    if not os.access(what, os.W_OK):
        raise OptionError(f"{option} {path}: {what} cannot be written to")


def write(path: Path, write_to: Callable[[Path], object]) -> None:
    """Write a result that took long to get.

    Args:
        path: Where it is to go.
        write_to: Writes it to a path.

    Raises:
        NotWrittenError: It cannot be written there; it is in a temporary file that the message
            names, if that could be written.
    """
    try:
        write_to(path)
    except (OSError, CoordgenError) as error:
        said = f"{path}: {_reason(error, path)}"
        try:
            kept = _kept(path.name, write_to)
        except (OSError, CoordgenError) as also:
            raise NotWrittenError(f"{said}; nor elsewhere: {also}") from error
        raise NotWrittenError(f"{said}; the result is in {kept} instead") from error


def _kept(name: str, write_to: Callable[[Path], object]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="coordgen-"))
    try:
        write_to(folder / name)
    except (OSError, CoordgenError):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)
            folder.rmdir()
        raise
    return folder / name


def _reason(error: Exception, path: Path) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).removeprefix(f"{path}: ")
