"""transformers' prompt lookup, as a rule to be replayed.

In: the text so far. Out: a chain. The rule alone is measured: in torch the model would be another
one. llama-cpp-python's `LlamaPromptLookupDecoding` is the same rule, the first match of up to two
tokens, and is not measured again. Needs the packages `transformers` and `torch`.
"""

import numpy as np

PACKAGE = "transformers"
NAME = "transformers prompt lookup"


class TransformersLookup:
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
        """It keeps nothing."""

    def propose(self, text, budget):
        """Same as in `Rule`."""
        lookup = self._generator(
            num_output_tokens=budget,
            max_matching_ngram_size=self._most,
            max_length=len(text) + budget + 1,
        )
        whole = self._torch.from_numpy(text.astype(np.int64))[None]
        drafted = lookup.get_candidates(whole)[0][0, len(text) :].tolist()
        return drafted, range(-1, len(drafted) - 1)

    def accept(self, new_tokens):
        """It keeps nothing."""

    def end(self):
        """It keeps nothing."""

    def memory_bytes(self):
        """It keeps nothing."""
        return 0


def open_rule():
    """The rule; raises ModuleNotFoundError without the packages."""
    return TransformersLookup()
