"""What the writers of answers share: what a dialect is, and how metrics and likelihoods are told.

In: an answer, and its steps. Out: objects for JSON: `usage` as OpenAI has it, `timings` as
llama.cpp's server does, `metrics` as vLLM's, our own `coordgen`, and entries of `logprobs`. Times
are milliseconds.
"""

import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from coordgen_rs.model.answer import Answer, StepDelta, TokenLogprob
from coordgen_rs.server.api_error import APIError
from coordgen_rs.server.dialects.reader import Delta, Ended
from coordgen_rs.server.dialects.request import Request
from coordgen_rs.text.thinking import num_thinking

Event = dict[str, Any]
"""An object of a stream."""

Writing = Generator[list[Event], Delta | Ended, None]
"""Yields what comes before the first text, then, for each delta and the end, what tells it."""

as_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""A value as JSON, without white space."""


def server_sent(event: Event) -> str:
    """An event as a server-sent one."""
    kind = event.get("type")
    head = f"event: {kind}\n" if kind else ""
    return f"{head}data: {as_json(event)}\n\n"


class Dialect(NamedTuple):
    """How answers are written.

    Attributes:
        stream: Writes the events of a stream; for several choices in OpenAI's dialect alone.
        whole: Writes an answer as one object; of several choices in the same way.
        failure: Writes an error behind so many events.
        ping: What is sent where nothing else can be, given the model's name: clients leave it out.
        encoded: An event as it is sent.
        content_type: That of a stream.
        last: What a stream ends with.
        streams_by_default: Whether an answer is streamed where the request says nothing.
    """

    stream: Callable[[Sequence[Request]], Writing]
    whole: Callable[[Sequence[Request], Sequence[Ended]], Event]
    failure: Callable[[APIError, int], Event] = lambda error, _: error.to_json()
    ping: Callable[[str], str] = lambda _: ": waiting\n\n"
    encoded: Callable[[Event], str] = server_sent
    content_type: str = "text/event-stream; charset=utf-8"
    last: str = ""
    streams_by_default: bool = False


class StepMetrics:
    """What `coordgen` tells of each step of one answer.

    Args:
        request: What was asked for.

    Attributes:
        is_wanted: Whether a step is told of, also where no text is certain with it.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self.is_wanted = request.with_spans or request.with_trees or request.with_token_ids
        self._num_chars = self._num_tokens = 0

    def of(self, gain: StepDelta) -> dict[str, Any]:
        """The next step's; nothing where none are asked for."""
        request, own = self._request, dict[str, Any]()
        if request.with_spans:
            by_char = [piece.source for piece in gain.pieces for _ in piece.text]
            own["spans"] = _runs(by_char, self._num_chars)
            own["token_spans"] = _runs(gain.sources, self._num_tokens)
        if (request.with_spans or request.with_trees) and gain.step is not None:
            own["step"] = _step(request, gain)
        self._num_chars += sum(len(piece.text) for piece in gain.pieces)
        self._num_tokens += len(gain.token_ids)
        return own


def answer_metrics(request: Request, end: Ended, *, is_whole: bool) -> dict[str, Any]:
    """All that is measured of an answer; with `is_whole` also what a stream tells step by step."""
    answer, stats = end.answer, end.answer.stats
    own: dict[str, Any] = {
        "per_source": stats.per_source,
        "token_sources": Counter(answer.sources),
        "num_steps": stats.steps,
        "tokens_per_step": round(stats.tokens_per_step, 4),
        "accept_histogram": stats.accept_histogram,
        "finish_reason": answer.finish_reason,
        "seed": request.seed,
    }
    if request.with_spans and is_whole:
        own["spans"] = [[*span] for span in answer.spans]
        own["token_spans"] = _runs(answer.sources, 0)
    if request.with_trees and is_whole:
        own["steps"] = [_step(request, gain) for gain in end.gains if gain.step]
    return {"timings": timings(answer), "metrics": metrics(answer, end.queued_s), "coordgen": own}


def _step(request: Request, gain: StepDelta) -> dict[str, Any]:
    step, tokenizer = gain.step, request.tokenizer
    if step is None:
        return {}

    def text_of(token: int) -> str:
        return tokenizer.decode([token]) or tokenizer.token(token) or ""

    told: dict[str, Any] = {
        "rows": step.num_rows,
        "drafted": step.num_drafted,
        "accepted": step.accept_len,
    }
    if request.with_trees and step.tree is not None:
        tree, path = step.tree, step.tree.path(step.token_ids)
        own = step.token_ids[len(path) : len(path) + 1]
        told["tree"] = {
            "token_ids": tree.token_ids,
            "texts": [text_of(token) for token in tree.token_ids],
            "parents": tree.parents,
            "sources": tree.sources,
            "accepted": path,
            "target": {"token_id": own[0], "text": text_of(own[0])} if own else None,
        }
    return told


def _runs(sources: Iterable[str], start: int) -> list[list[Any]]:
    """Neighbours of one source as `[start, end, source]`, half open."""
    runs: list[list[Any]] = []
    for source, same in groupby(sources):
        end = start + sum(1 for _ in same)
        runs.append([start, end, source])
        start = end
    return runs


def usage(request: Request, *answers: Answer) -> dict[str, Any]:
    """Tokens, as OpenAI counts them; of several answers, the prompt counts once."""
    first, num_new = answers[0].stats, sum(len(answer.token_ids) for answer in answers)
    predicted = Counter[str]()
    for answer in answers:
        predicted.update(answer.stats.per_source.get("prediction", {}))
    return {
        "prompt_tokens": first.prompt_tokens,
        "completion_tokens": num_new,
        "total_tokens": first.prompt_tokens + num_new,
        "prompt_tokens_details": {"cached_tokens": first.reused_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": sum(
                num_thinking(request.thinking, request.tokenizer, one.token_ids) for one in answers
            ),
            "accepted_prediction_tokens": predicted["accepted"],
            "rejected_prediction_tokens": predicted["proposed"] - predicted["accepted"],
        },
    }


def timings(answer: Answer) -> dict[str, Any]:
    """Times, as llama.cpp's server gives them; milliseconds."""
    stats = answer.stats
    num_read, num_new = stats.prompt_tokens - stats.reused_tokens, stats.new_tokens
    told = {
        "cache_n": stats.reused_tokens,
        "prompt_n": num_read,
        "prompt_ms": _ms(stats.prefill_s),
        "prompt_per_token_ms": _ms(_per(stats.prefill_s, num_read)),
        "prompt_per_second": round(_per(num_read, stats.prefill_s), 2),
        "predicted_n": num_new,
        "predicted_ms": _ms(stats.decode_s),
        "predicted_per_token_ms": _ms(_per(stats.decode_s, num_new)),
        "predicted_per_second": round(stats.tokens_per_s, 2),
    }
    drafted, accepted = _drafted(answer)
    return told | {"draft_n": drafted, "draft_n_accepted": accepted} if drafted else told


def metrics(answer: Answer, queued_s: float) -> dict[str, Any]:
    """Latencies and drafts, in the form of vLLM."""
    stats = answer.stats
    after_first = stats.prefill_s + stats.decode_s - stats.first_token_s
    drafted, accepted = _drafted(answer)
    return {
        "time_to_first_token_ms": _ms(stats.first_token_s),
        "generation_time_ms": _ms(stats.prefill_s + stats.decode_s),
        "queue_time_ms": _ms(queued_s),
        "mean_itl_ms": _ms(_per(after_first, stats.new_tokens - 1)),
        "tokens_per_second": round(stats.tokens_per_s, 2),
        "speculative_decoding": {
            "num_spec_steps": stats.steps,
            "num_draft_tokens": drafted,
            "num_accepted_draft_tokens": accepted,
            "mean_acceptance_length": round(stats.tokens_per_step, 4),
            "draft_acceptance_rate": round(_per(accepted, drafted), 4),
            "acceptance_histogram": stats.accept_histogram,
        },
    }


def _drafted(answer: Answer) -> tuple[int, int]:
    """Tokens drafted, a tree with all its nodes, and those that were accepted."""
    stats = answer.stats
    drafted = sum(counts["proposed"] for counts in stats.per_source.values())
    return drafted, sum(n * count for n, count in enumerate(stats.accept_histogram))


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _per(amount: float, unit: float) -> float:
    return amount / unit if unit > 0 else 0.0


LEAST_LOGPROB = -9999.0
"""What OpenAI has for what is so unlikely that nothing else is known; JSON has no infinity."""


def logprob_entries(request: Request, told: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """How likely tokens were, as OpenAI tells it: an entry for each, with its alternatives.

    Each token comes once, also one that adds no text, such as an end token.
    """
    return [
        _entry(request, one.token_id, one.logprob)
        | {"top_logprobs": [_entry(request, *other) for other in one.top]}
        for one in told
    ]


def _entry(request: Request, token_id: int, logprob: float) -> dict[str, Any]:
    spelt = request.tokenizer.spelling.bytes_of(token_id)
    text = spelt.decode(errors="replace")
    return {"token": text, "logprob": max(logprob, LEAST_LOGPROB), "bytes": [*spelt]}
