"""Which states of recurrent layers are stored, and under which names.

In: the snapshots of a session. Out: those that bring most back for what they take. A snapshot may
stand within a block: it is stored with the tokens behind the last whole one.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.runtime.prefix_store.layout import Layout
from coordgen_rs.runtime.prefix_store.names import BLOCK_TOKENS, Scope, block_names, states_name
from coordgen_rs.runtime.snapshot import Snapshot

_LEAST_BETWEEN = 256
"""Tokens between states that are stored, at least, but for those where a turn may end."""


class ChosenStates(NamedTuple):
    """States that are worth a file.

    Attributes:
        snapshot: The states.
        name: What they are called.
        start: Where the last whole block before them ends.
    """

    snapshot: Snapshot
    name: bytes
    start: int


def chosen_states(
    snapshots: Sequence[Snapshot],
    token_ids: NDArray[np.uint32],
    scope: Scope,
    layout: Layout,
) -> Iterator[ChosenStates]:
    """The states that are worth a file.

    Args:
        snapshots: Ascending by length.
        token_ids: What they are of, and more, `(tokens,) u32`.
        scope: Whose.
        layout: What a token and a snapshot take.
    """
    names = block_names(scope, token_ids)
    for snapshot in _apart([it for it in snapshots if it.length <= len(token_ids)], layout):
        number = snapshot.length // BLOCK_TOKENS
        start, before = number * BLOCK_TOKENS, names[number - 1] if number else scope.digest
        rest = token_ids[start : snapshot.length]
        yield ChosenStates(snapshot, states_name(before, rest), start)


def _apart(snapshots: Sequence[Snapshot], layout: Layout) -> Iterator[Snapshot]:
    """The latest, those where a turn may end, and some between them.

    These take no more than keys and values do.
    """
    apart = _LEAST_BETWEEN
    if layout.token_bytes:
        apart = max(apart, layout.states_bytes // layout.token_bytes)
    last = 0
    for snapshot in snapshots:
        if snapshot.is_turn or snapshot is snapshots[-1] or snapshot.length - last >= apart:
            yield snapshot
            last = snapshot.length
