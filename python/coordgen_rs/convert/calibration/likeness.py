"""How like one model's next tokens are to another's.

In: logits of both, and what the text says. Out: agreement, divergence and perplexities.
"""

import numpy as np
from numpy.typing import NDArray

_LOGITS = 1 << 20
"""Numbers that are in memory as float64 at a time, several times over."""


class Likeness:
    """Sums over rows of logits.

    Attributes:
        num_rows: How many there were.
    """

    def __init__(self) -> None:
        self.num_rows = self._num_following = self._num_agreed = 0
        self._divergence = self._surprise = self._expected_surprise = 0.0

    def add(
        self,
        expected: NDArray[np.float32],
        got: NDArray[np.float32],
        following: NDArray[np.int64],
    ) -> None:
        """Count some rows.

        Args:
            expected: Logits of the float model, `(rows, vocab_size)`.
            got: Those of the other.
            following: The next token of the text, `(rows,)`; -1 at its end.
        """
        step = max(1, _LOGITS // expected.shape[1])
        for start in range(0, len(expected), step):
            rows = slice(start, start + step)
            self._add(expected[rows], got[rows], following[rows])

    def _add(
        self,
        expected: NDArray[np.float32],
        got: NDArray[np.float32],
        following: NDArray[np.int64],
    ) -> None:
        expected_logs, logs = _log_softmax(expected), _log_softmax(got)
        rows = np.flatnonzero(following >= 0)
        said = following[rows]
        self._surprise -= float(logs[rows, said].sum())
        self._expected_surprise -= float(expected_logs[rows, said].sum())
        self._divergence += float((np.exp(expected_logs) * (expected_logs - logs)).sum())
        self._num_agreed += int((expected_logs.argmax(-1) == logs.argmax(-1)).sum())
        self.num_rows += len(got)
        self._num_following += len(rows)

    @property
    def agreement(self) -> float:
        """Share of rows in which both choose the same token."""
        return self._num_agreed / self.num_rows

    @property
    def divergence(self) -> float:
        """Kullback-Leibler divergence from the float model, nats a row, in the mean."""
        return self._divergence / self.num_rows

    @property
    def perplexity(self) -> float:
        """Perplexity of the text; 1 where no row has a token behind it."""
        return float(np.exp(self._surprise / max(1, self._num_following)))

    @property
    def expected_perplexity(self) -> float:
        """Perplexity of the text by the float model."""
        return float(np.exp(self._expected_surprise / max(1, self._num_following)))


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return wide
