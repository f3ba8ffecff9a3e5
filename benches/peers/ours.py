"""Plain decoding and our default as contestants: a bundle's session, with and without drafts.

In: an open session. Out: contestants for `contest.py`. With "earlier answers" the drafter draws on
those of the same round and task; it is a new one in each round, which would else only repeat.
"""

import time

from contest import Answer
from coordgen_rs import Stats, generate, make_drafter, plain


class Plain:
    """A token a run."""

    name = "plain"

    def __init__(self, session):
        self._session = session

    def begin(self):
        """Nothing is kept."""

    def answer(self, prompt, max_new_tokens):
        """As of `Contestant`."""
        stats = Stats()
        return _answer(
            plain(self._session, prompt, max_new_tokens=max_new_tokens, stats=stats), stats
        )


class Auto:
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
