"""A shard: the documents of one file of records, by namespace, on disk until all are merged.

In: documents one by one. Out: a file of token ids and a table of what lies where. Writing holds a
row for each document in memory, and never the tokens of more than one.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.lab.fleet.tables import (
    ROW,
    Table,
    count_tokens,
    digest,
    newest_of_each,
    newest_within,
)
from coordgen_rs.store.files import replacing

_TOKENS, _TABLE = "tokens.u32", "documents.npy"


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

    @property
    def tokens(self) -> Path:
        """The file that holds its documents, `u32` in little-endian order."""
        return self.directory / _TOKENS

    def of(self, namespaces: Iterable[str]) -> "Shard":
        """The shard's facts about some namespaces: as much as their merging needs."""
        spans = {name: self.spans[name] for name in namespaces if name in self.spans}
        return replace(
            self, num_tokens={name: self.num_tokens[name] for name in spans}, spans=spans
        )

    def tables(self) -> dict[str, Table]:
        """The documents of each namespace, as a table."""
        table = np.load(self.directory / _TABLE, mmap_mode="r")
        return {name: np.array(table[slice(*span)]) for name, span in self.spans.items()}


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
