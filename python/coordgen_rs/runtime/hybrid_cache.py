"""The cache of a target some of whose layers are recurrent: keys and values, and states.

In: runs, commits and ways back. Out: both, of the same committed tokens.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.runtime.kv_cache import KvCache
from coordgen_rs.runtime.states import StateArrays, States


class HybridCache(KvCache):
    """Keys and values of some layers, states of the others.

    Args:
        arrays: Where the states are, of as many sequences.
        heads: Of layers that have keys and values; this and the others as in `KvCache`.
    """

    states: States
    state_arrays: StateArrays

    def __init__(
        self,
        arrays: StateArrays,
        heads: Sequence[tuple[int, int]],
        num_slots: int,
        form: str,
        num_sequences: int = 1,
    ) -> None:
        super().__init__(heads, num_slots, form, num_sequences)
        self.state_arrays, self.states = arrays, States(arrays)

    @property
    def num_sequences(self) -> int:
        """Requests that have a cache of their own."""
        return len(self.state_arrays.reads)

    def sequence(self, number: int) -> "HybridCache":
        """The cache of one of the requests: the same memory."""
        cache = HybridCache.__new__(HybridCache)
        self._share(cache, number)
        cache.state_arrays, cache.states = self.state_arrays, States(self.state_arrays, number)
        return cache

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values, states and snapshots."""
        return super().nbytes + self.states.nbytes

    def rewind(self, length: int) -> None:
        """Forget all but the first committed tokens, which `States.reachable` has found."""
        committed, self.length = self.length, 0
        self.states.rewind(length, committed)
        self.length = length

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Append the given rows of the last run, in path order."""
        self.states.commit(rows, self.length)  # first: what is not committed is not applied
        super().commit(rows)
