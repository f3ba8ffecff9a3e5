"""The shapes of answers: OpenAI's objects, the figures that tools read, and our own `coordgen`.

In: steps and answers. Out: objects for JSON, whole or as the chunks of a stream. `timings` is in
the form of llama.cpp's server, `metrics` in that of vLLM. It sends nothing.
"""

import secrets
import time
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from coordgen_rs.answer import Answer, Gain
from coordgen_rs.server.asked import Asked
from coordgen_rs.stats import Stats

_FINISH = {"stop": "stop", "length": "length", "capacity": "length", "grammar": "stop"}


class Form:
    """The objects of one answer.

    Args:
        asked: What was asked for.
        model: The model's name.
    """

    def __init__(self, asked: Asked, model: str) -> None:
        self._asked = asked
        prefix, kind = ("chatcmpl", "chat.completion") if asked.is_chat else ("cmpl", "")
        self._whole_kind = kind or "text_completion"
        self._chunk_kind = f"{kind}.chunk" if kind else "text_completion"
        self._head = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }
        self._num_chars = self._num_tokens = 0

    def whole(self, answer: Answer, queued_s: float) -> dict[str, Any]:
        """The answer as one object."""
        if self._asked.is_chat:
            said: dict[str, Any] = {"message": {"role": "assistant", "content": answer.text}}
            said["message"]["refusal"] = None
        else:
            said = {"text": answer.text}
        choice = self._choice(said, _FINISH.get(answer.finish_reason or "", "stop"))
        if self._asked.with_token_ids:
            choice["token_ids"] = answer.token_ids
        figures = self._figures(answer, queued_s)
        if self._asked.with_spans:
            figures["coordgen"] |= {
                "spans": [[*span] for span in answer.spans],
                "token_spans": _runs(answer.sources, 0),
            }
        return (
            {"object": self._whole_kind}
            | self._head
            | {"choices": [choice], "usage": usage(answer)}
            | figures
        )

    def opening(self) -> list[dict[str, Any]]:
        """What comes before the first text: of a chat, its role."""
        if not self._asked.is_chat:
            return []
        return [self._chunk({"delta": {"role": "assistant", "content": ""}}, None)]

    def step(self, gain: Gain) -> list[dict[str, Any]]:
        """What a step adds: one chunk, or none where no text is certain and nothing else asked."""
        text = "".join(piece.text for piece in gain.pieces)
        is_wanted = self._asked.with_spans or self._asked.with_token_ids
        if not text and not (is_wanted and gain.token_ids):
            return []
        said = {"delta": {"content": text}} if self._asked.is_chat else {"text": text}
        chunk = self._chunk(said, None)
        if self._asked.with_token_ids:
            chunk["choices"][0]["token_ids"] = gain.token_ids
        if self._asked.with_spans:
            by_char = [piece.source for piece in gain.pieces for _ in piece.text]
            chunk["coordgen"] = {
                "spans": _runs(by_char, self._num_chars),
                "token_spans": _runs(gain.sources, self._num_tokens),
            }
            if gain.step is not None:
                chunk["coordgen"]["step"] = {
                    "rows": gain.step.num_rows,
                    "drafted": gain.step.num_drafted,
                    "accepted": gain.step.accept_len,
                }
        self._num_chars += len(text)
        self._num_tokens += len(gain.token_ids)
        return [chunk]

    def closing(self, answer: Answer, queued_s: float) -> list[dict[str, Any]]:
        """What comes after the last text: why the answer ends, figures, usage if asked for."""
        reason = _FINISH.get(answer.finish_reason or "", "stop")
        said: dict[str, Any] = {"delta": {}} if self._asked.is_chat else {"text": ""}
        last = self._chunk(said, reason) | self._figures(answer, queued_s)
        if not self._asked.with_usage:
            return [last]
        return [last, self._chunk(None, None) | {"usage": usage(answer)}]

    def _chunk(self, said: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
        choices = [] if said is None else [self._choice(said, reason)]
        chunk = {"object": self._chunk_kind} | self._head | {"choices": choices}
        return chunk | {"usage": None} if self._asked.with_usage else chunk

    def _choice(self, said: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return {"index": 0} | said | {"logprobs": None, "finish_reason": reason}

    def _figures(self, answer: Answer, queued_s: float) -> dict[str, Any]:
        stats = answer.stats
        own = {
            "per_source": stats.per_source,
            "token_sources": Counter(answer.sources),
            "num_steps": stats.steps,
            "tokens_per_step": round(stats.tokens_per_step, 4),
            "accept_histogram": stats.accept_histogram,
            "finish_reason": answer.finish_reason,
            "seed": self._asked.seed,
        }
        metrics = _latency(answer, queued_s) | {"speculative_decoding": _drafting(stats)}
        return {"timings": timings(answer), "metrics": metrics, "coordgen": own}


def usage(answer: Answer) -> dict[str, Any]:
    """Tokens, as OpenAI counts them."""
    stats, num_new = answer.stats, len(answer.token_ids)
    predicted = stats.per_source.get("prediction", {"proposed": 0, "accepted": 0})
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": num_new,
        "total_tokens": stats.prompt_tokens + num_new,
        "prompt_tokens_details": {"cached_tokens": stats.reused_tokens},
        "completion_tokens_details": {
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
    drafted = _drafting(stats)
    if drafted["num_draft_tokens"]:
        told["draft_n"] = drafted["num_draft_tokens"]
        told["draft_n_accepted"] = drafted["num_accepted_draft_tokens"]
    return told


def _drafting(stats: Stats) -> dict[str, Any]:
    """Drafts, as vLLM's per-request metrics have them; a tree counts with all its nodes."""
    drafted = sum(counts["proposed"] for counts in stats.per_source.values())
    accepted = sum(n * count for n, count in enumerate(stats.accept_histogram))
    return {
        "num_spec_steps": stats.steps,
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
        "mean_acceptance_length": round(stats.tokens_per_step, 4),
        "draft_acceptance_rate": round(_per(accepted, drafted), 4),
        "acceptance_histogram": stats.accept_histogram,
    }


def _latency(answer: Answer, queued_s: float) -> dict[str, Any]:
    stats = answer.stats
    after_first = stats.prefill_s + stats.decode_s - stats.first_token_s
    return {
        "time_to_first_token_ms": _ms(stats.first_token_s),
        "generation_time_ms": _ms(stats.prefill_s + stats.decode_s),
        "queue_time_ms": _ms(queued_s),
        "mean_itl_ms": _ms(_per(after_first, stats.new_tokens - 1)),
        "tokens_per_second": round(stats.tokens_per_s, 2),
    }


def _runs(sources: Iterable[str], start: int) -> list[list[Any]]:
    """Neighbours of one source as `[start, end, source]`, half open."""
    runs: list[list[Any]] = []
    for source, same in groupby(sources):
        end = start + sum(1 for _ in same)
        runs.append([start, end, source])
        start = end
    return runs


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _per(amount: float, unit: float) -> float:
    return amount / unit if unit > 0 else 0.0
