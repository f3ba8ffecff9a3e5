"""Looking for a prompt in a store: how much of it has files, and what they hold.

In: a prompt. Out: the length that the files reach to, and then keys, values and states, each file
checked before a byte of it is used. A file that turns out to be of no use is removed, and the
length is asked for again.
"""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.store.prefixes import block_file
from coordgen_rs.store.prefixes.block_file import (
    BLOCK_SUFFIX,
    BLOCK_TOKENS,
    STATES_SUFFIX,
    DamagedFileError,
    Head,
    block_names,
    states_head,
)
from coordgen_rs.store.prefixes.layout import TOKEN_BYTES, Layout
from coordgen_rs.store.prefixes.prefix import SavedPrefix


class LookedFor:
    """The files that a prompt's beginning has, if they are there.

    Args:
        folder: The scope's.
        scope: Whose they are.
        token_ids: What is looked for, `(tokens,) u32`.
        layout: How they lie in a block.
    """

    def __init__(
        self, folder: Path, scope: bytes, token_ids: NDArray[np.uint32], layout: Layout
    ) -> None:
        self._folder, self._scope, self._layout = folder, scope, layout
        self._token_ids, self._names = token_ids, block_names(scope, token_ids)
        self._unusable = set[Path]()
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
        if self._layout.state_sizes:
            paths.append(self._path(self._states_of(length).name, STATES_SUFFIX))
        return paths

    def read(self, length: int) -> SavedPrefix:
        """What the files of so many tokens hold.

        Raises:
            FileNotFoundError, DamagedFileError: One is gone, or not what it should be; it counts no
                longer.
        """
        layout, num_blocks, states = self._layout, length // BLOCK_TOKENS, None
        layers, block = layout.room(length), np.empty(layout.block_bytes(BLOCK_TOKENS), np.uint8)
        for number, name in enumerate(self._names[:num_blocks]):
            head = Head(self._scope, name, number * BLOCK_TOKENS, BLOCK_TOKENS)
            self._read(self._path(name), head, block)
            layout.unpack(block, layers, head.start, BLOCK_TOKENS)
        if layout.state_sizes:
            head = self._states_of(length)
            rest_bytes = layout.block_bytes(head.num_tokens)
            content = np.empty(rest_bytes + layout.states_bytes, np.uint8)
            self._read(self._path(head.name, STATES_SUFFIX), head, content)
            layout.unpack(content[:rest_bytes], layers, head.start, head.num_tokens)
            states = [layout.snapshot(content[rest_bytes:], length)]
        return SavedPrefix(self._token_ids[:length].copy(), layers, states)

    def _read(self, path: Path, head: Head, content: NDArray[np.uint8]) -> None:
        try:
            block_file.read(path, head, content)
            tokens = content[: TOKEN_BYTES * head.num_tokens].view("<u4")
            if not np.array_equal(tokens, self._token_ids[head.start :][: head.num_tokens]):
                raise DamagedFileError(f"{path} holds other tokens")
        except FileNotFoundError:
            self._unusable.add(path)
            raise
        except DamagedFileError:
            self._unusable.add(path)
            with suppress(OSError):  # it is written anew
                path.unlink()
            raise

    def _path(self, name: bytes, suffix: str = BLOCK_SUFFIX) -> Path:
        return self._folder / f"{name.hex()}{suffix}"

    def _states_of(self, length: int) -> Head:
        return states_head(self._scope, self._names, self._token_ids, length)

    def _has_states(self, length: int) -> bool:
        path = self._path(self._states_of(length).name, STATES_SUFFIX)
        return path.name in self._listed and path not in self._unusable
