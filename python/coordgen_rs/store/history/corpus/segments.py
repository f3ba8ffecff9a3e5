"""The index files of a corpus: what they are called, which are merged, which are nobody's.

In: sizes and names. Out: names. Each segment is an index over some documents, written once, under
a random name, and never changed. What is in it is the core's (`src/draft/sources/history/`).
"""

import hashlib
import re
import secrets
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from coordgen_rs.store.files import sweep

MOST_TOKENS = 20_000_000
"""Most tokens of a segment: sorting takes about 21 bytes of memory each."""

_FEW = 1 << 18
"""Segments of fewer tokens are sorted in no time, and count as equally long."""

_AT_A_TIME = 4
"""Segments of about one length that are merged, so that a token is sorted three times or four."""

_NAME = re.compile(r"[0-9a-f]{32}\.corpus")


def new_segment_name() -> str:
    """A name that no other segment has, so that one that is open stays what it is."""
    return f"{secrets.token_hex(16)}.corpus"


def corpus_key(fingerprint: str, vocab_size: int, namespace: str) -> bytes:
    """What the segments of a namespace are opened with."""
    parts = (fingerprint, str(vocab_size), namespace, "corpus")
    return hashlib.sha256("\0".join(parts).encode()).digest()


def to_merge(sizes: Mapping[str, int]) -> list[str]:
    """Which segments are to become one; none while there are few of each length.

    Args:
        sizes: Tokens by name.
    """
    tiers: dict[int, list[str]] = {}
    for name in sorted(sizes, key=lambda name: (sizes[name], name)):
        tier = (max(sizes[name], _FEW) // _FEW).bit_length() // 2  # four times as long, one more
        tiers.setdefault(tier, []).append(name)
    for _, names in sorted(tiers.items()):
        if len(names) < _AT_A_TIME:
            continue
        chosen: list[str] = []
        for name in names:
            if sum(sizes[other] for other in chosen) + sizes[name] <= MOST_TOKENS:
                chosen.append(name)
        if len(chosen) > 1:
            return chosen
    return []


def remove_strays(directory: Path, kept: Collection[str]) -> None:
    """Remove the segments that are not to be kept, and what killed runs left of others."""
    sweep(directory, _NAME)
    for path in directory.iterdir():
        if _NAME.fullmatch(path.name) and path.name not in kept:
            with suppress(OSError):  # it may be open elsewhere, on Windows: the next one's task
                path.unlink(missing_ok=True)
