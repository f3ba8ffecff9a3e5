"""The user's cache: results of self-tests, and the bundles of checkpoints that were opened.

In: the environment. Out: places in `coordgen_rs` below `$XDG_CACHE_HOME` or `~/.cache`:

    *.json                  results of self-tests
    sources/*.json          what a checkpoint held when it was last read
    converted/KEY/          a conversion: its bundle, and `source.json`, without which it is none

A conversion is made under a name of its maker's own, and becomes KEY when it is complete. Who runs
its bundle holds `source.json`, shared with others; who removes it holds that alone. It is a file,
and not KEY, since network file systems lock no directories. Where there are no locks at all, no
complete conversion is ever removed.
What goes into a conversion, and when one is made, is in `loading/conversion.py`.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordgen_rs._core import Lock
from coordgen_rs.errors.json_text import read_object
from coordgen_rs.store.files import locked, sweep, unfinished_directory, write_file

SOURCE_NAME = "source.json"
_MOST_RECORD_BYTES = 16 << 20
_POLL_S = 0.02
_ANY = re.compile(".+")
_HIDDEN = re.compile(r"\.(.+)\.(?:lock|[0-9a-f]{12}\.unfinished)")


@dataclass(frozen=True)
class Conversion:
    """A checkpoint that was converted when it was opened.

    Attributes:
        directory: Where it is.
        source: The path or name that was opened first.
        bundle: The bundle.
        digest: The hash of what the checkpoint held; others with the same content use it, too.
        code: The hash of what converted it.
        used_at: When it was last opened, in seconds since 1970.
    """

    directory: Path
    source: str
    bundle: Path
    digest: str
    code: str
    used_at: float

    @property
    def num_bytes(self) -> int:
        """The size of its files."""
        total = 0
        for folder, _, names in os.walk(self.directory):  # skips folders that are gone
            for name in names:
                with suppress(FileNotFoundError):
                    total += (Path(folder) / name).lstat().st_size
        return total

    @property
    def is_source_gone(self) -> bool:
        """Whether the file or directory is gone; of a name at the hub that is not known."""
        return not self.source.startswith("hf:") and not Path(self.source).exists()

    @classmethod
    def at(cls, directory: Path) -> "Conversion | None":
        """What a directory holds; None where there is none, or it is not complete."""
        record = directory / SOURCE_NAME
        try:
            fields = read_record(record)
            source, digest, code = (str(fields[name]) for name in ("source", "sha256", "code"))
            bundle = next(path for path in directory.iterdir() if path.name == fields["bundle"])
            return cls(directory, source, bundle, digest, code, record.stat().st_mtime)
        except (OSError, ValueError, KeyError, StopIteration):
            return None

    def touch(self) -> None:
        """Say that it was opened now."""
        with suppress(OSError):  # a cache that is only read tells nobody
            os.utime(self.directory / SOURCE_NAME)


def cache_directory() -> Path | None:
    """The cache's directory; None for a user without a home directory."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        # The specification says that a relative one is to be ignored.
        cache = chosen if chosen.is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # no HOME, and the user id has no entry in the password file
        return None
    return cache / "coordgen_rs"


def read_record(path: Path) -> dict[str, Any]:
    """What a small file of the cache says.

    Raises:
        OSError, ValueError: It is missing, or is none.
    """
    return read_object(path, most_bytes=_MOST_RECORD_BYTES)


def keep_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a small file of the cache; a full or read-only disk costs finding it out again."""
    with suppress(OSError):
        make_private(path.parent)
        write_file(path, json.dumps(record).encode())


def make_private(directory: Path) -> None:
    """Make the cache or a directory in it, which nobody else may read: requests may be private.

    Raises:
        OSError: It cannot be made.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def converted_directory(cache: Path) -> Path:
    """Where conversions are."""
    return cache / "converted"


def source_record(cache: Path, path: Path) -> Path:
    """Where it is kept what a checkpoint held."""
    name = hashlib.sha256(os.fsencode(os.path.normpath(path.absolute()))).hexdigest()[:32]
    return cache / "sources" / f"{name}.json"


def made_of(cache: Path, path: Path, source: str) -> list[Conversion]:
    """The conversions of a checkpoint, also those that were made of another with its content.

    Args:
        cache: The cache's directory.
        path: Where it is, or was; or the directory of a conversion or its bundle, for that alone.
        source: What lists of conversions call it.
    """
    found = conversions(cache)
    ours = [it for it in found if path.absolute() in (it.directory, it.bundle)]
    if ours:
        return ours
    digest = None
    with suppress(OSError, ValueError, KeyError):  # it was never opened
        digest = read_record(source_record(cache, path))["sha256"]
    return [it for it in found if source == it.source or digest == it.digest]


def conversions(cache: Path) -> list[Conversion]:
    """All conversions, the last used first."""
    found = (Conversion.at(directory) for directory in _directories(cache))
    return sorted((it for it in found if it is not None), key=lambda it: -it.used_at)


def clear(cache: Path, chosen: list[Conversion] | None = None) -> list[Path]:
    """Remove conversions; those that a process makes or runs stay.

    Args:
        cache: The cache's directory.
        chosen: What to remove; None for all, also what is not complete.

    Returns:
        The directories of those that stay: they are in use, or there are no locks to tell.

    Raises:
        OSError: One cannot be removed.
    """
    remove_leftovers(cache)
    if chosen is None:
        shutil.rmtree(cache / "sources", ignore_errors=True)
        directories = list(_directories(cache))
    else:
        directories = [conversion.directory for conversion in chosen]
    stay = []
    for directory in directories:
        with locked(directory) as is_mine:  # nobody makes it
            if not (is_mine and remove(directory)):
                stay.append(directory)
    return stay


def remove(directory: Path, *, wait_s: float = 0) -> bool:
    """Remove a conversion at once, unless a process runs it; its name must be held.

    Args:
        directory: Where it is.
        wait_s: How long to wait for those that hold it: who only looks soon lets go of it.

    Returns:
        Whether it is gone. Without locks, what is complete stays.

    Raises:
        OSError: It cannot be removed.
    """
    until = time.monotonic() + wait_s
    while directory.exists():
        lock = Lock(directory / SOURCE_NAME)
        try:
            if lock.is_held or not (directory / SOURCE_NAME).exists():
                if sys.platform == "win32":
                    lock.release()  # a directory with an open file is not renamed there
                with suppress(FileNotFoundError), unfinished_directory(directory) as unfinished:
                    directory.rename(unfinished / directory.name)
                return True
            if not lock.is_anothers or time.monotonic() >= until:
                return False
        finally:
            lock.release()
        time.sleep(_POLL_S)
    return True


def remove_leftovers(cache: Path) -> None:
    """Remove what killed processes left half made, or half removed."""
    converted = converted_directory(cache)
    if not converted.exists():
        return
    sweep(converted, _ANY)
    for name in sorted(os.listdir(converted)):  # noqa: PTH208 (names alone)
        if hidden := _HIDDEN.fullmatch(name):
            # Network file systems lock no directories; whoever makes one holds the name, too. Of a
            # lock that was left, nothing but letting go of it is to be done.
            with suppress(OSError), locked(converted / hidden[1], surely=True) as is_mine:
                if is_mine:
                    shutil.rmtree(converted / name, ignore_errors=True)


def _directories(cache: Path) -> Iterator[Path]:
    for path in sorted(converted_directory(cache).glob("*")):
        if path.is_dir() and not path.name.startswith("."):
            yield path
