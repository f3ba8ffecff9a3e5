"""Requests as JSON lines, which `coordgen history` exports and imports.

In: lines that any program may have written. Out: a header and `StoredRequest`s, all checked. It
opens no database, and writes no line; `cli/commands/history.py` does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, Literal

import numpy as np

from coordgen_rs.errors import HistoryError
from coordgen_rs.errors.json_text import JsonTextError, parse_json_lines
from coordgen_rs.errors.typed_json import FieldError, parse
from coordgen_rs.store.history.store import LAST_INSTANT, MOST_VOCABULARY, StoredRequest

FORMAT: Final = "coordgen-history-1"
_MOST_LINE_BYTES = 256 << 20


@dataclass(frozen=True)
class ExportHeader:
    """The first line."""

    format: Literal["coordgen-history-1"]
    fingerprint: str
    vocab_size: int


@dataclass(frozen=True)
class _Line:
    """Any line after the first: one request."""

    namespace: str
    finished_at: float
    prompt_len: int
    token_ids: list[int]


def read_exported(stream: BinaryIO, name: str) -> tuple[ExportHeader, Iterator[StoredRequest]]:
    """The header, and the requests as they are read.

    Args:
        stream: Opened for bytes.
        name: The stream's name in messages.

    Raises:
        HistoryError: A line is malformed, also while requests are read; the message names it.
    """
    lines = _lines(stream, name)
    where, first = next(lines, (name, None))
    try:
        header = parse(ExportHeader, first, where)
    except FieldError as error:
        raise HistoryError(f"{where} is not the header of an exported history: {error}") from error
    if not 1 <= header.vocab_size <= MOST_VOCABULARY or not header.fingerprint:
        raise HistoryError(f"{where} has an impossible vocab_size or fingerprint")
    return header, (_request(value, where, header.vocab_size) for where, value in lines)


def _lines(stream: BinaryIO, name: str) -> Iterator[tuple[str, Any]]:
    try:
        for number, value in parse_json_lines(stream, name, most_line_bytes=_MOST_LINE_BYTES):
            yield f"{name}, line {number}", value
    except JsonTextError as error:
        raise HistoryError(str(error)) from error


def _request(value: Any, where: str, vocab_size: int) -> StoredRequest:
    try:
        line = parse(_Line, value, where)
    except FieldError as error:
        raise HistoryError(f"{where} is not a request: {error}") from error
    if not 0 <= line.finished_at < LAST_INSTANT:
        raise HistoryError(f"{where} is not a request: finished_at is {line.finished_at}")
    if not 0 <= line.prompt_len <= len(line.token_ids):
        raise HistoryError(f"{where} is not a request: prompt_len is {line.prompt_len}")
    if line.token_ids and not 0 <= min(line.token_ids) <= max(line.token_ids) < vocab_size:
        raise HistoryError(f"{where} is not a request: token ids outside the vocabulary")
    token_ids = np.asarray(line.token_ids, np.uint32)
    return StoredRequest(line.namespace, line.finished_at, line.prompt_len, token_ids)
