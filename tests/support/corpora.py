"""Documents of a corpus in small pieces, and a process that adds them, to be killed meanwhile."""

from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from coordgen_rs import Bundle, History
from coordgen_rs.store.history import segments, texts
from coordgen_rs.store.history.corpus import Corpus
from coordgen_rs.text.tokenizer import Tokenizer
from drafts import drafted_after

WORDS = ["red", "green", "blue", "lamp", "park", "ball", "dog", "cat", "day", "run", "sing", "sea"]


def make_small(put=setattr):
    """Make pieces and segments so small that a test has many."""
    put(texts, "_PIECE_TOKENS", 150)
    put(texts, "_PART_BYTES", 300)
    put(segments, "_FEW", 256)


def source(number: int, lines: int = 12) -> str:
    """A text like that of no other number."""
    rng = np.random.default_rng(number)
    return "".join(f"{' '.join(rng.choice(WORDS, 8))} {number}\n" for _ in range(lines))


def write_sources(folder: Path, count: int, lines: int = 12) -> dict[str, str]:
    """Files in two folders; returns their texts by absolute path."""
    written = {}
    for number in range(count):
        path = folder / ("even", "odd")[number % 2] / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source(number, lines))
        written[str(path)] = path.read_text()
    return written


def knows(history: History, bundle: Bundle, text: str) -> bool:
    """Whether the history drafts how a text goes on, from about its middle."""
    history.refresh()
    tokens = Tokenizer.of(bundle).encode(text, special_tokens=False)
    at = len(tokens) // 2
    return drafted_after(history, tokens[:at], 6) == tokens[at : at + 6].tolist()


def add_forever(directory: Path, sources: Path, bundle: Path, told: Connection) -> None:
    """Add the files again and again, removing some in between; tells each time that it is done."""
    make_small()
    opened = Bundle.open(bundle)
    told.send("begun")
    while True:
        with Corpus(directory, opened) as corpus:
            corpus.add([sources])
            corpus.remove([str(sources / "odd")])
            told.send("done")
