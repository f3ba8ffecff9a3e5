"""Whether a history and a look-up table are the same on this processor as on another.

    python tests/core/arm64/files.py DIRECTORY

A directory that is absent is filled: a history with an index, a look-up table, and what both say.
Of a filled one a copy is opened as it is, and must say what was written down with it.
"""

import argparse
import hashlib
import json
import platform
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

from coordgen_rs import Drafter, History, LookupTable, StepInputs

_VOCABULARY = 151_936
_REQUESTS, _TOKENS = 60, 200
_ASKED, _SHOWN = 16, 24
_KEY = bytes(32)


def requests() -> list[np.ndarray]:
    """Texts `(tokens,) u32` that repeat parts of one another."""
    random = np.random.default_rng(7)
    phrases = random.integers(_VOCABULARY, size=(40, 25), dtype=np.uint32)
    return [
        np.concatenate(phrases[random.integers(len(phrases), size=_TOKENS // 25)])
        for _ in range(_REQUESTS)
    ]


def written(directory: Path) -> None:
    """Write a history of all requests and a table that has learned from logits."""
    with history_of(directory) as history:
        for tokens in requests():
            history.add(tokens[:_ASKED], tokens[_ASKED:])
    random = np.random.default_rng(8)
    table = LookupTable()
    for _ in range(4):
        contexts = random.integers(_VOCABULARY, size=8, dtype=np.uint32)
        table.learn(contexts, random.normal(scale=4, size=(8, _VOCABULARY)).astype(np.float32))
        table.learn(contexts[:4], random.normal(size=(4, _VOCABULARY)).astype(np.float32))
    table.save(directory / "table", _VOCABULARY, _KEY)


def history_of(directory: Path) -> History:
    return History(directory / "history", namespace="mail", vocab_size=_VOCABULARY)


def said(directory: Path) -> dict[str, object]:
    """What is drafted from the history, and what the table holds, to the bit.

    Raises:
        HistoryWarning: The index cannot be used as it is.
    """
    with warnings.catch_warnings(), history_of(directory) as history:
        warnings.simplefilter("error")
        history.refresh()
        indexed = history.shared.num_indexed_tokens
        drafts = [drafted(history, tokens[:_SHOWN]) for tokens in requests()]
    table = LookupTable.open(directory / "table", _VOCABULARY, _KEY)
    rows = [table.row(context) for context in range(_VOCABULARY)]
    held = hashlib.sha256(b"".join(array.tobytes() for row in rows for array in row)).hexdigest()
    saved = hashlib.sha256((directory / "table").read_bytes()).hexdigest()
    return {
        "indexed tokens": indexed,
        "drafts": drafts,
        "rows of the table": sum(len(ids) > 0 for ids, _ in rows),
        "the table's numbers": held,
        "the table's file": saved,
    }


def drafted(history: History, text: np.ndarray) -> list[list[int]]:
    """Tokens and parents of the tree that the history alone drafts behind a text."""
    arrays = np.zeros(16, np.int64), np.zeros(16, np.int64)
    inputs = StepInputs(*arrays, np.zeros((1, 1, 16, 64), np.float32))
    drafter = Drafter([inputs], _VOCABULARY, sources=[], history=history.shared)
    drafter.begin(text, 100)
    drafter.propose(0)
    return [array.tolist() for array in drafter.draft]


def indexes_of(directory: Path) -> dict[str, bytes]:
    """The files of the history's indexes, which a history that can read them leaves alone."""
    return {path.name: path.read_bytes() for path in (directory / "history").glob("*.index")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    kept = directory / "said.json"
    if not kept.exists():
        directory.mkdir(parents=True, exist_ok=True)
        written(directory)
        made = said(directory) | {"made on": platform.machine()}
        kept.write_text(json.dumps(made), "utf-8")
        print(f"files: a history and a table written on {platform.machine()}")
        return 0
    there = json.loads(kept.read_text("utf-8"))
    made_on = there.pop("made on")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(directory, folder, dirs_exist_ok=True))
        here = said(copy)
        found = [f"of another content: {name}" for name in there if here[name] != there[name]]
        if indexes_of(copy) != indexes_of(directory):
            found.append("the history's index was written again")
    num_nodes = sum(len(tokens) - 1 for tokens, _ in there["drafts"])
    if num_nodes == 0 or there["indexed tokens"] < _REQUESTS * _TOKENS:
        found.append("nothing is indexed, or nothing drafted from it")
    if found:
        print("\n".join(f"files: {line}" for line in found))
        return 1
    print(
        f"files: {there['indexed tokens']} indexed tokens, {num_nodes} drafted ones and "
        f"{there['rows of the table']} rows of a table, made on {made_on}, are the same on "
        f"{platform.machine()}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
