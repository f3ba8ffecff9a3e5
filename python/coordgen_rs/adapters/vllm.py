"""vLLM: a proposer for `speculative_config`, with a drafter for each request, over shared history.

    {"method": "custom_class", "model": "coordgen_rs.adapters.vllm.Proposer",
     "num_speculative_tokens": 8}

In: what vLLM's model runner tells a proposer: rows of tokens, without the ids of their requests.
Out: chains. A row is recognised by its text: the drafter whose text it continues goes on, wherever
its row has moved to; if none does, a request has begun. A row that has left the batch has ended or
was paused (preempted), which vLLM does not tell. It takes paused requests up again before it begins
others, so those that are gone have ended when another says its first token; under the policy
"priority", which may begin others first, a paused request may be remembered early, and again at
its end.

Versions: the interface of vLLM 0.32 (V1 model runner), where it is experimental.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import HostDrafter, SharedHistory


class Proposer:
    """Drafts for all requests of a vLLM engine.

    Args:
        vllm_config: A `VllmConfig`.
        history: Finished requests to draft from; None for those of this engine, in memory.

    Raises:
        OptionError: The history is of another vocabulary.
    """

    def __init__(self, vllm_config: Any, history: SharedHistory | None = None) -> None:
        self._vocab_size: int = vllm_config.model_config.get_vocab_size()
        self._max_len: int = vllm_config.model_config.max_model_len
        self._most: int = vllm_config.speculative_config.num_speculative_tokens
        self._history = SharedHistory(self._vocab_size) if history is None else history
        self._requests = _Requests()
        self._idle: list[HostDrafter] = []

    def load_model(self, *_: Any, **__: Any) -> None:
        """Do nothing: there is no model to load."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft for each row of a batch.

        Args:
            sampled_token_ids: What each row has just said; nothing while its prompt is being read.
            num_tokens_no_spec: `(rows,)`: tokens of each row, those just said included.
            token_ids_cpu: `(rows, columns)`: prompt and answer of each row.
            slot_mappings: Not used.

        Returns:
            Draft tokens of each row, maybe none.

        Raises:
            TokenOutOfRangeError: A token is not in the vocabulary.
        """
        rows = [
            (token_ids_cpu[row, : num_tokens_no_spec[row]].astype(np.uint32), len(said))
            for row, said in enumerate(sampled_token_ids)
        ]
        found = [self._requests.take(text[: len(text) - num_said]) for text, num_said in rows]
        of_rows = [
            (row, known or self._requests.take_longest(row[0]))
            for row, known in zip(rows, found, strict=True)
        ]
        if any(known is None and num_said for (_, num_said), known in of_rows):
            self._end(self._requests.take_all())
        drafts: list[list[int]] = []
        for (text, num_said), known in of_rows:
            if not num_said:  # a part of a prompt, or a row whose turn it was not
                if known is not None:
                    self._requests.add(known)
                drafts.append([])
                continue
            drafter = known or self._begun(text[: len(text) - num_said])
            drafter.observe(text[len(drafter.token_ids) :])
            self._requests.add(drafter)
            room = self._max_len - len(text)
            chain = drafter.propose_chain(max(0, min(self._most, room)))
            drafts.append(chain.tolist())
        return drafts

    def _end(self, drafters: list[HostDrafter]) -> None:
        """Remember requests, and use their drafters again."""
        for drafter in drafters:
            self._history.remember(drafter.token_ids)
            drafter.end()
            self._idle.append(drafter)

    def _begun(self, prompt: NDArray[np.uint32]) -> HostDrafter:
        """A drafter at the end of a prompt."""
        drafter = (
            self._idle.pop()
            if self._idle
            else HostDrafter(self._vocab_size, rows=range(1, self._most + 2), history=self._history)
        )
        drafter.begin(prompt)
        return drafter


class _Requests:
    """Drafters by their texts: a row costs a look at its own, however many there are."""

    def __init__(self) -> None:
        self._by_text: dict[bytes, list[HostDrafter]] = {}
        self._num_of_length: Counter[int] = Counter()

    def add(self, drafter: HostDrafter) -> None:
        """Keep a drafter, which is left alone until it is taken."""
        text = drafter.token_ids
        self._by_text.setdefault(text.tobytes(), []).append(drafter)
        self._num_of_length[len(text)] += 1

    def take(self, text: NDArray[np.uint32]) -> HostDrafter | None:
        """Take a drafter that has this text."""
        key = text.tobytes()
        found = self._by_text.get(key)
        if not found:
            return None
        drafter = found.pop()
        if not found:
            del self._by_text[key]
        self._forget_length(len(text))
        return drafter

    def take_longest(self, text: NDArray[np.uint32]) -> HostDrafter | None:
        """Take the drafter with the longest text that this one continues."""
        lengths = sorted(each for each in self._num_of_length if each <= len(text))
        taken = (self.take(text[:length]) for length in reversed(lengths))
        return next((drafter for drafter in taken if drafter is not None), None)

    def take_all(self) -> list[HostDrafter]:
        """Take all that are left."""
        left = [drafter for held in self._by_text.values() for drafter in held]
        self._by_text.clear()
        self._num_of_length.clear()
        return left

    def _forget_length(self, length: int) -> None:
        self._num_of_length[length] -= 1
        if not self._num_of_length[length]:
            del self._num_of_length[length]
