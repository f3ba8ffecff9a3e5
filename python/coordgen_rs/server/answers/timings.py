"""The figures of one answer in the shapes that tools read: OpenAI's, llama.cpp's and vLLM's.

In: an answer. Out: objects for JSON: `usage`, `timings` as llama.cpp's server has them, and
`metrics` as vLLM's. Times are milliseconds.
"""

from typing import Any

from coordgen_rs.generation.stats import Stats
from coordgen_rs.model.answer import Answer


def usage(answer: Answer, num_thinking: int = 0) -> dict[str, Any]:
    """Tokens, as OpenAI counts them; `num_thinking` of them are thinking."""
    stats, num_new = answer.stats, len(answer.token_ids)
    predicted = stats.per_source.get("prediction", {"proposed": 0, "accepted": 0})
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": num_new,
        "total_tokens": stats.prompt_tokens + num_new,
        "prompt_tokens_details": {"cached_tokens": stats.reused_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": num_thinking,
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


def metrics(answer: Answer, queued_s: float) -> dict[str, Any]:
    """Latencies and drafts, in the form of vLLM."""
    return _latency(answer, queued_s) | {"speculative_decoding": _drafting(answer.stats)}


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


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _per(amount: float, unit: float) -> float:
    return amount / unit if unit > 0 else 0.0
