"""The directory of a store: one folder for each scope, and what all of them may take together.

    DIR/SCOPE/about.json        whose: bundle, namespace, what made it; for lists alone
    DIR/SCOPE/NAME.kv           a block of tokens, with their keys and values
    DIR/SCOPE/NAME.states       states of recurrent layers, behind NAME's tokens
    DIR/.total                  bytes of all these files, or more; measured again where it is gone

In: files to write, and which were used. Out: the same files until room is needed, those least
recently used first. A file's name tells what it holds: it depends on all tokens before it, so that
two prompts that begin alike have the same files until they differ, and no list says what is where.
No name tells a token or a namespace. Whatever is damaged, half-written, another's file, or no file
at all is told apart before a byte of it is used. Checksums are CRC-32 (`zlib`): 7 GB/s here, where
BLAKE2b has 1.2.

Readers need no lock: files appear and go whole, and who misses one computes. Writers take turns,
file by file, so that all of them together stay within the limit. One that is killed holds nobody
up, and leaves at most a hidden file, which the next sweep removes; where there are no locks, it
goes as the others do.
"""

import errno
import hashlib
import json
import os
import re
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import OptionError
from coordgen_rs.errors.json_text import read_object
from coordgen_rs.store.files import locked, sweep, whole_file, write_file
from coordgen_rs.store.prefixes.prefix import BLOCK_TOKENS

SUFFIXES = BLOCK_SUFFIX, STATES_SUFFIX = ".kv", ".states"

_NAME_BYTES = 16
_MAGIC = b"CGprefx1"
_HEAD = struct.Struct("<8s16s16sQII")
_CHECKSUM = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""No link is followed, and a pipe without a writer is not waited for."""

DEFAULT_BYTES = 4_000_000_000
"""Most bytes of a store for which nothing else is said."""

_ABOUT, _TOTAL = "about.json", ".total"
_MOST_ABOUT_BYTES = 1 << 20
_SCOPE = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(rf"[0-9a-f]{{32}}({'|'.join(map(re.escape, SUFFIXES))})")
_FILE_OR_UNFINISHED = re.compile(rf"{_FILE.pattern}|\.{_FILE.pattern}\.[0-9a-f]{{12}}\.unfinished")
_SPARED = 8
"""An eighth of the limit is freed at once."""
_MOST_WAIT_S, _LOOKS_AGAIN_S = 10.0, 0.002
"""How long a writer waits for others, and how often it asks: each writes one file meanwhile."""
_MOST_TOTAL_BYTES = 20


class DamagedFileError(Exception):
    """A file is not what its name says."""


def scope_of(target: bytes, namespace: str) -> bytes:
    """Whose prefixes they are, 16 bytes: nothing is found across scopes.

    Args:
        target: Tells apart all that computes other keys and values, or states.
        namespace: The namespace's name.
    """
    return _hashed(b"scope", target, namespace.encode("utf-8", "surrogatepass"))


def block_names(scope: bytes, token_ids: NDArray[np.uint32]) -> list[bytes]:
    """The names of the whole blocks that tokens `(tokens,) u32` begin with."""
    names, name = [], scope
    for start in range(0, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        name = _hashed(b"block", name, _bytes(token_ids[start : start + BLOCK_TOKENS]))
        names.append(name)
    return names


def states_head(
    scope: bytes, names: Sequence[bytes], token_ids: NDArray[np.uint32], length: int
) -> "Head":
    """What the file of the states behind some tokens is: it holds those behind the last block, too.

    Args:
        scope: Whose they are.
        names: Those of the tokens' whole blocks.
        token_ids: The tokens, and more, `(tokens,) u32`.
        length: How many tokens.
    """
    number, num_rest = divmod(length, BLOCK_TOKENS)
    before, start = names[number - 1] if number else scope, number * BLOCK_TOKENS
    name = _hashed(b"states", before, _bytes(token_ids[start:length]))
    return Head(scope, name, start, num_rest)


def _bytes(token_ids: NDArray[np.uint32]) -> bytes:
    return token_ids.astype("<u4", copy=False).tobytes()


def _hashed(kind: bytes, before: bytes, more: bytes) -> bytes:
    hashed = len(before).to_bytes(8, "little") + before + more
    return hashlib.blake2b(hashed, digest_size=_NAME_BYTES, person=kind).digest()


class Head(NamedTuple):
    """What a file says of itself.

    Attributes:
        scope: Whose it is, 16 bytes.
        name: What it is called, 16 bytes.
        start: Tokens before those that it holds.
        num_tokens: Tokens that it holds.
    """

    scope: bytes
    name: bytes
    start: int
    num_tokens: int

    @property
    def end(self) -> int:
        """Tokens before those behind it."""
        return self.start + self.num_tokens

    def path(self, folder: Path, suffix: str) -> Path:
        """Where such a file is, below its scope's folder."""
        return folder / f"{self.name.hex()}{suffix}"

    def packed(self, content: NDArray[np.uint8]) -> bytes:
        """What a file with this content `(bytes,) u8` begins with."""
        begin = _HEAD.pack(_MAGIC, *self, zlib.crc32(content.data))
        return begin + _CHECKSUM.pack(zlib.crc32(begin))


def write(path: Path, head: Head, content: NDArray[np.uint8], used_ns: int) -> None:
    """Write a file, which its owner alone may read; at once there, or not at all.

    It is not waited for the disk: what a power failure tears is told by its checksum.

    Args:
        path: Where it is to be.
        head: What it holds.
        content: `(bytes,) u8`, contiguous.
        used_ns: When it was last used, in ns since 1970.

    Raises:
        OSError: It cannot be written; nothing is left of it.
    """
    with whole_file(path, private=True) as stream:
        stream.write(head.packed(content))
        stream.write(content.data)
    touch(path, used_ns)


def touch(path: Path, used_ns: int) -> bool:
    """Say that a file was used; whether there is one."""
    try:
        os.utime(path, ns=(used_ns, used_ns), follow_symlinks=False)
    except OSError as error:  # else another user's, or on a disk that is only read
        return not isinstance(error, FileNotFoundError)
    return True


def read(path: Path, head: Head, content: NDArray[np.uint8]) -> None:
    """Read a file.

    Args:
        path: Where it is.
        head: What it must be.
        content: Filled with what it holds, `(bytes,) u8`; its size is the file's, too.

    Raises:
        FileNotFoundError: There is none.
        DamagedFileError: It is another one, damaged, or cannot be read; the content is of no use.
    """
    try:
        with _opened(path) as stream:
            if os.fstat(stream.fileno()).st_size != HEAD_BYTES + content.nbytes:
                raise DamagedFileError(f"{path} has not the size of what it should hold")
            begin = stream.read(HEAD_BYTES)
            stream.readinto(content.data)  # type: ignore[attr-defined]
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error}") from error
    if begin != head.packed(content):
        raise DamagedFileError(f"{path} is damaged, or not the file that its name says")


def num_tokens_of(path: Path) -> int:
    """How many tokens a file says that it holds; 0 where its head is damaged."""
    with suppress(OSError, struct.error):
        with _opened(path) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return 0
            begin, checksum = stream.read(_HEAD.size), stream.read(_CHECKSUM.size)
        if _CHECKSUM.unpack(checksum) == (zlib.crc32(begin),) and begin.startswith(_MAGIC):
            return int(_HEAD.unpack(begin)[4])
    return 0


def _opened(path: Path) -> BinaryIO:
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | _FLAGS))


class StoredFile(NamedTuple):
    """A file of a store.

    Attributes:
        path: Where it is.
        num_bytes: Its size.
        used_ns: When it was last used, in ns since 1970.
    """

    path: Path
    num_bytes: int
    used_ns: int


@dataclass(frozen=True)
class ScopeSummary:
    """What a store holds of one target and namespace.

    Attributes:
        directory: Where it is.
        bundle: What the bundle was called; "" where that is not known any more.
        namespace: The namespace; None where that is not known any more.
        kv_cache: How keys and values are held.
        made_by: The version of this package that has written it.
        num_tokens: Tokens of all blocks.
        num_bytes: Size of all files.
        used_at: When one was last used, in seconds since 1970; None where there is none.
    """

    directory: Path
    bundle: str
    namespace: str | None
    kv_cache: str
    made_by: str
    num_tokens: int
    num_bytes: int
    used_at: float | None


class StoreDirectory:
    """The files of a store.

    Args:
        path: Created if missing, readable by its owner only.
        most_bytes: Most bytes of all files, of all scopes.

    Attributes:
        path: The `path` argument, absolute.
        most_bytes: The `most_bytes` argument.
        evicted_bytes: Bytes that were removed to make room.

    Raises:
        OptionError: Everybody may write there.
        OSError: It is no directory, or cannot be created.
    """

    def __init__(self, path: Path, most_bytes: int = DEFAULT_BYTES) -> None:
        path = path.absolute()  # it is written to later, from wherever the process is
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError as error:
            code = errno.ENOTDIR
            raise NotADirectoryError(code, os.strerror(code), str(path)) from error
        if (
            os.name == "posix"
            and path.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH
        ):
            raise OptionError(
                f"everybody may write in {path}: what others put there would be taken for what "
                "the model has computed; choose a prefix store that is your own"
            )
        self.path, self.most_bytes = path, most_bytes
        self.evicted_bytes = 0
        self._has_swept = False

    def own_folder(self, scope: bytes) -> Path:
        """Where a scope's files are, if that is this user's, and no other may write in it.

        Raises:
            OSError: It is not, or there is none.
        """
        folder = self.path / scope.hex()
        found = folder.lstat()
        is_own = os.name != "posix" or (
            found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        )
        if not stat.S_ISDIR(found.st_mode) or not is_own:
            raise OSError(errno.EPERM, "it is not a directory of this user's own", str(folder))
        return folder

    def make_folder(self, scope: bytes, about: Mapping[str, Any]) -> Path:
        """The same, made if missing.

        Args:
            scope: Its digest.
            about: What lists tell of it.

        Raises:
            OSError: It cannot be made, or is not this user's own.
        """
        (self.path / scope.hex()).mkdir(mode=0o700, exist_ok=True)
        folder = self.own_folder(scope)
        if not (folder / _ABOUT).exists():
            write_file(folder / _ABOUT, json.dumps(about).encode(), private=True)
        return folder

    @contextmanager
    def room_for(self, num_bytes: int) -> Iterator[None]:
        """Make room for a file, which is to be written within the block; other writers wait.

        What was not used for longest is removed until the file is within the limit.

        Args:
            num_bytes: Its size.

        Raises:
            TimeoutError: Others do not come to an end.
            OSError: Nothing can be removed.
        """
        lock = locked(self.path / _TOTAL, wait_s=_MOST_WAIT_S, ask_s=_LOOKS_AGAIN_S)
        with lock as is_mine:
            if not is_mine:
                why = "another process has been writing there for too long"
                raise TimeoutError(errno.ETIMEDOUT, why, str(self.path))
            total = self._read_total() if self._has_swept else None
            if total is None or total + num_bytes > self.most_bytes:
                total = self._sweep(num_bytes)
            # Before the file is there: a process that is killed leaves too large a number.
            self._write_total(total + num_bytes)
            yield

    def _read_total(self) -> int | None:
        with suppress(OSError, ValueError), (self.path / _TOTAL).open("rb") as stream:
            return int(stream.read(_MOST_TOTAL_BYTES))
        return None

    def _write_total(self, total: int) -> None:
        with open(self.path / _TOTAL, "wb", opener=_not_followed) as stream:
            stream.write(b"%d" % total)

    def _sweep(self, num_bytes: int) -> int:
        """Remove what was not used for longest, until there is room; the bytes of what stays.

        Raises:
            OSError: It cannot be removed.
        """
        for folder in _folders(self.path):
            with suppress(OSError):  # gone meanwhile, or not to be read
                sweep(folder, _FILE)
        files = sorted(stored_files(self.path), key=lambda it: it.used_ns)
        total = sum(it.num_bytes for it in files)
        if total + num_bytes > self.most_bytes:
            most = self.most_bytes - self.most_bytes // _SPARED
            for file in files:
                if total + num_bytes <= most:
                    break
                with suppress(OSError):
                    file.path.unlink(missing_ok=True)
                    total -= file.num_bytes
                    self.evicted_bytes += file.num_bytes
        if total + num_bytes > self.most_bytes:
            why = "there is no room within the limit, and nothing can be removed"
            raise OSError(errno.ENOSPC, why, str(self.path))
        self._has_swept = True
        return total


def _not_followed(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def stored_files(path: Path) -> Iterator[StoredFile]:
    """All files of a store, of all scopes; what is none of its own is left out."""
    for folder in _folders(path):
        yield from _files_of(folder)


def summaries(path: Path) -> list[ScopeSummary]:
    """What a store holds, the last used first.

    Raises:
        OptionError: It is no store, but holds something else.
        OSError: The directory cannot be read.
    """
    names = os.listdir(path)  # noqa: PTH208 (says what is wrong)
    if names and not any(name == _TOTAL or _SCOPE.fullmatch(name) for name in names):
        raise OptionError(f"{path} is not a prefix store: it holds other files")
    return sorted(map(_summary, _folders(path)), key=lambda it: -(it.used_at or 0))


def clear(found: ScopeSummary, unused_since: float | None = None) -> int:
    """Remove files of a scope; a server that runs goes on without them.

    Args:
        found: Which scope.
        unused_since: Only what was not used since then, in seconds since 1970; None for all.

    Returns:
        How many bytes are gone.

    Raises:
        OSError: A file cannot be removed.
    """
    freed = 0
    for file in _files_of(found.directory):
        if unused_since is None or file.used_ns < unused_since * 1e9:
            file.path.unlink(missing_ok=True)
            freed += file.num_bytes
    if unused_since is None:
        (found.directory / _ABOUT).unlink(missing_ok=True)
        with suppress(OSError):  # it holds what is not ours
            found.directory.rmdir()
    (found.directory.parent / _TOTAL).unlink(missing_ok=True)
    return freed


def _folders(path: Path) -> Iterator[Path]:
    for entry in _entries(path, _SCOPE):
        if entry.is_dir(follow_symlinks=False):
            yield Path(entry.path)


def _files_of(folder: Path) -> Iterator[StoredFile]:
    for entry in _entries(folder, _FILE_OR_UNFINISHED):
        with suppress(OSError):  # gone meanwhile
            found = entry.stat(follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                yield StoredFile(Path(entry.path), found.st_size, found.st_mtime_ns)


def _entries(folder: Path, names: re.Pattern[str]) -> list["os.DirEntry[str]"]:
    with suppress(OSError), os.scandir(folder) as entries:  # gone, or not to be read
        return [entry for entry in entries if names.fullmatch(entry.name)]
    return []


def _summary(folder: Path) -> ScopeSummary:
    files, about = list(_files_of(folder)), dict[str, Any]()
    with suppress(OSError, ValueError):
        about = read_object(folder / _ABOUT, most_bytes=_MOST_ABOUT_BYTES)
    bundle, namespace, kv_cache, made_by = (
        it if isinstance(it := about.get(name), str) else None
        for name in ("bundle", "namespace", "kv_cache", "made_by")
    )
    return ScopeSummary(
        folder,
        bundle or "",
        namespace,
        kv_cache or "",
        made_by or "",
        sum(num_tokens_of(it.path) for it in files if it.path.suffix == BLOCK_SUFFIX),
        sum(it.num_bytes for it in files),
        max(it.used_ns for it in files) / 1e9 if files else None,
    )
