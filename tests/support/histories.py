"""Histories whose requests are known, and processes that write some, to be killed meanwhile."""

from collections.abc import Callable, Iterable
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs import History
from coordgen_rs.store.history import requests
from coordgen_rs.store.history.store import HistoryStore, index_name
from drafts import drafted_after

VOCAB_SIZE = 50
LONG = 5_000
"""Tokens that make an index worth building."""


def request(number: int, length: int = 60) -> NDArray[np.uint32]:
    """The tokens of a request, the same ones at every call."""
    return np.random.default_rng(number).integers(0, VOCAB_SIZE, length).astype(np.uint32)


def open_history(directory: Path | None, namespace: str = "default", **options: Any) -> History:
    options = {"fingerprint": "a tokenizer", "vocab_size": VOCAB_SIZE} | options
    return History(directory, namespace=namespace, **options)


def fill(
    directory: Path, numbers: Iterable[int] = (0, 1), length: int = LONG, **options: Any
) -> Path:
    """Store requests; closing builds their index, whose path is returned."""
    with open_history(directory, **options) as history:
        for number in numbers:
            history.add(request(number, length), [])
    return directory / index_name(history.namespace)


def stored(directory: Path, namespace: str | None = None) -> list[NDArray[np.uint32]]:
    """The tokens of the requests of a namespace, or of all."""
    with closing(HistoryStore(directory)) as store:
        return [found.token_ids for found in store.read(namespace)]


def knows(history: History, text: NDArray[np.uint32], at: int = 100, length: int = 8) -> bool:
    """Whether the tokens of a text behind `at` are drafted."""
    return drafted_after(history, text[at - 20 : at], length) == text[at : at + length].tolist()


def index_all_the_time(put: Callable[[Any, str, int], None] = setattr) -> None:
    """Make indexes worth building that are small enough for a test."""
    put(requests, "_MERGE_AT_CLOSE", 200)
    put(requests, "_MERGE_WHILE_RUNNING", 400)


def write_forever(directory: Path, number: int, told: Connection) -> None:
    """Add request after request, telling the number of each that is stored."""
    index_all_the_time()
    open_history(directory).close()
    told.send("begun")
    while True:
        with open_history(directory) as opened:
            for _ in range(12):
                opened.add(request(number)[:20], request(number)[20:])
                told.send(number)
                number += 1


def write(directory: Path, numbers: range, max_tokens: int | None = None) -> None:
    index_all_the_time()
    with open_history(directory, max_tokens=max_tokens) as opened:
        for number in numbers:
            opened.add(request(number), [])
