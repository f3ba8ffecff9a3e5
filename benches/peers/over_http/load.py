"""Prompts that some clients have answered at a time, and figures of that.

In: a row, prompts and a number of clients. Out: replies and seconds. Whole answers are those of
prompts that nobody has read before; answers alone are those of prompts that were read just before,
so that steps do nothing but decode.
"""

import time
from collections import deque
from itertools import chain
from statistics import median, quantiles
from threading import Thread
from typing import NamedTuple

from contest import ContestantFailedError


class Load(NamedTuple):
    """What a row did with all prompts once, for a number of clients.

    Attributes:
        whole_s: Seconds for whole answers, from the first request to the last token.
        whole: Their replies, in the order of the prompts.
        alone_s: Seconds for answers alone.
        alone: Their replies.
    """

    whole_s: float
    whole: list
    alone_s: float
    alone: list


class Figures(NamedTuple):
    """One round's figures.

    Attributes:
        whole_tokens_per_s: Tokens of all clients, by the time in which prompts are read, too.
        decode_tokens_per_s: Tokens of all clients, by the time of answers alone.
        tokens_per_step: Decoded tokens of a request by the steps that it took part in.
        first_p50_s: Seconds until a request's first token, at the median.
        first_p95_s: At the 95th percentile.
        answer_p50_s: Seconds of a whole answer, at the median.
    """

    whole_tokens_per_s: float
    decode_tokens_per_s: float
    tokens_per_step: float
    first_p50_s: float
    first_p95_s: float
    answer_p50_s: float


def loaded(row, prompts, num_clients, max_new_tokens):
    """All prompts, answered whole, and then in waves of one for each client, once they are read.

    Args:
        row: A `Row`.
        prompts: `(tokens,) u32` each.
        num_clients: How many ask at a time.
        max_new_tokens: Tokens of each answer.

    Returns:
        A `Load`.

    Raises:
        ContestantFailedError: A request failed.
    """
    asked = row.begin()
    whole_s, whole = answered(row, prompts, num_clients, max_new_tokens, asked)
    asked, alone_s, alone = row.begin(), 0.0, []
    for start in range(0, len(prompts), num_clients):
        wave = prompts[start : start + num_clients]
        for prompt in wave:
            row.ask(prompt, 1, asked, is_cached=True)
        seconds, replies = answered(row, wave, num_clients, max_new_tokens, asked, is_cached=True)
        alone_s += seconds
        alone += replies
    return Load(whole_s, whole, alone_s, alone)


def answered(row, prompts, num_clients, max_new_tokens, key, *, is_cached=False):
    """The seconds and the replies of prompts that so many clients ask for, each one at a time.

    Args:
        row: A `Row`.
        prompts: `(tokens,) u32` each.
        num_clients: How many ask at a time.
        max_new_tokens: Tokens of each answer.
        key: What the row's `begin` gave.
        is_cached: Whether what was read of a prompt may be reused.

    Raises:
        ContestantFailedError: A request failed; the others were answered or left out.
    """
    waiting, replies, failures = deque(enumerate(prompts)), {}, []

    def client():
        while waiting and not failures:
            try:
                number, prompt = waiting.popleft()
            except IndexError:  # another client has just taken the last
                return
            try:
                replies[number] = row.ask(prompt, max_new_tokens, key, is_cached=is_cached)
            except ContestantFailedError as error:
                failures.append(error)

    clients = [Thread(target=client) for _ in range(num_clients)]
    start = time.perf_counter()
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    seconds = time.perf_counter() - start
    if failures:
        raise failures[0]
    return seconds, [replies[number] for number in range(len(prompts))]


def figures_of(load):
    """`Figures` of a `Load`."""
    tokens = sum(len(reply.tokens) for reply in load.whole)
    firsts = [reply.first_s for reply in load.whole]
    return Figures(
        whole_tokens_per_s=tokens / load.whole_s,
        decode_tokens_per_s=sum(len(reply.tokens) for reply in load.alone) / load.alone_s,
        tokens_per_step=_tokens_per_step([*load.whole, *load.alone]),
        first_p50_s=median(firsts),
        first_p95_s=quantiles(firsts, n=20, method="inclusive")[-1] if firsts[1:] else firsts[0],
        answer_p50_s=median(reply.whole_s for reply in load.whole),
    )


def num_different(loads, expected):
    """Answers that are not the expected ones, of all loads.

    Args:
        loads: `Load`s.
        expected: Tokens by prompt.
    """
    replies = chain.from_iterable(zip(expected, load.whole, strict=True) for load in loads)
    cached = chain.from_iterable(zip(expected, load.alone, strict=True) for load in loads)
    return sum(reply.tokens != tokens for tokens, reply in chain(replies, cached))


def _tokens_per_step(replies):
    return sum(reply.num_decoded for reply in replies) / sum(reply.steps for reply in replies)
