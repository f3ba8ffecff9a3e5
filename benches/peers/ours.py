"""Plain decoding and coordgen as contestants: a bundle's session, with and without drafts.

In: an open session. Out: contestants for `contest.py`. With "earlier answers" the drafter draws on
those of the same round and task; it is a new one in each round, which would else only repeat.
"""

from contest import Answer
from coordgen_rs import Stats, generate, make_drafter, plain
from coordgen_rs.generate import DRAFT_SOURCES


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


class Coordgen:
    """Lookups draft; `sources` as of `make_drafter`."""

    def __init__(self, session, name, sources):
        self.name = name
        self._session, self._sources = session, sources
        self.begin()

    def begin(self):
        """A drafter that knows nothing yet."""
        self._drafter = make_drafter(self._session, self._sources)

    def answer(self, prompt, max_new_tokens):
        """As of `Contestant`."""
        stats, options = Stats(), {"max_new_tokens": max_new_tokens, "drafter": self._drafter}
        return _answer(generate(self._session, prompt, stats=stats, **options), stats)


def contestants(session):
    """Ours, plain decoding first."""
    return [
        Plain(session),
        Coordgen(session, "coordgen", "auto"),
        Coordgen(session, "coordgen, earlier answers", (*DRAFT_SOURCES["auto"], "session")),
    ]


def _answer(steps, stats):
    tokens = [token for step in steps for token in step.token_ids]
    return Answer(tokens, len(tokens), stats.steps, stats.prefill_s, stats.decode_s)
