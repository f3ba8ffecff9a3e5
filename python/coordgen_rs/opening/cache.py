"""The user's cache: results of self-tests, and the bundles of checkpoints that were opened.

In: the environment. Out: places in `coordgen_rs` below `$XDG_CACHE_HOME` or `~/.cache`:

    *.json                  results of self-tests
    sources/*.json          what a checkpoint held when it was last read
    converted/KEY/          a conversion: its bundle, and `source.json`, without which it is none

Who runs a bundle of a conversion holds KEY, shared with others; who removes one holds it alone.
What goes into a conversion, and when one is made, is in `conversion.py`.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coordgen_rs.files.json_text import read_object
from coordgen_rs.files.unfinished import held, held_name, remove_abandoned, unfinished_directory

SOURCE_NAME = "source.json"
_MOST_RECORD_BYTES = 1 << 20


@dataclass(frozen=True)
class Conversion:
    """A checkpoint that was converted when it was opened.

    Attributes:
        directory: Where it is.
        source: The path or name that was opened.
        bundle: The bundle.
        used_at: When it was last opened, in seconds since 1970.
    """

    directory: Path
    source: str
    bundle: Path
    used_at: float

    @property
    def num_bytes(self) -> int:
        """The size of its files."""
        files = (path for path in self.directory.rglob("*") if path.is_file())
        return sum(path.stat().st_size for path in files)

    @classmethod
    def at(cls, directory: Path) -> "Conversion | None":
        """What a directory holds; None where there is none, or it is not complete."""
        record = directory / SOURCE_NAME
        try:
            fields = read_object(record, most_bytes=_MOST_RECORD_BYTES)
            source = str(fields["source"])
            bundle = next(path for path in directory.iterdir() if path.name == fields["bundle"])
            return cls(directory, source, bundle, record.stat().st_mtime)
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


def converted_directory(cache: Path) -> Path:
    """Where conversions are."""
    return cache / "converted"


def sources_directory(cache: Path) -> Path:
    """Where it is kept what checkpoints held."""
    return cache / "sources"


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
        The directories of those that stay.

    Raises:
        OSError: One cannot be removed.
    """
    remove_leftovers(cache)
    if chosen is None:
        shutil.rmtree(sources_directory(cache), ignore_errors=True)
        directories = list(_directories(cache))
    else:
        directories = [conversion.directory for conversion in chosen]
    stay = []
    for directory in directories:
        with held_name(directory) as is_mine:  # nobody makes it
            if not (is_mine and remove(directory)):
                stay.append(directory)
    return stay


def remove(directory: Path) -> bool:
    """Remove a conversion at once, unless a process runs it; its name must be held.

    Returns:
        Whether it is gone.

    Raises:
        OSError: It cannot be removed.
    """
    if not directory.exists():
        return True
    with held(directory) as is_mine:
        if is_mine:
            with unfinished_directory(directory) as unfinished:
                directory.rename(unfinished / directory.name)
    return is_mine


def remove_leftovers(cache: Path) -> None:
    """Remove what killed processes left half made, or half removed."""
    converted = converted_directory(cache)
    for pattern in (".*.unfinished", "*/.*.unfinished"):
        for found in converted.glob(pattern):
            name, _, _ = found.name.removeprefix(".").rsplit(".", 2)
            remove_abandoned(found.with_name(name))


def _directories(cache: Path) -> Iterator[Path]:
    for path in sorted(converted_directory(cache).glob("*")):
        if path.is_dir() and not path.name.startswith("."):
            yield path
