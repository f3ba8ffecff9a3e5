"""Engines for `benches/peers/live` that need no package: they answer by a script, or fail.

In: what they are to do, as options. Out: `Opened`, in a process of its own.
"""

import os
import time
from collections.abc import Sequence

import numpy as np

from contest import Answer
from live.process import Opened


class Scripted:
    """Says the same tokens each time, at a rate, and gives up at some answer.

    Args:
        tokens: What it says; the first so many that are asked for.
        decode_s: Seconds that it claims for decoding.
        fails_at: Which answer, from 0, fails; None for none.
        how: "raise" an error, "exit" at once, or "sleep" for ever.
    """

    name = "scripted"

    def __init__(
        self, tokens: Sequence[int], decode_s: float, fails_at: int | None, how: str
    ) -> None:
        self.tokens, self.decode_s = list(tokens), decode_s
        self.fails_at, self.how = fails_at, how
        self.answered = 0

    def begin(self) -> None:
        print("a round begins")

    def answer(self, prompt: np.ndarray, max_new_tokens: int) -> Answer:
        if self.answered == self.fails_at:
            if self.how == "raise":
                raise ValueError("no more")
            if self.how == "exit":
                print("out of luck", flush=True)
                os._exit(3)
            time.sleep(600)
        self.answered += 1
        tokens = self.tokens[:max_new_tokens]
        return Answer(tokens, len(tokens) - 1, len(tokens) - 1, 0.5, self.decode_s)


def open_scripted(
    kinds: dict[str, float],
    tokens: Sequence[int] = tuple(range(100, 200)),
    fails_at: int | None = None,
    how: str = "raise",
    **options: object,
) -> Opened:
    """An engine with a contestant for each kind, which claims so many seconds for decoding."""
    contestants = {
        kind: Scripted(tokens, decode_s, fails_at, how) for kind, decode_s in kinds.items()
    }
    facts = {"options": sorted(options), "process": os.getpid()}
    return Opened(contestants, facts | ({"about": options["about"]} if "about" in options else {}))


def open_absent() -> Opened:
    """An engine whose package is not installed."""
    raise ModuleNotFoundError("No module named 'llama'", name="llama")
