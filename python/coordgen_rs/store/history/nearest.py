"""Which namespace a prompt is most like, where its request names none.

CoordGen (3.1) "fetches" the database of a task, by a rule that it does not tell. This one is ours.

In: a history's requests, and a prompt. Out: the name of a namespace.
"""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import HistoryError
from coordgen_rs.store.history.store import HistoryStore

MOST_NAMES, MOST_GRAMS = 64, 1 << 17


class Likeness:
    """What the newest `MOST_NAMES` namespaces hold of a prompt: `grams`, by their names.

    Likeness is the share of the prompt's distinct runs of three tokens that a namespace holds, each
    weighed by how few hold it. Of a namespace with more than `MOST_GRAMS` those with the largest
    numbers stand for all, and of the prompt those as large. It takes milliseconds.
    """

    def __init__(self) -> None:
        self.grams: dict[str, NDArray[np.uint64]] = {}  # the latest last

    def add(self, name: str, *texts: NDArray[np.uint32]) -> None:
        """Take in what a namespace holds, `(tokens,)` of each request."""
        held = [self.grams.pop(name, _grams(texts[0])), *map(_grams, texts)]
        self.grams[name] = np.unique(np.concatenate(held))[-MOST_GRAMS:]
        while len(self.grams) > MOST_NAMES:
            del self.grams[next(iter(self.grams))]

    def nearest(self, prompt: NDArray[np.uint32]) -> str | None:
        """The likest namespace, the newest among equals; None where none holds anything."""
        wanted, kept = np.unique(_grams(prompt)), self.grams.values()
        holds = [np.isin(wanted, held, assume_unique=True) for held in kept]
        tells = [wanted >= (held[0] if len(held) == MOST_GRAMS else 0) for held in kept]
        weights = np.log1p(np.sum(tells, axis=0) / (1 + np.sum(holds, axis=0)))
        known = zip(self.grams, holds, tells, strict=True)
        likeness = {name: weights @ held / (weights @ told or 1) for name, held, told in known}
        best = max(reversed(likeness), key=lambda name: float(likeness[name]), default="")
        return best if likeness.get(best, 0) > 0 else None


class NearestNamespaces:
    """The namespaces of a history's directory, whoever writes it."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._seen, self._likeness = directory, 0, Likeness()
        self._epochs: dict[str, str] = {}

    def nearest(self, prompt: NDArray[np.uint32]) -> str | None:
        """The likest namespace; reads what was stored since. None where nothing can be read."""
        texts: dict[str, list[NDArray[np.uint32]]] = {}  # the latest last
        unread = HistoryError, sqlite3.Error, OSError
        with suppress(*unread), closing(HistoryStore(self._directory, read_only=True)) as store:
            epochs = store.epochs()
            if not self._epochs.items() <= epochs.items():  # some was cleared or evicted
                self._likeness, self._seen = Likeness(), 0
            self._epochs, seen = epochs, self._seen
            for request in store.read(after=seen):
                seen = request.number
                of_name = texts[request.namespace] = texts.pop(request.namespace, [])
                of_name.append(request.token_ids)
            for name, of_name in texts.items():
                self._likeness.add(name, *of_name)
            self._seen = seen  # what could not be read is read by the next call
            return self._likeness.nearest(prompt)
        return None


def _grams(text: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """A number of 64 bits for each run of tokens, two of which hardly ever have the same."""
    text, number = text.astype(np.uint64), np.zeros(max(0, len(text) - 2), np.uint64)
    for offset in range(3):
        number = (number + text[offset : offset + len(number)]) * np.uint64(0x9E3779B97F4A7C15)
    return number
