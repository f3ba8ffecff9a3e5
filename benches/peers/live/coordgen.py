"""coordgen as a live engine: a bundle's session, with and without drafts.

In: a bundle or a GGUF file, and threads. Out: `Opened` with two contestants, plain and `auto`,
which share the session. End tokens are forbidden unless told otherwise, so that every answer has
its full length.
"""

import numpy as np

from coordgen_rs import open_session
from coordgen_rs.loading.profile import bundle_facts, device_facts
from live.process import Opened
from ours import Auto, Plain

KINDS = {"plain": False, "auto": True}
"""Contestants, and whether they draft."""


def open_engine(bundle, threads, stop_at_end):
    """`Opened`; raises what `open_session` raises."""
    session = open_session(bundle, threads=threads)
    if not stop_at_end:
        forbid(session, session.end_token_ids)
    facts = device_facts(session.bundle, threads) | {
        "bundle": bundle_facts(session.bundle),
        "context": session.capacity,
    }
    return Opened({"plain": Plain(session), "auto": Auto(session, "auto")}, facts)


def forbid(session, token_ids):
    """Let the session's steps never choose one of these tokens."""
    step, forbidden = session.step, [*token_ids]

    def step_without(inputs):
        logits = step(inputs)
        logits[:, forbidden] = -np.inf
        return logits

    session.step = step_without
