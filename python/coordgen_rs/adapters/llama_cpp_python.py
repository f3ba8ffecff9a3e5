"""llama-cpp-python: `Llama(.., draft_model=CoordgenDraftModel(..), logits_all=True)`, by chains.

In: the tokens so far, at each step. Out: what may come next. llama-cpp-python verifies: a drafted
row is sampled as any other, and what differs is cut from its cache. It says nothing of what was
accepted, so the texts of two calls are compared.

Versions: the interface of llama-cpp-python 0.3, `llama_speculative.LlamaDraftModel`.
`logits_all=True` is needed, and takes `n_ctx * vocab_size * 4` bytes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import HostDrafter, SharedHistory
from coordgen_rs.adapters.host import Follower

NUM_PRED_TOKENS = 10
"""Draft tokens a step, as in `LlamaPromptLookupDecoding`."""


class CoordgenDraftModel:
    """Drafts for one `Llama`.

    Args:
        vocab_size: `llama.n_vocab()`.
        num_pred_tokens: Most draft tokens a step.
        costs: What a step of 1, 2, .. `num_pred_tokens + 1` rows costs, in any unit; None where
            rows are free, as on most GPUs. On CPU they are not.
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
