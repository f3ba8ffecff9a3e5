"""An output layer that scores the tokens of the likeliest clusters alone.

In: a state, and a score for each cluster. Out: logits of the whole vocabulary. Rows of the output
layer are read for the chosen clusters' tokens; all others get what is less than any of these.
"""

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import BundleDamagedError


class ClusteredOutput:
    """The output layer of a drafter that has clusters.

    Args:
        bundle: Its manifest says where the layer is.

    Raises:
        BundleDamagedError: A file cannot be mapped, or holds ids outside the vocabulary.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._rows = bundle.assistant_output()
        self._tokens, self._chosen = bundle.assistant_clusters()
        self._vocab_size = bundle.manifest.model.vocab_size
        if int(self._tokens.max()) >= self._vocab_size:
            raise BundleDamagedError(f"{bundle.shown}: a cluster holds ids outside the vocabulary")

    def score(
        self,
        hidden: NDArray[np.float32],
        cluster_scores: NDArray[np.float32],
        logits: NDArray[np.float32],
    ) -> None:
        """Fill `logits (vocab_size,)` from `hidden (d,)` and `cluster_scores (clusters,)`."""
        likeliest = np.argpartition(-cluster_scores, self._chosen - 1)[: self._chosen]
        tokens, size = self._tokens[likeliest].ravel(), self._tokens.shape[1]
        rows = likeliest[:, np.newaxis] * size + np.arange(size)
        # Not by `@`: its threads take longer to begin than one takes for all of it.
        scores = np.einsum("ij,j->i", self._rows[rows.ravel()], hidden)
        logits[:] = scores.min() - np.float32(1)
        logits[tokens] = scores
