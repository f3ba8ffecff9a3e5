"""Warm-up: what a target expects while reading text, as a look-up table on disk (DIAA, stage 1).

In: a session and texts. Out: a table, and its file next to the bundle, tied to the tokenizer.
"""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import LookupTable
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import LookupTableError, arguments
from coordgen_rs.runtime.session import Session
from coordgen_rs.store.history.requests import fingerprint_of

_SUFFIX = ".lookup-table"


def warm_up(
    session: Session,
    texts: Iterable[NDArray[np.uint32]],
    table: LookupTable | None = None,
    *,
    on_text: Callable[[], None] = lambda: None,
) -> LookupTable:
    """Let the target read texts, and learn what it expects after each token.

    Args:
        session: The target; its cache is emptied. Texts longer than the cache are read in parts.
        texts: `(tokens,) u32` each.
        table: What learns; a new one of the usual options, if not given.
        on_text: Called after each text.

    Raises:
        OptionError: A text is not integers.
        ShapeError: A text has more than one dimension.
        TokenOutOfRangeError: A text has a token that is not in the vocabulary.
        NonFiniteLogitsError: The target returned NaN.
    """
    table = LookupTable() if table is None else table
    for given in texts:
        text = arguments.token_ids("a text", given, session.vocab_size)
        for start in range(0, len(text), session.capacity):
            _read(session, text[start : start + session.capacity], table)
        on_text()
    session.rewind(0)
    return table


def _read(session: Session, part: NDArray[np.uint32], table: LookupTable) -> None:
    done = 0

    def learn(logits: NDArray[np.float32]) -> None:
        nonlocal done
        rows = logits.reshape(-1, session.vocab_size)
        table.learn(part[done : done + len(rows)], rows)
        done += len(rows)

    session.rewind(0)
    session.prefill(part, on_logits=learn)


def table_path(bundle: Bundle) -> Path:
    """Default path of a bundle's table: next to the bundle, whose own files must not change."""
    return bundle.path.with_name(bundle.path.name + _SUFFIX)


def save_table(table: LookupTable, path: Path, bundle: Bundle) -> None:
    """Write a table, tied to the bundle's tokenizer.

    Raises:
        LookupTableError: It cannot be written; the message names the file.
    """
    try:
        table.save(path, bundle.manifest.model.vocab_size, _key(bundle))
    except LookupTableError as error:
        raise LookupTableError(f"{path}: {error}") from error


def open_table(path: Path, bundle: Bundle) -> LookupTable:
    """Read a table written for the bundle's tokenizer.

    Raises:
        LookupTableError: It is missing, damaged, or for another tokenizer; the message names it.
    """
    try:
        return LookupTable.open(path, bundle.manifest.model.vocab_size, _key(bundle))
    except LookupTableError as error:
        raise LookupTableError(f"{path}: {error}") from error


def _key(bundle: Bundle) -> bytes:
    return hashlib.sha256(fingerprint_of(bundle).encode()).digest()
