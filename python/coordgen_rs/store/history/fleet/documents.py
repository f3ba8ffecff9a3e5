"""What is known of a fleet's documents: when each finished, what it says, and where it lies.

In: token ids as they are read. Out: tables in one order, without duplicates, within a limit. The
order depends on the documents alone, not on who read them, so a build has the same bytes anywhere.
"""

import hashlib
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Table: TypeAlias = NDArray[Any]
"""An array `(documents,)` with rows of type `ROW`."""

ROW = np.dtype(
    [
        ("finished_at", "<f8"),  # seconds since 1970
        ("digest", "<u8", (2,)),  # of the token ids
        ("start", "<u8"),  # byte of the first token in the file it lies in
        ("num_tokens", "<u4"),
        ("file", "<u4"),  # number of that file among those at hand
    ]
)


def digest(token_ids: bytes) -> tuple[int, int]:
    """A digest that tells documents apart: 128 bits, so that no two of a fleet meet by chance."""
    hashed = hashlib.blake2b(token_ids, digest_size=16).digest()
    return int.from_bytes(hashed[:8], "little"), int.from_bytes(hashed[8:], "little")


def count_tokens(table: Table) -> int:
    """Tokens of all documents, each with the terminator that closes it in an index."""
    return int(table["num_tokens"].sum(dtype=np.uint64)) + len(table)


def newest_of_each(table: Table) -> Table:
    """Each document once, as it finished last; the oldest first, equal times by digest."""
    first, second = table["digest"].T
    by_digest = table[np.lexsort((-table["finished_at"], second, first))]
    is_new = np.ones(len(table), bool)
    is_new[1:] = (by_digest["digest"][1:] != by_digest["digest"][:-1]).any(axis=1)
    found = by_digest[is_new]
    first, second = found["digest"].T
    return found[np.lexsort((second, first, found["finished_at"]))]


def newest_within(table: Table, max_tokens: int) -> Table:
    """The newest documents of a table that have `max_tokens` together; one that is longer is none.

    Each closing terminator counts as a token. What is left out of a part of the documents is left
    out of all of them too, so limits may be applied to parts before they are merged.
    """
    lens = table["num_tokens"].astype(np.uint64) + 1
    fitting = table[lens <= max_tokens]
    lens = fitting["num_tokens"].astype(np.uint64) + 1
    from_newest = np.cumsum(lens[::-1])
    num_kept = int(np.searchsorted(from_newest, max_tokens, side="right"))
    return fitting[len(fitting) - num_kept :]
