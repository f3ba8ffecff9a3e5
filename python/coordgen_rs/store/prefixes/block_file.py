"""A file of a store: what was computed of some tokens, under a name that tells which.

In: whose tokens they are, which, and bytes. Out: the same bytes, or nothing: whatever is damaged,
half-written, another's file, or no file at all is told apart before a byte of it is used. A block's
name depends on all tokens before it, so that two prompts that begin alike have the same files until
they differ, and no list says what is where. No name tells a token or a namespace.
Checksums are CRC-32 (`zlib`): 7 GB/s here, where BLAKE2b has 1.2.
"""

import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.store.files import whole_file

BLOCK_TOKENS = 32
"""Tokens of a block. The rest of a prompt is computed again, at most so many less one."""

SUFFIXES = BLOCK_SUFFIX, STATES_SUFFIX = ".kv", ".states"

_NAME_BYTES = 16
_MAGIC = b"CGprefx1"
_HEAD = struct.Struct("<8s16s16sQII")
_CHECKSUM = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""No link is followed, and a pipe without a writer is not waited for."""


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
    found = hashlib.blake2b(len(before).to_bytes(8, "little"), digest_size=_NAME_BYTES, person=kind)
    found.update(before)
    found.update(more)
    return found.digest()


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
    except FileNotFoundError:
        return False
    except OSError:  # another user's, or on a disk that is only read
        return True
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
