"""What a session remembers of its recurrent layers behind some of its tokens.

In: their states at that place. Out: the same, for whoever goes back there or keeps them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

COUNT = np.dtype(np.int64).itemsize
"""Bytes of the number that stands before a state: how many tokens have left it."""


@dataclass(frozen=True)
class Snapshot:
    """All states as they were behind some tokens.

    Attributes:
        length: How many tokens.
        states: Of each operator its state, `(bytes,) u8`; not to be written.
        is_turn: Whether a turn of a dialogue may end here.
    """

    length: int
    states: Sequence[NDArray[np.uint8]]
    is_turn: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(state.nbytes for state in self.states)

    def behind(self, length: int) -> "Snapshot":
        """The same numbers, as if so many tokens had left them."""
        states = [state.copy() for state in self.states]
        for state in states:
            state[:COUNT].view(np.int64)[0] = length
        return replace(self, length=length, states=states)
