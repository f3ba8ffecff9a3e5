"""Names of what is being written, and the removal of what a killed run left under such a name.

In: the path that is to exist at the end. Out: a file or directory beside it under a hidden name,
`.NAME.<12 hex digits>.unfinished`, which takes the path's place only when it is complete.
Who writes it holds a lock on it (flock), which ends with the process, however that ends: no clock,
process id or age decides what is left over. `src/replace_file.rs` does the same for the core.
"""

import errno
import os
import re
import secrets
import shutil
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from coordgen_rs.errors import LeftoverWarning

_DIGITS = 6
"""Bytes of chance in a name, two hexadecimal digits each."""

_TRIES = 100
"""At a lock whose file was removed each time, before it counts as another's."""

_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG, None)
"""What writing fails with on a full disk; None is numpy's, which says how far it came alone."""


@dataclass(frozen=True)
class Leftover:
    """What a killed run left.

    Attributes:
        path: Where it was.
        num_bytes: Of its files.
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
    with _named(path):
        while True:
            unfinished = _new_name(path)
            unfinished.mkdir()
            try:
                lock = _Lock(unfinished)
            except BaseException:
                unfinished.rmdir()
                raise
            if lock.is_mine:
                break
            lock.release()  # somebody who cleans up was quicker
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
    with _named(path):
        stream, unfinished, lock = _created(path, 0o600 if private else 0o666)
        try:
            with stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
            lock.release()


def _created(path: Path, mode: int) -> tuple[BinaryIO, Path, "_Lock"]:
    """A new unfinished file for `path`, and the lock on it."""
    while True:
        unfinished = _new_name(path)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode)
        try:
            lock = _Lock(unfinished)
        except BaseException:
            os.close(descriptor)
            unfinished.unlink(missing_ok=True)
            raise
        if lock.is_mine:
            return os.fdopen(descriptor, "wb"), unfinished, lock
        os.close(descriptor)
        lock.release()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors name `path`, not what is written in its stead, and not nothing where the disk is full.

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
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{{2 * _DIGITS}}}\.unfinished")
    removed = []
    with suppress(OSError):
        for name in sorted(filter(pattern.fullmatch, os.listdir(path.parent))):  # noqa: PTH208 (no Path a file)
            if _is_own(path.parent / name):
                removed += _remove_unlocked(path.parent / name)
    return removed


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
    lock = _Lock(directory.resolve())
    try:
        yield lock.is_mine
    finally:
        lock.release()


@contextmanager
def held_name(path: Path) -> Iterator[bool]:
    """Hold the name of a file that is replaced again and again, or is not there yet, for the block.

    A hidden empty file beside it, `.NAME.lock`, is what is locked. It is removed at the end; one
    that a killed run left holds nobody up.

    Args:
        path: What to hold; other names of the same file hold it, too.

    Yields:
        Whether it is held: False where another process holds it. Without locks, always True.

    Raises:
        OSError: The file beside it cannot be created.
    """
    path = path.resolve()
    name = path.with_name(f".{path.name}.lock")
    for _ in range(_TRIES):
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | _BINARY, 0o666))
        lock = _Lock(name)
        if lock.is_mine or lock.is_anothers:
            break
        lock.release()  # it was removed by who held it until now
    try:
        yield lock.is_mine
    finally:
        if lock.is_mine:
            name.unlink(missing_ok=True)
        lock.release()


def _remove_unlocked(found: Path) -> list[Leftover]:
    try:
        lock = _Lock(found)
    except OSError:
        return []
    try:
        if not lock.is_certain:
            return []
        num_bytes = _num_bytes(found)
        if found.is_dir():
            shutil.rmtree(found, ignore_errors=True)
        else:
            found.unlink(missing_ok=True)
        return [] if found.exists() else [Leftover(found, num_bytes)]
    except OSError:
        return []
    finally:
        lock.release()


class _Lock:
    """A lock on a file or directory, from now until `release` or the end of the process.

    Attributes:
        is_certain: The lock is held, and what it is held on still has its name.
        is_mine: `is_certain`, or there are no locks here.
        is_anothers: Another process holds it.

    Raises:
        OSError: What is there cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        self.is_certain = self.is_mine = self.is_anothers = False
        if sys.platform == "win32":
            self.is_mine = True
            return
        import fcntl

        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:  # somebody has removed it
            return
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.is_anothers = True
            return
        except OSError:  # a file system without locks
            self.is_mine = True
            return
        with suppress(OSError):
            self.is_certain = os.path.samestat(os.fstat(self._descriptor), os.lstat(path))
        self.is_mine = self.is_certain

    def release(self) -> None:
        """Let go of it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_BINARY = getattr(os, "O_BINARY", 0)


def _new_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(_DIGITS)}.unfinished")


def _is_own(path: Path) -> bool:
    """Whether it is a file or directory of this user."""
    with suppress(OSError):
        found = path.lstat()
        is_plain = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
        return is_plain and (sys.platform == "win32" or found.st_uid == os.geteuid())
    return False


def _num_bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files if not file.is_dir())
