"""Plain decoding and our default as contestants: a bundle's session, with and without drafts.

In: an open session, or a bundle or a GGUF file with threads. Out: contestants for `contest.py`, or
`Opened` with two of them, for which end tokens are forbidden unless told otherwise, so that every
answer has its full length. With "earlier answers" the drafter draws on
those of the same round and task; it is a new one in each round, which would else only repeat.
"""

import time

import numpy as np

from contest import Answer, Contestant
from coordgen_rs import Stats, generate, make_drafter, open_session, plain
from coordgen_rs.loading.profile import bundle_facts, device_facts
from live.process import Opened

KINDS = {"plain": False, "auto": True}
"""Contestants of an engine, and whether they draft."""


class Plain(Contestant):
    """A token a run."""

    name = "plain"

    def __init__(self, session):
        self._session = session

    def answer(self, prompt, max_new_tokens):
        """As of `Contestant`."""
        stats = Stats()
        return _answer(
            plain(self._session, prompt, max_new_tokens=max_new_tokens, stats=stats), stats
        )


class Auto(Contestant):
    """The default drafter, which may draw on earlier answers or not."""

    def __init__(self, session, name, *, earlier_requests=False):
        self.name = name
        self._session, self._earlier_requests = session, earlier_requests
        self.begin()

    def begin(self):
        """A drafter that knows nothing yet."""
        self._drafter = make_drafter(self._session, earlier_requests=self._earlier_requests)

    def answer(self, prompt, max_new_tokens):
        """As of `Contestant`."""
        stats, options = Stats(), {"max_new_tokens": max_new_tokens, "drafter": self._drafter}
        return _answer(generate(self._session, prompt, stats=stats, **options), stats)


def contestants(session):
    """Ours, plain decoding first."""
    return [
        Plain(session),
        Auto(session, "auto"),
        Auto(session, "auto, earlier answers", earlier_requests=True),
    ]


def _answer(steps, stats):
    start = time.perf_counter()
    tokens = [token for step in steps for token in step.token_ids]
    prompt_s = time.perf_counter() - start - stats.decode_s  # the drafter reads it, too
    return Answer(tokens, len(tokens), stats.steps, prompt_s, stats.decode_s)


def open_engine(bundle, threads, stop_at_end):
    """`Opened`; raises what `open_session` raises."""
    session = open_session(bundle, threads=threads)
    if not stop_at_end:
        _forbid(session, session.end_token_ids)
    facts = device_facts(session.bundle, threads) | {
        "bundle": bundle_facts(session.bundle),
        "context": session.capacity,
    }
    return Opened({"plain": Plain(session), "auto": Auto(session, "auto")}, facts)


def _forbid(session, token_ids):
    """Let the session's steps never choose one of these tokens."""
    step, forbidden = session.step, [*token_ids]

    def step_without(inputs):
        logits = step(inputs)
        logits[:, forbidden] = -np.inf
        return logits

    session.step = step_without
