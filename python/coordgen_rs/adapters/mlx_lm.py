"""MLX-LM as a host: its models on Apple silicon, or on CPU under Linux.

In: a model and its cache from `mlx_lm`. Out: a `Host` that verifies chains. Decoding is greedy.

Versions: mlx 0.32, mlx-lm 0.32. Caches that cannot be trimmed are refused: those of recurrent
layers, and those of windows that the text may outgrow.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import EngineError, OptionError, arguments

_CHUNK = 2048
"""The chunk size of MLX-LM's own loop: other chunk sizes give other bits."""


class MlxHost:
    """An MLX-LM model.

    Args:
        model: From `mlx_lm.load`.
        vocab_size: Number of columns of its logits.
        capacity: Most tokens of prompt and answer.
        forbidden_ids: Tokens that are never chosen.

    Attributes:
        takes_trees: False.
        commit: Has no meaning for chains.
        capacity: Same as in `Host`.
        vocab_size: Same as in `Host`.

    Raises:
        OptionError: The model's cache cannot be trimmed: it is recurrent, or a window that is no
            longer than the capacity. At the first prompt: its logits are not `vocab_size` wide.
        ShapeError, TokenOutOfRangeError: The forbidden tokens are not in the vocabulary.
    """

    takes_trees = False
    commit = "canonical"

    def __init__(
        self, model: Any, vocab_size: int, capacity: int, *, forbidden_ids: Sequence[int] = ()
    ) -> None:
        self.vocab_size = arguments.count("vocab_size", vocab_size)
        self.capacity = arguments.count("capacity", capacity)
        self._model = model
        self._forbidden = arguments.token_ids("forbidden_ids", forbidden_ids, vocab_size).tolist()
        self._logits: Any = None
        self._said: list[int] = []
        self._num_run = 0
        self.clear()

    def clear(self) -> None:
        """Forget all tokens, by making a new cache.

        Raises:
            OptionError: It cannot be trimmed.
        """
        from mlx_lm.models import cache

        self._cache = cache.make_prompt_cache(self._model)
        if not cache.can_trim_prompt_cache(self._cache):
            raise OptionError("the model's cache cannot be trimmed, so drafts cannot be dropped")
        window = min(map(_window, self._cache), default=math.inf)
        if window <= self.capacity:
            raise OptionError(
                f"the model has a window of {window} tokens, whose cache drops what a rejected "
                f"draft needs again: take a capacity below {window}, not {self.capacity}"
            )
        self._num_run = 0

    def read(self, token_ids: NDArray[np.uint32]) -> None:
        """Compute and commit a prompt, the last token by itself, as MLX-LM does."""
        import mlx.core as mx

        before = token_ids[:-1]
        for first in range(0, len(before), _CHUNK):
            part = mx.array(before[first : first + _CHUNK])
            mx.eval(self._model(part[None], cache=self._cache))
        self._compute(token_ids[-1:])

    def run(self, token_ids: NDArray[np.uint32], parents: NDArray[np.uint32]) -> None:
        """Compute a chain."""
        self._compute(token_ids)
        self._num_run = len(token_ids)

    def _compute(self, token_ids: NDArray[np.uint32]) -> None:
        import mlx.core as mx

        logits = self._model(mx.array(token_ids)[None], cache=self._cache)
        if logits.shape[-1] != self.vocab_size:
            raise OptionError(
                f"vocab_size is {self.vocab_size}, but the model's logits are {logits.shape[-1]} "
                "wide"
            )
        if self._forbidden:
            logits[..., mx.array(self._forbidden)] = -mx.inf
        self._logits = logits[0]
        self._said = mx.argmax(self._logits, axis=-1).tolist()

    def choose(self, row: int) -> int:
        """The likeliest token."""
        return self._said[row]

    def scores(self, row: int) -> NDArray[np.float32]:
        """The logits after a node, `(vocab_size,) f32`."""
        import mlx.core as mx

        return np.array(self._logits[row].astype(mx.float32))  # numpy has no bfloat16

    def keep(self, rows: Sequence[int]) -> None:
        """Keep the first rows of the chain.

        Raises:
            EngineError: MLX-LM cannot drop the others.
        """
        from mlx_lm.models import cache

        num_dropped = self._num_run - len(rows)
        if num_dropped and cache.trim_prompt_cache(self._cache, num_dropped) != num_dropped:
            raise EngineError("MLX-LM cannot drop rejected drafts from this model's cache")
        self._num_run = 0


def _window(cache: Any) -> float:
    """Tokens that a layer's cache holds at once; of several caches, the fewest."""
    parts = getattr(cache, "caches", [])
    bounds = [getattr(cache, name, None) for name in ("max_size", "chunk_size")]
    given = [bound for bound in bounds if bound is not None]
    return min([*given, *map(_window, parts)], default=math.inf)
