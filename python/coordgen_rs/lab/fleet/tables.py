"""What is known of a fleet's documents: when each finished, what it says, and where it lies.

In: token ids as they are read. Out: tables in one order, without duplicates, within a limit. The
order depends on the documents alone, not on who read them, so a build has the same bytes anywhere.
And what is merged: shards, each the documents of one file of records, on disk until then, whose
writing holds a row for each document in memory, and never the tokens of more than one; and builds.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import HistoryError
from coordgen_rs.store.files import replacing
from coordgen_rs.store.history.fleet import IndexEntry, index_path
from coordgen_rs.store.history.store import LIST_NAME

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

_TOKENS, _TABLE = "tokens.u32", "documents.npy"

_HEAD_BYTES = 80
"""The header of an index. It holds a checksum of the checksums of all blocks."""


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


def table_path(directory: Path, namespace: str) -> Path:
    """Where the table of an index's documents is."""
    return index_path(directory, namespace).with_suffix(".documents")


def head_sha256(index: Path) -> str:
    """The SHA-256 of an index's header."""
    with index.open("rb") as stream:
        return hashlib.sha256(stream.read(_HEAD_BYTES)).hexdigest()


def read_table(directory: Path, entry: IndexEntry) -> Table:
    """Where in its index each document of a namespace lies.

    Raises:
        HistoryError: The files are of different builds, as one leaves them that was killed.
    """
    index, path = index_path(directory, entry.namespace), table_path(directory, entry.namespace)
    try:
        table: Table = np.load(path)
        is_whole = (
            table.dtype == ROW
            and len(table) == entry.num_requests
            and head_sha256(index) == entry.head_sha256
        )
    except (OSError, ValueError, EOFError) as error:
        raise HistoryError(f"{path} cannot be used: {error}") from error
    if not is_whole:
        raise HistoryError(
            f"{index} is not of the build that {directory / LIST_NAME} lists: build it again"
        )
    return table


class Document(NamedTuple):
    """A finished request.

    Attributes:
        namespace: The namespace it belongs to.
        finished_at: Seconds since 1970; 0 where that is not known.
        token_ids: `(tokens,) u32`, prompt and answer together.
    """

    namespace: str
    finished_at: float
    token_ids: NDArray[np.uint32]


@dataclass(frozen=True)
class Shard:
    """A shard on disk.

    Attributes:
        directory: Where it is.
        num_tokens: Tokens by namespace, terminators included, of what is within the limit.
        spans: First row and end of each namespace in the table of documents.
        num_requests: Documents that were read, duplicates and those beyond the limit included.
    """

    directory: Path
    num_tokens: dict[str, int]
    spans: dict[str, tuple[int, int]]
    num_requests: int

    def of(self, namespaces: Iterable[str]) -> "Shard":
        """The shard's facts about some namespaces: as much as their merging needs."""
        spans = {name: self.spans[name] for name in namespaces if name in self.spans}
        return replace(
            self, num_tokens={name: self.num_tokens[name] for name in spans}, spans=spans
        )

    def tables(self) -> Iterator[tuple[str, Table, Path]]:
        """Each namespace, the table of its documents, and the file they lie in (`u32`, LE)."""
        table = np.load(self.directory / _TABLE, mmap_mode="r")
        for name, span in self.spans.items():
            yield name, np.array(table[slice(*span)]), self.directory / _TOKENS


@dataclass(frozen=True)
class OtherBuild:
    """The indexes of an earlier build, which are merged as shards are.

    Attributes:
        directory: Where it is.
        entries: Its indexes by namespace.
    """

    directory: Path
    entries: dict[str, IndexEntry]

    @property
    def num_tokens(self) -> dict[str, int]:
        """Same as in `Shard`."""
        return {name: entry.num_tokens for name, entry in self.entries.items()}

    @property
    def num_requests(self) -> int:
        """The documents in it."""
        return sum(entry.num_requests for entry in self.entries.values())

    def of(self, namespaces: Iterable[str]) -> "OtherBuild":
        """Same as in `Shard`."""
        found = {name: self.entries[name] for name in namespaces if name in self.entries}
        return replace(self, entries=found)

    def tables(self) -> Iterator[tuple[str, Table, Path]]:
        """Same as in `Shard`; raises as `read_table`."""
        for name, entry in self.entries.items():
            yield name, read_table(self.directory, entry), index_path(self.directory, name)


def write_shard(directory: Path, documents: Iterable[Document], max_tokens: int) -> Shard:
    """Write documents as a shard; one that a killed run left there is replaced.

    Args:
        directory: The shard's directory, which is created.
        documents: The documents, in any order.
        max_tokens: Tokens of each namespace that are kept, the newest.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[tuple[float, tuple[int, int], int, int, int]]] = defaultdict(list)
    start = num_requests = 0
    with replacing(directory / _TOKENS) as stream:
        for namespace, finished_at, token_ids in documents:
            data = token_ids.astype("<u4", copy=False).tobytes()
            rows[namespace].append((finished_at, digest(data), start, len(token_ids), 0))
            stream.write(data)
            start += len(data)
            num_requests += 1
    spans, tables, at = {}, [], 0
    for namespace in sorted(rows):
        table = np.array(rows.pop(namespace), ROW)
        tables.append(newest_within(newest_of_each(table), max_tokens))
        spans[namespace] = (at, at + len(tables[-1]))
        at = spans[namespace][1]
    with replacing(directory / _TABLE) as stream:
        np.save(stream, np.concatenate([np.zeros(0, ROW), *tables]))
    num_tokens = {name: count_tokens(table) for name, table in zip(spans, tables, strict=True)}
    return Shard(directory, num_tokens, spans, num_requests)
