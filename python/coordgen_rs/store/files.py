"""How everything on disk is written, locked and swept: whole files, and locks between processes.

In: the path that is to exist at the end. Out: a stream or directory beside it under a hidden name,
`.NAME.<12 hex digits>.unfinished`, which takes its place only when it is complete; or a lock on the
name. `src/atomic_file.rs` makes and locks what is unfinished, and removes what killed runs left.
"""

import errno
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from coordgen_rs._core import (
    Lock,
    create_unfinished_directory,
    create_unfinished_file,
    remove_abandoned,
)
from coordgen_rs.errors import LeftoverWarning

_TRIES = 100
"""Attempts at a lock whose file is removed each time, before it counts as another's."""

_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG, None)
"""What writing fails with on a full disk; None is numpy's, which says how far it came alone."""

_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{12}\.unfinished")


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
    for leftover, num_bytes in remove_abandoned(path):
        size = f"{num_bytes / 1e6:.1f} MB"
        message = f"{leftover} ({size}), which an interrupted run had left, was removed"
        warnings.warn(LeftoverWarning(message), stacklevel=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished, lock = create_unfinished_directory(path)
    try:
        yield unfinished
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        lock.release()


def write_file(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write or replace a small file; same as `replacing`."""
    with replacing(path, private=private) as stream:
        stream.write(content)


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
    path = _resolved(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            yield device
        return
    remove_abandoned(path)
    with whole_file(path, private=private) as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Give a stream whose content becomes `path` when the block ends; it is in one directory entry.

    Unlike with `replacing`, a link is replaced itself, the disk is not waited for, so that a power
    failure may tear it, and what killed runs left is for `sweep`.

    Args:
        path: Same as in `replacing`, and so is the other.
        private: Whether only its owner may read it.

    Raises:
        OSError: It cannot be written.
    """
    unfinished, opened = create_unfinished_file(path, private)
    try:
        with _named(path), os.fdopen(_descriptor(opened), "wb") as stream:
            yield stream
            stream.flush()
            unfinished.replace(path)  # while the stream, which holds the lock, is open
    finally:
        unfinished.unlink(missing_ok=True)


def _resolved(path: Path) -> Path:
    """Where a path leads.

    Raises:
        OSError: Nowhere: links lead to each other.
    """
    try:
        return path.resolve()
    except RuntimeError as error:  # Python 3.13 gives the path as it is
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error


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


def sweep(directory: Path, names: re.Pattern[str]) -> None:
    """Remove what killed runs left of the files or directories of some names.

    What a live run writes stays, also another user's; where there are no locks, all does.

    Raises:
        OSError: The directory cannot be listed.
    """
    found = map(_UNFINISHED.fullmatch, os.listdir(directory))  # noqa: PTH208 (names alone)
    for name in {match[1] for match in found if match}:
        if names.fullmatch(name):
            remove_abandoned(directory / name)


@contextmanager
def locked(
    path: Path,
    *,
    wait_s: float = 0.0,
    ask_s: float = 0.05,
    go_on: Callable[[], None] = lambda: None,
    surely: bool = False,
) -> Iterator[bool]:
    """Lock the name of a file or directory against other processes, and other threads.

    A hidden empty file beside it, `.NAME.lock`, is what is locked: what has the name may be
    replaced meanwhile, or not be there yet, and network file systems lock no directories. It is
    removed at the end; one that a killed run left holds nobody up.

    Args:
        path: What to lock; other names of the same file lock it, too.
        wait_s: How long to wait for others.
        ask_s: How long to sleep before asking again.
        go_on: Called behind each sleep; may raise, to stop.
        surely: Whether it counts as another's where there are no locks.

    Yields:
        Whether it is locked: False where another holds it. Without locks, `not surely`.

    Raises:
        OSError: The file beside it cannot be created.
    """
    path, until_s = _resolved(path), time.monotonic() + wait_s
    name = path.with_name(f".{path.name}.lock")
    lock = _lock(name)
    while not lock.is_mine and time.monotonic() < until_s:
        lock.release()
        time.sleep(ask_s)
        go_on()
        lock = _lock(name)
    try:
        yield lock.is_held if surely else lock.is_mine
    finally:
        if lock.is_mine:
            name.unlink(missing_ok=True)
        lock.release()


def _lock(name: Path) -> Lock:
    for _ in range(_TRIES):
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT, 0o666))
        lock = Lock(name)
        if lock.is_mine or lock.is_anothers:
            break
        lock.release()  # it was removed by who held it until now
    return lock
