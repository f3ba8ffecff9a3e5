"""Processes that write a history, to be killed or starved while they do."""

import resource
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordgen_rs import History
from coordgen_rs.store.history import requests

VOCAB_SIZE = 50


def request(number: int, length: int = 60) -> NDArray[np.uint32]:
    """The tokens of a request, the same ones at every call."""
    return np.random.default_rng(number).integers(0, VOCAB_SIZE, length).astype(np.uint32)


def open_history(directory: Path) -> History:
    return History(directory, fingerprint="a tokenizer", vocab_size=VOCAB_SIZE)


def index_all_the_time() -> None:
    """Make indexes worth building that are small enough for a test."""
    requests._MERGE_AT_CLOSE, requests._MERGE_WHILE_RUNNING = 200, 400


def write_forever(directory: Path, number: int, stored: Connection) -> None:
    """Add request after request, telling the number of each that is stored."""
    index_all_the_time()
    while True:
        with open_history(directory) as opened:
            for _ in range(12):
                opened.add(request(number)[:20], request(number)[20:])
                stored.send(number)
                number += 1


def write(directory: Path, numbers: range) -> None:
    index_all_the_time()
    with open_history(directory) as opened:
        for number in numbers:
            opened.add(request(number), [])


def write_beyond_the_disk(directory: Path, max_bytes: int, told: Connection) -> None:
    """Add requests until long after files may not grow any more; tells the warnings."""
    index_all_the_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opened = open_history(directory)
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, resource.RLIM_INFINITY))
        for number in range(100):
            opened.add(request(number, 1_000), [])
        opened.close()
    told.send([f"{warning.category.__name__}: {warning.message}" for warning in caught])
    told.send(opened.shared.num_recent_tokens + opened.shared.num_indexed_tokens)
