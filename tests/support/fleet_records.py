"""Finished requests of many machines, as token ids, and files of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np


def records(number: int, seed: int = 0) -> list[dict[str, Any]]:
    """Requests of 40 tokens below 500, two of three in the namespace mail, each a second apart."""
    tokens = np.random.default_rng(seed)
    return [
        {
            "namespace": "notes" if at % 3 == 1 else "mail",
            "finished_at": 1_700_000_000 + at,
            "token_ids": tokens.integers(0, 500, 40).tolist(),
        }
        for at in range(number)
    ]


def write_jsonl(path: Path, found: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in found))
    return path
