"""SGLang: an n-gram corpus with our trees, in place of the one of its n-gram worker.

In: the last tokens of each request of a batch, and how many it has. Out: token ids and tree masks
of fixed size, which SGLang verifies as they are. The worker tells the tail of a text alone
(`--speculative-ngram-max-trie-depth` tokens of it): the longer it is, the more of the prompt is
drafted from.

Versions: the interface of `NgramCorpus` in SGLang 0.5.23. Put it in the worker's place of it:
`worker.ngram_corpus = Corpus(vocab_size, draft_token_num)`.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import HostDrafter, SharedHistory
from coordgen_rs.errors import OptionError


class Corpus:
    """Drafts for all requests of an SGLang engine, over shared history.

    Args:
        vocab_size: Number of ids in the vocabulary.
        draft_token_num: Nodes of each tree, root included.
        history: Finished requests to draft from; None for those of this engine, in memory.

    Raises:
        OptionError: `draft_token_num` is 0, or the history is of another vocabulary.
    """

    def __init__(
        self, vocab_size: int, draft_token_num: int = 8, *, history: SharedHistory | None = None
    ) -> None:
        self._vocab_size, self.draft_token_num = vocab_size, draft_token_num
        self._history = SharedHistory(vocab_size) if history is None else history
        self._requests: dict[str, tuple[HostDrafter, int]] = {}
        self._idle = [self._new()]

    def batch_get(
        self,
        req_ids: Sequence[str],
        batch_tokens: Sequence[Sequence[int]],
        total_lens: Sequence[int],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draft for each request of a batch.

        Args:
            req_ids: Their ids.
            batch_tokens: The last tokens of each, at least one.
            total_lens: How many tokens each has in all.

        Returns:
            Token ids, `(requests * draft_token_num,) i64`, and masks, `(requests *
            draft_token_num * draft_token_num,) i64`, 1 where a node sees another.

        Raises:
            EmptyPromptError, TokenOutOfRangeError: The tokens cannot be followed.
        """
        trees = [
            self._tree(*request) for request in zip(req_ids, batch_tokens, total_lens, strict=True)
        ]
        none = [np.zeros(0, np.int64)]
        token_ids = np.concatenate([token_ids for token_ids, _ in trees] or none)
        return token_ids, np.concatenate([mask for _, mask in trees] or none)

    def batch_put(self, batch_tokens: Sequence[Sequence[int]]) -> None:
        """Do nothing: `batch_get` receives the new tokens, `erase_match_state` what has ended."""

    def erase_match_state(self, req_ids: Sequence[str]) -> None:
        """Remember these requests, which have ended."""
        for req_id in req_ids:
            if req_id in self._requests:
                drafter, _ = self._requests.pop(req_id)
                self._history.remember(drafter.token_ids)
                drafter.end()
                self._idle.append(drafter)

    def synchronize(self) -> None:
        """Do nothing: no work is deferred."""

    def reset(self) -> None:
        """Forget all requests, running and finished."""
        self._history.clear()
        self._requests.clear()

    def load_external_corpus_named(self, corpus_id: str, chunks: Iterable[Sequence[int]]) -> int:
        """Refused: finished requests are what is drafted from.

        Raises:
            OptionError: Always.
        """
        raise OptionError(
            f"the external corpus {corpus_id!r} cannot be loaded: give Corpus a SharedHistory that "
            "remembers its texts"
        )

    def remove_external_corpus(self, corpus_id: str) -> None:
        """Refused, as there is none.

        Raises:
            OptionError: Always.
        """
        raise OptionError(f"there is no external corpus {corpus_id!r}")

    def list_external_corpora(self) -> dict[str, int]:
        """None, as none can be loaded."""
        return {}

    def _new(self) -> HostDrafter:
        rows = range(1, self.draft_token_num + 1)
        return HostDrafter(self._vocab_size, rows=rows, history=self._history)

    def _tree(
        self, req_id: str, tail: Sequence[int], total_len: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        text = np.array(tail, np.uint32)
        drafter, seen = self._requests.get(req_id, (None, 0))
        num_new = total_len - seen
        if drafter is None or not 0 <= num_new <= len(text):
            # A new request, one that was taken back, or a gap that the tail does not close.
            drafter = drafter or (self._idle.pop() if self._idle else self._new())
            drafter.begin(text)
        elif num_new:
            drafter.observe(text[len(text) - num_new :])
        self._requests[req_id] = (drafter, total_len)
        token_ids, parents = drafter.propose_tree(self.draft_token_num - 1)
        return padded(token_ids, parents, self.draft_token_num)


def padded(
    token_ids: NDArray[np.uint32], parents: NDArray[np.uint32], num_nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A tree in the form that SGLang verifies.

    Missing nodes say the last token again behind the root: guesses like others, which are verified.

    Args:
        token_ids: `(nodes,) u32`.
        parents: `(nodes,) u32`.
        num_nodes: The number of nodes that the result must have.

    Returns:
        Token ids, `(num_nodes,) i64`, and the mask, `(num_nodes * num_nodes,) i64`.
    """
    missing = num_nodes - len(token_ids)
    above = np.concatenate([parents, np.zeros(missing, np.uint32)])
    mask = np.eye(num_nodes, dtype=np.int64)
    for node in range(1, num_nodes):
        mask[node] |= mask[above[node]]
    whole = np.concatenate([token_ids, np.repeat(token_ids[-1:], missing)])
    return whole.astype(np.int64), mask.reshape(-1)
