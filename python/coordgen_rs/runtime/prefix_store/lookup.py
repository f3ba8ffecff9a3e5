"""Looking for a prompt in a store: how much of it has files, and what they hold.

In: a prompt. Out: the length that the files reach to, and then keys, values and states, each file
checked before a byte of it is used. A file that turns out to be of no use is removed, and the
length is asked for again.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.runtime.prefix_store import block_file
from coordgen_rs.runtime.prefix_store.block_file import (
    BLOCK_SUFFIX,
    STATES_SUFFIX,
    DamagedFileError,
    Head,
)
from coordgen_rs.runtime.prefix_store.layout import TOKEN_BYTES, Layout
from coordgen_rs.runtime.prefix_store.names import BLOCK_TOKENS, Scope, block_names, states_name
from coordgen_rs.runtime.session import SavedPrefix

if TYPE_CHECKING:
    from coordgen_rs.runtime.caches.kv_cache import Pair


class UnusableError(Exception):
    """A file that was there is not what it should be, or is gone."""


class LookedFor:
    """The files that a prompt's beginning has, if they are there.

    Args:
        folder: The scope's.
        scope: Whose they are.
        token_ids: What is looked for, `(tokens,) u32`.
        layout: How they lie in a block.

    Attributes:
        num_damaged: Files that were not what they should be.
    """

    def __init__(
        self, folder: Path, scope: Scope, token_ids: NDArray[np.uint32], layout: Layout
    ) -> None:
        self._folder, self._scope, self._layout = folder, scope, layout
        self._token_ids, self._names = token_ids, block_names(scope, token_ids)
        self._unusable, self.num_damaged = set[Path](), 0
        self._listed = set[str]()
        self._most_states = len(token_ids)  # nothing above it has states
        if layout.state_sizes:
            with suppress(OSError):
                names = os.listdir(folder)  # noqa: PTH208 (names alone)
                self._listed = {it for it in names if it.endswith(STATES_SUFFIX)}

    def length(self) -> int:
        """How many tokens there are files for."""
        num_blocks = 0
        for name in self._names:
            path = self._path(name)
            if path in self._unusable or not os.path.lexists(path):
                break
            num_blocks += 1
        if not self._layout.state_sizes:
            return num_blocks * BLOCK_TOKENS
        if not self._listed:
            return 0
        most = min((num_blocks + 1) * BLOCK_TOKENS - 1, self._most_states)
        self._most_states = next((it for it in range(most, 0, -1) if self._has_states(it)), 0)
        return self._most_states

    def used(self, length: int) -> list[Path]:
        """The files of so many tokens, in order."""
        paths = [self._path(name) for name in self._names[: length // BLOCK_TOKENS]]
        return [*paths, self._states_path(length)] if self._layout.state_sizes else paths

    def read(self, length: int) -> SavedPrefix:
        """What the files of so many tokens hold.

        Raises:
            UnusableError: One is not what it should be; it counts no longer.
        """
        layout = self._layout
        layers, num_blocks = layout.room(length), length // BLOCK_TOKENS
        self._read_blocks(layers, num_blocks)
        states = None
        if layout.state_sizes:
            start, num_rest = num_blocks * BLOCK_TOKENS, length % BLOCK_TOKENS
            rest_bytes = layout.block_bytes(num_rest)
            content = np.empty(rest_bytes + layout.states_bytes, np.uint8)
            path = self._states_path(length)
            head = Head(self._scope.digest, self._states_of(length), start, num_rest)
            self._read(path, head, content)
            layout.unpack(content[:rest_bytes], layers, start, num_rest)
            states = [layout.snapshot(content[rest_bytes:], length)]
        return SavedPrefix(self._token_ids[:length].copy(), layers, states)

    def _read_blocks(self, layers: "Sequence[Pair]", num_blocks: int) -> None:
        block = np.empty(self._layout.block_bytes(BLOCK_TOKENS), np.uint8)
        for number in range(num_blocks):
            start, name = number * BLOCK_TOKENS, self._names[number]
            head = Head(self._scope.digest, name, start, BLOCK_TOKENS)
            self._read(self._path(name), head, block)
            self._layout.unpack(block, layers, start, BLOCK_TOKENS)

    def _read(self, path: Path, head: Head, content: NDArray[np.uint8]) -> None:
        try:
            block_file.read(path, head, content)
            tokens = content[: TOKEN_BYTES * head.num_tokens].view("<u4")
            if not np.array_equal(tokens, self._token_ids[head.start :][: head.num_tokens]):
                raise DamagedFileError(f"{path} holds other tokens")
        except FileNotFoundError:
            self._unusable.add(path)
            raise UnusableError from None
        except DamagedFileError as error:
            self._unusable.add(path)
            self.num_damaged += 1
            with suppress(OSError):  # it is written anew
                path.unlink()
            raise UnusableError from error

    def _path(self, name: bytes) -> Path:
        return self._folder / f"{name.hex()}{BLOCK_SUFFIX}"

    def _states_of(self, length: int) -> bytes:
        start = length - length % BLOCK_TOKENS
        before = self._names[start // BLOCK_TOKENS - 1] if start else self._scope.digest
        return states_name(before, self._token_ids[start:length])

    def _states_path(self, length: int) -> Path:
        return self._folder / f"{self._states_of(length).hex()}{STATES_SUFFIX}"

    def _has_states(self, length: int) -> bool:
        name = self._states_of(length).hex() + STATES_SUFFIX
        return name in self._listed and self._folder / name not in self._unusable
