"""transformers' prompt lookup, as a rule to be replayed.

In: the text so far. Out: a chain. The rule alone is measured: in torch the model would be another
one. llama-cpp-python's `LlamaPromptLookupDecoding` is the same rule, the first match of up to two
tokens, and is not measured again. Needs the packages `transformers` and `torch`.
"""

from importlib import metadata

import numpy as np

from recorded.rule import Rule

PACKAGE = "transformers"
NAME = "transformers prompt lookup"
_LONGEST = 1 << 20
"""Its longest text; none of ours comes near."""


class TransformersLookup(Rule):
    """Its `PromptLookupCandidateGenerator`.

    Args:
        most: Tokens of the longest n-gram that it matches; its own default is 2.
    """

    def __init__(self, most=2):
        """Raises ModuleNotFoundError without the packages."""
        import torch
        from transformers.generation import candidate_generator

        torch.set_num_threads(1)
        self._torch, self._most = torch, most
        self._generator = candidate_generator.PromptLookupCandidateGenerator

    def begin(self, prompt):
        """Same as in `Rule`."""
        self._text = self._torch.from_numpy(prompt.astype(np.int64))[None]
        self._lookup = None

    def propose(self, text, budget):
        """Same as in `Rule`."""
        if self._lookup is None:
            self._lookup = self._generator(
                num_output_tokens=budget,
                max_matching_ngram_size=self._most,
                max_length=_LONGEST,
            )
        drafted = self._lookup.get_candidates(self._text)[0][0, len(text) :].tolist()
        return drafted, range(-1, len(drafted) - 1)

    def accept(self, new_tokens):
        """Same as in `Rule`; the text is copied, as `generate` does."""
        new = self._torch.from_numpy(new_tokens.astype(np.int64))[None]
        self._text = self._torch.cat((self._text, new), dim=1)


def version():
    """What is called, with its version."""
    return f"{PACKAGE} {metadata.version(PACKAGE)}"


def open_rule():
    """The rule; raises ModuleNotFoundError without the packages."""
    return TransformersLookup()
