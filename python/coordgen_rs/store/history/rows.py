"""What a row of the database may hold: SQLite itself keeps to no types, and files get damaged.

In: rows as SQLite gives them. Out: the same rows, or a `HistoryError`. It runs no query.
"""

import math
from pathlib import Path
from typing import Any

from coordgen_rs.errors import HistoryError

MOST_VOCABULARY = 2**31 - 1
"""Ids fit into an int32, and leave room for the end of a request."""

LAST_INSTANT = 253_402_300_800.0
"""The year 10000 in seconds since 1970: no later time has a date."""


_DIGITS = 1_000
"""Most digits of a limit: Python takes a while to read longer numbers."""


def checked_request(row: tuple[Any, ...], path: Path) -> tuple[str, float, int, bytes, int]:
    """A row of a request: namespace, finished_at, prompt_len, token_ids, number.

    Raises:
        HistoryError: A value is of another type, or the token ids are cut.
    """
    name, finished_at, prompt_len, token_ids, number = row
    is_whole = (
        isinstance(name, str)
        and _is_finite(finished_at)
        and isinstance(prompt_len, int)
        and isinstance(token_ids, bytes)
        and len(token_ids) % 4 == 0
        and 0 <= prompt_len <= len(token_ids) // 4
    )
    if not is_whole:
        raise HistoryError(_not_whole(number, path))
    return name, float(finished_at), prompt_len, token_ids, int(number)


def checked_size(row: tuple[Any, ...], path: Path) -> tuple[int, int, str]:
    """What eviction reads of a request: number, num_tokens, namespace.

    Raises:
        HistoryError: A value is of another type.
    """
    number, num_tokens, name = row
    if not isinstance(num_tokens, int) or not isinstance(name, str):
        raise HistoryError(_not_whole(number, path))
    return int(number), num_tokens, name


def _not_whole(number: int, path: Path) -> str:
    return f"{path} is damaged: request {number} is not whole; clear the history"


def checked_summary(row: tuple[Any, ...], path: Path) -> tuple[str, int, int, float, float]:
    """A row of a namespace: name, number of requests and tokens, first and last finished_at.

    Raises:
        HistoryError: A value is of another type.
    """
    name, num_requests, num_tokens, first, last = row
    are_whole = isinstance(name, str) and isinstance(num_tokens, int)
    if not (are_whole and _is_finite(first) and _is_finite(last)):
        raise HistoryError(f"{path} is damaged: namespace {name!r:.60} has a row that is not whole")
    return name, int(num_requests), num_tokens, float(first), float(last)


def checked_properties(rows: list[tuple[Any, Any]], path: Path) -> tuple[str, int]:
    """Fingerprint and size of the vocabulary, from the table of properties.

    Raises:
        HistoryError: One is missing, or impossible.
    """
    properties = dict(rows)
    fingerprint, vocab_size = properties.get("fingerprint"), properties.get("vocab_size")
    if isinstance(fingerprint, str) and isinstance(vocab_size, str):
        is_number = vocab_size.isascii() and vocab_size.isdigit() and len(vocab_size) <= 10
        if is_number and 1 <= int(vocab_size) <= MOST_VOCABULARY:
            return fingerprint, int(vocab_size)
    raise HistoryError(f"{path} is damaged: it does not say of which vocabulary it is")


def checked_limit(value: Any, path: Path) -> int:
    """The property `max_tokens`.

    Raises:
        HistoryError: It is no number of at least 1: taken for 0, it would evict everything.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _DIGITS:
        limit = int(value)
        if limit >= 1:
            return limit
    raise HistoryError(f"{path} is damaged: its max_tokens is {value!r:.60}; set it again")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
