"""Blocks that are to be written, of tokens that stay in place until a session needs the room.

In: a session's tokens in place. Out: one block after the other, for a thread that writes beside the
session's runs. Runs only add tokens behind those; before any is overwritten, what is left of the
blocks is copied. So a session waits for no disk, and what is written costs it no copy.
"""

from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.runtime.prefix_store.layout import Layout
from coordgen_rs.runtime.prefix_store.names import BLOCK_TOKENS
from coordgen_rs.runtime.prefix_store.writer import Room

if TYPE_CHECKING:
    from coordgen_rs.runtime.caches.kv_cache import Pair


class LentBlocks:
    """Whole blocks of a session's tokens.

    Attributes:
        token_ids: The `token_ids` argument.

    Args:
        token_ids: All tokens, `(tokens,) u32`; not to be written.
        layers: Per layer their keys and values, in place.
        layout: How they lie in a block.
        fresh: The number of the first block that may be copied: of those before it, what is not
            written until they are overwritten is dropped.
        end: That behind the last.
        room: Where copies find room; where there is none, what is left is dropped. All that is
            taken in this name is given back with `close`.
    """

    def __init__(
        self,
        token_ids: NDArray[np.uint32],
        layers: "Sequence[Pair]",
        layout: Layout,
        fresh: int,
        end: int,
        room: Room,
    ) -> None:
        self.token_ids, self._layout, self._room = token_ids, layout, room
        self._layers: Sequence[Pair] | None = layers
        self._fresh, self._end = fresh, end
        self._copies: NDArray[np.uint8] | None = None  # of those from `_copied_from` on
        self._copied_from = end
        self._right = Lock()

    @property
    def is_over(self) -> bool:
        """Whether nothing is read in place any more."""
        return self._layers is None

    def before_change(self, length: int) -> None:
        """Copy what is left, if tokens behind the first `length` are about to be overwritten."""
        with self._right:
            if self._layers is None or length >= self._end * BLOCK_TOKENS:
                return
            layers, self._layers = self._layers, None
            self._copied_from, num_blocks = self._fresh, self._end - self._fresh
            num_bytes = num_blocks * self._layout.block_bytes(BLOCK_TOKENS)
            if num_blocks and self._room.take(self, num_bytes):
                start = self._fresh * BLOCK_TOKENS
                with suppress(MemoryError):  # dropped, as where there is no room
                    self._copies = self._layout.packed(
                        self.token_ids, layers, start, BLOCK_TOKENS, num_blocks
                    )

    def block(self, number: int) -> NDArray[np.uint8] | None:
        """A block's bytes, `(bytes,) u8`; None where it was dropped.

        Args:
            number: Which; ascending from call to call.
        """
        with self._right:
            self._fresh = max(self._fresh, number + 1)
            if self._layers is not None:
                start = number * BLOCK_TOKENS
                packed = self._layout.packed(self.token_ids, self._layers, start, BLOCK_TOKENS)
                return packed.reshape(-1)
            if self._copies is None or number < self._copied_from:
                return None
            at = number - self._copied_from
            return self._copies[at : at + 1].reshape(-1)

    def close(self) -> None:
        """Read nothing any more."""
        with self._right:
            self._layers = self._copies = None
            self._room.give_back(self)
