"""transformers: `model.generate(.., custom_generate=Drafted())`, verified by trees or chains.

    arguments what `generate` was given: done here, done by it, or refused by name
    drafted   the decoding loop of one request after the other, for one or more models
    host      a model and its cache, as the loop over engines needs them: whether it can be cut,
              and how far its positions go

In: what `generate` hands to a decoding loop. Out: what it hands back. Branches are told apart by a
4-D mask and positions; logits processors, stopping criteria, streamers and sampling are
transformers' own.

Versions: transformers 5.23 and 5.24, torch 2.15. One sequence a call, a dynamic cache, attention to
all tokens or to a window of them.
"""

from coordgen_rs.adapters.transformers.drafted import Drafted
from coordgen_rs.adapters.transformers.host import TransformersHost

__all__ = ["Drafted", "TransformersHost"]
