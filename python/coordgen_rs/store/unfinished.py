"""Files and directories that take their place only when they are complete.

In: the path that is to exist at the end. Out: a stream or directory beside it under a hidden name,
`.NAME.<12 hex digits>.unfinished`. `src/unfinished.rs` makes it, locks it, and removes what killed
runs left.
"""

import errno
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from coordgen_rs._core import Lock, create_unfinished_directory, create_unfinished_file
from coordgen_rs._core import remove_abandoned as removed_abandoned
from coordgen_rs.errors import LeftoverWarning

_TRIES = 100
"""Attempts at a lock whose file is removed each time, before it counts as another's."""

_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG, None)
"""What writing fails with on a full disk; None is numpy's, which says how far it came alone."""


@dataclass(frozen=True)
class Leftover:
    """What a killed run left.

    Attributes:
        path: Where it was.
        num_bytes: The size of its files.
    """

    path: Path
    num_bytes: int


@contextmanager
def unfinished_directory(path: Path) -> Iterator[Path]:
    """Give an empty directory beside `path`; rename it to `path` when it is complete.

    What killed runs left for the same `path` is removed first, with a `LeftoverWarning` each.
    At the end of the block the directory is removed, unless it was renamed.

    Args:
        path: Where the directory is to be at the end; missing parents are created.

    Raises:
        OSError: It cannot be created.
    """
    for leftover in remove_abandoned(path):
        size = f"{leftover.num_bytes / 1e6:.1f} MB"
        message = f"{leftover.path} ({size}), which an interrupted run had left, was removed"
        warnings.warn(LeftoverWarning(message), stacklevel=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished, lock = create_unfinished_directory(path)
    try:
        yield unfinished
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        lock.release()


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Give a stream whose content takes the place of `path` when the block ends.

    After any exception `path` is what it was. What killed runs left for it is removed. A symbolic
    link stays, and what it points to is replaced; a pipe or device is written to as it is.

    Args:
        path: The file to write or replace.
        private: Whether only its owner may read it.

    Raises:
        IsADirectoryError: It is a directory.
        OSError: It cannot be written.
    """
    path = path.resolve()
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            yield device
        return
    remove_abandoned(path)
    unfinished, opened = create_unfinished_file(path, private)
    try:
        with _named(path), os.fdopen(_descriptor(opened), "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            unfinished.replace(path)  # while the stream, which holds the lock, is open
    finally:
        unfinished.unlink(missing_ok=True)


def _descriptor(opened: int) -> int:
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.open_osfhandle(opened, os.O_BINARY)
    return opened


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Make errors name `path`, not the unfinished file, also where the disk is full.

    Raises:
        OSError: Whatever was raised.
    """
    try:
        yield
    except OSError as error:
        is_unnamed = error.filename is None and error.errno in _FULL
        if not is_unnamed and not str(error.filename).endswith(".unfinished"):
            raise
        reason = error.strerror or str(error)
        raise OSError(error.errno or errno.EIO, reason, str(path)) from error


def remove_abandoned(path: Path) -> list[Leftover]:
    """Remove what killed runs left for `path`; what a live run writes stays, also another user's.

    Where the file system or the system has no locks, nothing is removed.

    Args:
        path: Where the file or directory was to be.

    Returns:
        What was removed.
    """
    return [Leftover(*found) for found in removed_abandoned(path)]


@contextmanager
def held(directory: Path) -> Iterator[bool]:
    """Hold an existing directory against other processes that ask for it too, for the block.

    Args:
        directory: What to hold.

    Yields:
        Whether it is held: False where another process holds it. Without locks, always True.

    Raises:
        OSError: It cannot be opened.
    """
    lock = Lock(directory.resolve())
    try:
        yield lock.is_mine
    finally:
        lock.release()


@contextmanager
def held_name(path: Path, *, surely: bool = False) -> Iterator[bool]:
    """Hold the name of a file that is replaced again and again, or is not there yet, for the block.

    A hidden empty file beside it, `.NAME.lock`, is what is locked. It is removed at the end; one
    that a killed run left holds nobody up.

    Args:
        path: What to hold; other names of the same file hold it, too.
        surely: Whether it counts as another's where there are no locks.

    Yields:
        Whether it is held: False where another process holds it. Without locks, `not surely`.

    Raises:
        OSError: The file beside it cannot be created.
    """
    path = path.resolve()
    name = path.with_name(f".{path.name}.lock")
    for _ in range(_TRIES):
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT, 0o666))
        lock = Lock(name)
        if lock.is_mine or lock.is_anothers:
            break
        lock.release()  # it was removed by who held it until now
    try:
        yield lock.is_held if surely else lock.is_mine
    finally:
        if lock.is_mine:
            name.unlink(missing_ok=True)
        lock.release()
