"""What a history drafts, seen through a drafter that has no other source."""

import numpy as np

from coordgen_rs import Drafter, History, StepInputs

_ROWS = 64


def drafted_after(history: History, text: np.ndarray, length: int) -> list[int]:
    """The first path, up to `length` tokens, of the tree drafted after `text`."""
    arrays = np.zeros(_ROWS, np.int64), np.zeros(_ROWS, np.int64)
    inputs = StepInputs(*arrays, np.zeros((1, 1, _ROWS, 128), np.float32))
    vocab_size = history.shared.vocab_size
    drafter = Drafter([inputs], vocab_size, sources=[], history=history.shared)
    drafter.begin(np.ascontiguousarray(text, np.uint32), 100)
    drafter.propose(0)
    drafted, parents = drafter.draft
    path = 0
    while path + 1 < len(drafted) and parents[path + 1] == path:
        path += 1
    return drafted[1 : path + 1].tolist()[:length]
