"""A file of a store: what was computed of some tokens, behind a head that tells what it must be.

In: bytes. Out: the same bytes, or nothing: whatever is damaged, half-written, another's file, or no
file at all is told apart before a byte of it is used. A file takes its place when it is complete.
Checksums are CRC-32 (`zlib`): 7 GB/s here, where BLAKE2b has 1.2.
"""

import errno
import os
import secrets
import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SUFFIXES = BLOCK_SUFFIX, STATES_SUFFIX = ".kv", ".states"
UNFINISHED_SUFFIX = ".unfinished"
PRIVATE = 0o600

_MAGIC = b"CGprefx1"
_HEAD = struct.Struct("<8s16s16sQII")
_CHECKSUM = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size
_FLAGS = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer is not waited for
)


class DamagedFileError(Exception):
    """A file is not what its name says."""


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
    begin = _HEAD.pack(_MAGIC, *head, zlib.crc32(content.data))
    begin += _CHECKSUM.pack(zlib.crc32(begin))
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(6)}{UNFINISHED_SUFFIX}")
    opened = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, PRIVATE)
    try:
        with os.fdopen(opened, "wb", buffering=0) as stream:
            for part in (memoryview(begin), content.data):
                while part:
                    part = part[stream.write(part) :]
        os.utime(unfinished, ns=(used_ns, used_ns))
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


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
            _read_into(stream, content)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error}") from error
    expected = _HEAD.pack(_MAGIC, *head, zlib.crc32(content.data))
    if begin != expected + _CHECKSUM.pack(zlib.crc32(expected)):
        raise DamagedFileError(f"{path} is damaged, or not the file that its name says")


def num_tokens_of(path: Path) -> int:
    """How many tokens a file says that it holds; 0 where its head is damaged."""
    with suppress(OSError):
        with _opened(path) as stream:
            begin = stream.read(HEAD_BYTES) or b""
        if len(begin) == HEAD_BYTES and begin.startswith(_MAGIC):
            (checksum,) = _CHECKSUM.unpack(begin[_HEAD.size :])
            if checksum == zlib.crc32(begin[: _HEAD.size]):
                return int(_HEAD.unpack(begin[: _HEAD.size])[4])
    return 0


@contextmanager
def _opened(path: Path) -> Iterator[FileIO]:
    """A regular file, to be read.

    Raises:
        OSError: It cannot be opened, or is something else.
    """
    opened = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        with os.fdopen(opened, "rb", buffering=0, closefd=False) as stream:
            yield stream
    finally:
        os.close(opened)


def _read_into(stream: FileIO, content: NDArray[np.uint8]) -> None:
    """Fill the content; a file that is cut meanwhile leaves the rest as it was."""
    rest = content.data
    while rest:
        num_read = stream.readinto(rest)
        if not num_read:
            return
        rest = rest[num_read:]
