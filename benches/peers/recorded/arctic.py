"""ArcticInference's suffix decoding, as a rule to be replayed.

In: the text so far. Out: a chain by its own defaults, or a tree, filled: as many draft tokens as
the budget holds, however unlikely. It is told every answer, token by token as it is given out.
Needs the package `arctic-inference`, or the part of it that `make table` builds.
"""

import sys
from importlib import metadata
from pathlib import Path

import numpy as np

from recorded.rule import Rule

PACKAGE = "arctic-inference"
NAME = "ArcticInference suffix cache"
PINNED = (
    "arctic-inference==0.3.0",
    "sha256:7f22e3e1b1071c6061c0d6951be17c0fb50b08d06d6e543144c8f52faba60a36",
)
"""The version that `make table` builds a part of, and the hash of its file."""
BUILT = Path(__file__).resolve().parents[3] / "build" / "peers" / PINNED[0]
"""Where `make table` puts `arctic_inference`, of which the parts for vLLM are left out."""

DEFAULTS = {"use_tree_spec": False}
FILLED = {
    "use_tree_spec": True,
    "max_spec_factor": 1e6,
    "max_spec_offset": 1e6,
    "min_token_prob": 0.0,
}
_MATCHED = 64
"""Tokens at the end of the text that it is shown, as many as its tree is deep."""


class Arctic(Rule):
    """A `SuffixDecodingCache`.

    Args:
        remembering: Whether earlier answers stay in it.
        how: How it speculates, beside the budget.
    """

    def __init__(self, remembering=False, how=FILLED):
        """Raises ModuleNotFoundError without the package."""
        if BUILT.is_dir() and str(BUILT) not in sys.path:
            sys.path.insert(0, str(BUILT))
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self._cache = SuffixDecodingCache(max_cached_requests=-1 if remembering else 0)
        self._request, self._how = 0, how

    def begin(self, prompt):
        """Same as in `Rule`."""
        self._cache.start_request(self._request, prompt.astype(np.int32))

    def propose(self, text, budget):
        """Same as in `Rule`."""
        end = text[-_MATCHED:].astype(np.int32)
        draft = self._cache.speculate(self._request, end, budget, **self._how)
        return draft.token_ids, draft.parents

    def accept(self, new_tokens):
        """Same as in `Rule`."""
        self._cache.add_active_response(self._request, new_tokens.astype(np.int32))

    def end(self):
        """Same as in `Rule`."""
        self._cache.stop_request(self._request)
        self._request += 1

    def memory_bytes(self):
        """Same as in `Rule`: its trees' own estimates."""
        trees = [self._cache._global_tree, *self._cache._local_trees.values()]
        return sum(tree.estimate_memory() for tree in trees)


def version():
    """What is called, with its version."""
    is_built = BUILT.is_dir()
    return PINNED[0] if is_built else f"{PACKAGE} {metadata.version(PACKAGE)}"


def open_rule():
    """The rule without memory; raises ModuleNotFoundError without the package."""
    return Arctic()
