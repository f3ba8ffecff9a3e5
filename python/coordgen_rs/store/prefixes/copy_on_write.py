"""Blocks that are to be written, of tokens that stay in place until a session needs the room.

In: a session's tokens in place. Out: one block after the other, for a thread that writes beside the
session's runs. Runs only add tokens behind those; before any is overwritten, what is left of the
blocks is copied. So a session waits for no disk, and what is written costs it no copy.
"""

from collections.abc import Sequence
from contextlib import suppress
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.store.prefixes.blocks import BLOCK_TOKENS, Layout
from coordgen_rs.store.prefixes.prefix import Pair


class MemoryBudget:
    """How much memory what waits to be written may take.

    Args:
        most_bytes: Most bytes; more only for what is alone.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._taken = most_bytes, dict[object, int]()
        self._lock = Lock()

    def take(self, owner: object, num_bytes: int) -> bool:
        """Take so many bytes more, if there is room.

        Args:
            owner: Gives back all that was taken in its name.
            num_bytes: How many.
        """
        with self._lock:
            taken = sum(self._taken.values())
            if taken and taken + num_bytes > self._most_bytes:
                return False
            self._taken[owner] = self._taken.get(owner, 0) + num_bytes
            return True

    def give_back(self, owner: object) -> None:
        """Give back what was taken, if anything was."""
        with self._lock:
            self._taken.pop(owner, None)


class CopyOnWriteBlocks:
    """Whole blocks of a session's tokens.

    Args:
        token_ids: All tokens, `(tokens,) u32`; not to be written.
        layers: Per layer their keys and values, in place.
        layout: How they lie in a block.
        fresh: The number of the first block that may be copied: of those before it, what is not
            written until they are overwritten is dropped.
        end: That behind the last.
        budget: Where copies find room; where there is none, what is left is dropped. All that is
            taken in this name is given back with `close`.
    """

    def __init__(
        self,
        token_ids: NDArray[np.uint32],
        layers: Sequence[Pair],
        layout: Layout,
        fresh: int,
        end: int,
        budget: MemoryBudget,
    ) -> None:
        self._token_ids, self._layout, self._budget = token_ids, layout, budget
        self._layers: Sequence[Pair] | None = layers
        self._fresh, self._end = fresh, end
        self._copies: NDArray[np.uint8] | None = None  # of those from `_copied_from` on
        self._copied_from = end
        self._lock = Lock()

    @property
    def is_over(self) -> bool:
        """Whether nothing is read in place any more."""
        return self._layers is None

    def before_change(self, length: int) -> None:
        """Copy what is left, if tokens behind the first `length` are about to be overwritten."""
        with self._lock:
            if self._layers is None or length >= self._end * BLOCK_TOKENS:
                return
            layers, self._layers = self._layers, None
            self._copied_from, num_blocks = self._fresh, self._end - self._fresh
            num_bytes = num_blocks * self._layout.block_bytes(BLOCK_TOKENS)
            if num_blocks and self._budget.take(self, num_bytes):
                start = self._fresh * BLOCK_TOKENS
                with suppress(MemoryError):  # dropped, as where there is no room
                    self._copies = self._layout.packed(
                        self._token_ids, layers, start, BLOCK_TOKENS, num_blocks
                    )

    def block(self, number: int) -> NDArray[np.uint8] | None:
        """A block's bytes, `(bytes,) u8`; None where it was dropped.

        Args:
            number: Which; ascending from call to call.
        """
        with self._lock:
            self._fresh = max(self._fresh, number + 1)
            if self._layers is not None:
                start = number * BLOCK_TOKENS
                packed = self._layout.packed(self._token_ids, self._layers, start, BLOCK_TOKENS)
                return packed.reshape(-1)
            if self._copies is None or number < self._copied_from:
                return None
            at = number - self._copied_from
            return self._copies[at : at + 1].reshape(-1)

    def close(self) -> None:
        """Read nothing any more."""
        with self._lock:
            self._layers = self._copies = None
            self._budget.give_back(self)
