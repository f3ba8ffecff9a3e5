"""llama-cpp-python: `llama.draft_model = CoordgenDraftModel(..)`, by chains.

In: the tokens so far, at each step. Out: what may come next. llama-cpp-python verifies: a drafted
row is sampled as any other, and what differs is cut from its cache. It says nothing of what was
accepted, so the texts of two calls are compared.

Versions: llama-cpp-python 0.3.36, `llama_speculative.LlamaDraftModel`. A `Llama` with a draft model
keeps the logits of `n_batch` rows, and fails with "could not broadcast" where prompt and answer are
longer; with `logits_all=True` it keeps those of `n_ctx` rows, `n_ctx * vocab_size * 4` bytes.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import HostDrafter, SharedHistory
from coordgen_rs.adapters import host
from coordgen_rs.adapters.host import Follower
from coordgen_rs.errors import OptionError

NUM_PRED_TOKENS = 10
"""Draft tokens a step, as in `LlamaPromptLookupDecoding`."""


class CoordgenDraftModel:
    """Drafts for one `Llama`.

    Args:
        vocab_size: `llama.n_vocab()`.
        num_pred_tokens: Most draft tokens a step.
        costs: What a step of 1, 2, .. `num_pred_tokens + 1` rows costs, in any unit, from
            `measured_costs`; None where rows are free, as on most GPUs. On CPU they are not.
        history: Finished requests to draft from; each prompt and answer is remembered there when
            the next begins. None keeps them in memory for this `Llama` alone.

    Raises:
        OptionError: The costs are unusable, or the history is of another vocabulary.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        num_pred_tokens: int = NUM_PRED_TOKENS,
        costs: Sequence[float] | None = None,
        history: SharedHistory | None = None,
    ) -> None:
        history = SharedHistory(vocab_size) if history is None else history
        rows = range(1, num_pred_tokens + 2)
        drafter = HostDrafter(vocab_size, rows=rows, costs=costs, history=history)
        self._most = num_pred_tokens
        self.follower = Follower(drafter, history)

    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: Any) -> NDArray[np.intc]:
        """Draft behind `input_ids`, `(tokens,) intc`; returns `(drafted,) intc`, maybe none.

        Raises:
            EmptyPromptError, TokenOutOfRangeError: The tokens cannot be followed.
        """
        token_ids = np.ascontiguousarray(input_ids, np.uint32)
        return self.follower.chain(token_ids, self._most).astype(np.intc)


def __getattr__(name: str) -> Any:
    """What `CoordgenDraftModel` was called in 0.2.

    Raises:
        AttributeError: It is another name.
    """
    if name == "DraftModel":
        message = f"{__name__}.DraftModel is now {__name__}.CoordgenDraftModel"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return CoordgenDraftModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def measured_costs(llama: Any, num_pred_tokens: int = NUM_PRED_TOKENS) -> list[float]:
    """What a step of 1, 2, .. `num_pred_tokens + 1` rows takes, in microseconds.

    Args:
        llama: A `Llama(.., logits_all=True)`, which forgets what it has read.
        num_pred_tokens: Same as in `CoordgenDraftModel`.

    Raises:
        OptionError: It computes the logits of the last row alone, or its context is too short.
    """
    if not getattr(llama, "_logits_all", True):
        raise OptionError("the Llama computes logits of the last row alone: give logits_all=True")
    return host.measured_costs(_Measured(llama), range(1, num_pred_tokens + 2))


class _Measured:
    """A `Llama` whose steps are measured: nothing is chosen, and nothing kept."""

    takes_trees, commit = False, "canonical"

    def __init__(self, llama: Any) -> None:
        self._llama, self._num_read = llama, 0
        self.capacity: int = llama.n_ctx()
        self.vocab_size: int = llama.n_vocab()

    def clear(self) -> None:
        self._llama.reset()

    def read(self, token_ids: NDArray[np.uint32]) -> None:
        self._llama.eval(token_ids.tolist())
        self._num_read = self._llama.n_tokens

    def run(self, token_ids: NDArray[np.uint32], parents: NDArray[np.uint32]) -> None:
        self._llama.eval(token_ids.tolist())  # returns with the logits of all rows

    def choose(self, row: int) -> int:
        return 0

    def keep(self, rows: Sequence[int]) -> None:
        self._llama.n_tokens = self._num_read  # the next `eval` cuts the cache there
