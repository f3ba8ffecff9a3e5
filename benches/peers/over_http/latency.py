"""What a long prompt costs those who are there while it is read.

In: a row, a long prompt and short ones. Out: seconds until a short request's first token, alone and
beside the long prompt; and how fast streams run while it is read, and before and after that.
"""

import time
from contextlib import ExitStack
from statistics import median
from threading import Event, Thread
from typing import NamedTuple

from contest import ContestantFailedError

PIECE_TOKENS = 256
"""What a server may well read in one go of a long prompt."""
_SHORT_NEW_TOKENS = 8
_LATER = 0.1
"""The short request comes when so much of the long prompt's time is over."""
_ALONE_TOKENS = 48
"""What each stream says before the long prompt comes, after as many that are not timed, and again
when it is read: the more a stream has said, the slower it is."""
_MOST_NEW_TOKENS = 2048


class Latency(NamedTuple):
    """What a row did.

    Attributes:
        short_alone_s: Seconds until the first token of a short request, alone.
        long_alone_s: Of the long one, alone.
        piece_s: Its part for one piece.
        short_beside_s: Of the short request that comes while the long prompt is read.
        long_beside_s: Of the long one then.
        alone_tokens_per_s: What each stream gives before that comes, and after it.
        beside_tokens_per_s: What each gives while it is read.
    """

    short_alone_s: float
    long_alone_s: float
    piece_s: float
    short_beside_s: float
    long_beside_s: float
    alone_tokens_per_s: float
    beside_tokens_per_s: float

    @property
    def first_ratio(self):
        """The short request's time beside the long prompt, but for one piece, by that alone."""
        return max(self.short_beside_s - self.piece_s, 0.0) / self.short_alone_s

    @property
    def speed_ratio(self):
        """What a stream keeps of its speed."""
        return self.beside_tokens_per_s / self.alone_tokens_per_s


def latency_of(row, long, shorts, rounds):
    """`Latency` of a row, as medians over rounds.

    Args:
        row: A `Row`.
        long: The long prompt, `(tokens,) u32`.
        shorts: Three short ones, of which the first is timed; the others' streams are.
        rounds: How often each is measured.

    Raises:
        ContestantFailedError: A request failed.
    """
    of = [_latency(row, long, shorts) for _ in range(rounds)]
    return Latency(*(median(values) for values in zip(*of, strict=True)))


def _latency(row, long, shorts):
    short_alone_s = row.ask(shorts[0], _SHORT_NEW_TOKENS, row.begin()).first_s
    long_alone_s = row.ask(long, 1, row.begin()).first_s
    key = row.begin()
    with _Asked(row, long, 1, key) as beside:
        time.sleep(_LATER * long_alone_s)
        short_beside_s = row.ask(shorts[0], _SHORT_NEW_TOKENS, key).first_s
    alone, meanwhile = _streams(row, long, shorts[1:], row.begin())
    return Latency(
        short_alone_s=short_alone_s,
        long_alone_s=long_alone_s,
        piece_s=long_alone_s * min(1.0, PIECE_TOKENS / len(long)),
        short_beside_s=short_beside_s,
        long_beside_s=beside.said.first_s,
        alone_tokens_per_s=alone,
        beside_tokens_per_s=meanwhile,
    )


def _streams(row, long, prompts, key):
    """Tokens a second of a stream while no long prompt is read, and while one is."""
    is_over = Event()
    with ExitStack() as stack:
        streams = [
            stack.enter_context(_Asked(row, prompt, _MOST_NEW_TOKENS, key, is_over.is_set))
            for prompt in prompts
        ]
        stack.callback(is_over.set)
        for stream in streams:
            stream.wait_for(_ALONE_TOKENS)
        start = time.perf_counter()
        for stream in streams:
            stream.wait_for(len(stream.said.tokens) + _ALONE_TOKENS)
        sent = time.perf_counter()
        if any(stream.has_ended for stream in streams):
            raise ContestantFailedError("a stream ended before the long prompt came")
        end = row.ask(long, 1, key).arrivals[0][0]
        for stream in streams:
            stream.wait_for(len(stream.said.tokens) + _ALONE_TOKENS, or_end=True)
        over = time.perf_counter()

    def speed(*times):
        tokens = sum(stream.between(*time) for stream in streams for time in times)
        return tokens / sum(stream.seconds(*time) for stream in streams for time in times)

    return speed((start, sent), (end, over)), speed((sent, end))


class _Asked:
    """A request that another thread makes.

    Args:
        row: A `Row`.
        prompt: `(tokens,) u32`.
        max_new_tokens: Tokens of the answer.
        key: What the row's `begin` gave.
        is_over: Whether it is to end before.

    Attributes:
        said: The reply so far; None before its first token.
        has_ended: Whether there will be no more.
    """

    def __init__(self, row, prompt, max_new_tokens, key, is_over=lambda: False):
        self._is_over, self._failure, self._came = is_over, None, Event()
        self.has_ended, self.said = False, None
        arguments = (row, prompt, max_new_tokens, key)
        self._thread = Thread(target=self._ask, args=arguments)

    def wait_for(self, num_tokens, *, or_end=False):
        """Wait until it has said so many tokens.

        Raises:
            ContestantFailedError: It fails, or it ends before and `or_end` is false.
        """
        while self.said is None or len(self.said.tokens) < num_tokens:
            if self.has_ended:
                if or_end and self._failure is None:
                    return
                raise self._failure or ContestantFailedError(
                    "a stream ended before the long prompt came"
                )
            self._came.wait()
            self._came.clear()

    def seconds(self, start, end):
        """For how long it spoke between two times: with drafts it may end before."""
        return max((min(end, self.said.arrivals[-1][0]) if self.has_ended else end) - start, 0.0)

    def between(self, start, end):
        """How many of its tokens came between two times."""
        return sum(tokens for at, tokens in self.said.arrivals if start < at <= end)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _ask(self, row, prompt, max_new_tokens, key):
        def until(reply):
            self.said = reply
            self._came.set()
            return self._is_over()

        try:
            self.said = row.ask(prompt, max_new_tokens, key, until=until)
        except ContestantFailedError as error:
            self._failure = error
        finally:
            self.has_ended = True
            self._came.set()
