"""Blocks of a store: what was computed of some tokens, in a file whose name tells which.

In: whose tokens they are, which, and their keys and values, in place. Out: the same again, or
nothing: whatever is damaged, half-written, another's file, or no file at all is told apart before a
byte of it is used. A block's name depends on all tokens before it, so that two prompts that begin
alike have the same files until they differ, and no list says what is where. No name tells a token
or a namespace. A block holds its tokens, then layer by layer keys and values as the cache holds
them. Checksums are CRC-32 (`zlib`): 7 GB/s here, where BLAKE2b has 1.2.
"""

import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.store.files import whole_file
from coordgen_rs.store.prefixes.prefix import KeepsPrefixes, Pair, Snapshot

BLOCK_TOKENS = 32
"""Tokens of a block. The rest of a prompt is computed again, at most so many less one."""

SUFFIXES = BLOCK_SUFFIX, STATES_SUFFIX = ".kv", ".states"

TOKEN_BYTES = np.dtype("<u4").itemsize

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


_Array = tuple[int, int, np.dtype[Any]]
"""Heads, numbers of a head, and their type."""


@dataclass(frozen=True)
class Layout:
    """What a token and a snapshot take.

    Attributes:
        arrays: Keys and values of all layers, in turns.
        state_sizes: Bytes of each operator's state; empty where no layer is recurrent.
    """

    arrays: tuple[_Array, ...]
    state_sizes: tuple[int, ...] = ()

    @classmethod
    def of(cls, session: KeepsPrefixes) -> "Layout":
        """That of a session."""
        every = chain(*session.prefix_in_place(0).layers)
        arrays = tuple((it.shape[1], it.shape[3], it.dtype) for it in every)
        return cls(arrays, tuple(session.state_sizes))

    @cached_property
    def token_bytes(self) -> int:
        """Bytes of a token's keys and values."""
        return sum(heads * size * dtype.itemsize for heads, size, dtype in self.arrays)

    @property
    def states_bytes(self) -> int:
        """Bytes of a snapshot."""
        return sum(self.state_sizes)

    def block_bytes(self, num_tokens: int) -> int:
        """Bytes of a block of so many tokens: the tokens, then their keys and values."""
        return num_tokens * (TOKEN_BYTES + self.token_bytes)

    def packed(
        self,
        token_ids: NDArray[np.uint32],
        layers: Sequence[Pair],
        start: int,
        num_tokens: int,
        num_blocks: int = 1,
    ) -> NDArray[np.uint8]:
        """Copies of blocks, `(num_blocks, bytes) u8`.

        Args:
            token_ids: All tokens, `(tokens,) u32`.
            layers: Per layer their keys and values, `(1, heads, tokens, size)`.
            start: The first token of the first block.
            num_tokens: Tokens of a block.
            num_blocks: How many blocks.
        """
        end = start + num_tokens * num_blocks
        blocks = np.empty((num_blocks, self.block_bytes(num_tokens)), np.uint8)
        of_tokens = blocks[:, : TOKEN_BYTES * num_tokens].view("<u4")
        of_tokens[:] = token_ids[start:end].reshape(num_blocks, num_tokens)
        for part, array in zip(self._parts(blocks, num_tokens), chain(*layers), strict=True):
            _, heads, _, size = array.shape
            by_blocks = array[0, :, start:end].reshape(heads, num_blocks, num_tokens, size)
            part[:] = by_blocks.transpose(1, 0, 2, 3)
        return blocks

    def room(self, num_tokens: int) -> list[Pair]:
        """Per layer room for keys and values of so many tokens."""
        every = [np.empty((1, heads, num_tokens, size), of) for heads, size, of in self.arrays]
        return list(zip(every[::2], every[1::2], strict=True))

    def unpack(
        self, block: NDArray[np.uint8], layers: Sequence[Pair], start: int, num_tokens: int
    ) -> None:
        """Copy a block's keys and values to where they belong.

        Args:
            block: As `packed` gives it, `(bytes,) u8`.
            layers: Per layer keys and values.
            start: The block's first token.
            num_tokens: Tokens of the block.
        """
        parts = self._parts(block[np.newaxis], num_tokens)
        for part, array in zip(parts, chain(*layers), strict=True):
            array[0, :, start : start + num_tokens] = part[0]

    def snapshot(self, states: NDArray[np.uint8], length: int) -> Snapshot:
        """A snapshot of so many tokens, from its bytes `(bytes,) u8`, which are copied."""
        ends = np.cumsum(self.state_sizes)[:-1]
        return Snapshot(length, [state.copy() for state in np.split(states, ends)])

    def _parts(self, blocks: NDArray[np.uint8], num_tokens: int) -> list[NDArray[Any]]:
        """Each array's part of blocks, `(num_blocks, heads, num_tokens, size)`, in place."""
        parts, at = [], TOKEN_BYTES * num_tokens
        for heads, size, dtype in self.arrays:
            end = at + heads * num_tokens * size * dtype.itemsize
            part = blocks[:, at:end].view(dtype)
            parts.append(part.reshape(len(blocks), heads, num_tokens, size))
            at = end
        return parts
