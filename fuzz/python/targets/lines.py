"""Files of JSON lines: records to replay, prompts of the bench, an exported history, texts to
calibrate by. Each is refused by name, or holds what its reader promises.

The first byte says who reads the others.
"""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np

from coordgen_rs.convert.texts import read_texts
from coordgen_rs.errors import CoordgenError
from coordgen_rs.lab.bench.prompts import read_prompts
from coordgen_rs.lab.replay.records import read_records
from coordgen_rs.store.history.fleet import read_exported
from scratch import holding

IS_JSON = True
PREFIX = 1


def _records(path: Path) -> None:
    for record in read_records(path):
        assert all(isinstance(text, str) for text in (record.task, record.prompt, record.answer))
        assert all(isinstance(text, str) for turn in record.turns for text in turn)
    for record in read_records(path, output_of="m", limit=2):
        assert isinstance(record.answer, str)


def _prompts(path: Path) -> None:
    for task, prompt in read_prompts(path, limit=2):
        assert (task + prompt).encode() is not None


def _history(path: Path) -> None:
    header, requests = read_exported(BytesIO(path.read_bytes()), str(path))
    for request in requests:
        assert request.token_ids.dtype == np.uint32
        assert 0 <= request.prompt_len <= len(request.token_ids)
        request.namespace.encode()
    header.fingerprint.encode()


def _encode(text: str) -> list[int]:
    return list(text.encode())


def _calibration(path: Path) -> None:
    texts = read_texts(path, _encode, 4)
    assert all(0 < len(piece) <= 4 for piece in texts.calibration + texts.held_out)


_READERS: list[Callable[[Path], None]] = [_records, _prompts, _history, _calibration]


def run(data: bytes) -> None:
    """Read the lines."""
    reader = _READERS[data[0] % len(_READERS)] if data else _records
    try:
        reader(holding("lines.jsonl", data[1:]))
    except CoordgenError:
        return
