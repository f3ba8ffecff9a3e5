"""Counts of what a server has answered, for `/metrics`.

In: finished answers, in the worker's thread. Out: text in the format of Prometheus (exposition
format 0.0.4). Draft tokens are labelled by the source that proposed them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from coordgen_rs.model.answer import Answer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SUMS = {
    "prompt_tokens": "Tokens of prompts.",
    "cached_tokens": "Tokens of prompts that were not computed again.",
    "tokens_predicted": "Tokens of answers.",
    "steps": "Verifications, one run of a decode graph each.",
    "prompt_seconds": "Seconds of reading prompts.",
    "tokens_predicted_seconds": "Seconds of decoding.",
    "queue_seconds": "Seconds that requests waited for their turn.",
}


class Figures:
    """Counts since the server began.

    Attributes:
        finished: Answers that were given whole.
        given_up: Requests whose client went away.
        failed: Requests that ended with an error after their turn had come.
        refused: Requests that found the queue full.
    """

    def __init__(self) -> None:
        self.finished = self.given_up = self.failed = self.refused = 0
        self._sums: dict[str, float] = dict.fromkeys(_SUMS, 0)
        self._proposed, self._accepted = Counter[str](), Counter[str]()

    def add(self, answer: Answer, queued_s: float, *, is_given_up: bool) -> None:
        """Count an answer, whole or given up."""
        stats = answer.stats
        if is_given_up:
            self.given_up += 1
        else:
            self.finished += 1
        for name, value in (
            ("prompt_tokens", stats.prompt_tokens),
            ("cached_tokens", stats.reused_tokens),
            ("tokens_predicted", len(answer.token_ids)),
            ("steps", stats.steps),
            ("prompt_seconds", stats.prefill_s),
            ("tokens_predicted_seconds", stats.decode_s),
            ("queue_seconds", queued_s),
        ):
            self._sums[name] += value
        for source, counts in stats.per_source.items():
            self._proposed[source] += counts["proposed"]
            self._accepted[source] += counts["accepted"]

    def text(self, *, num_running: int, num_waiting: int) -> str:
        """All counts, and how many requests run and wait now."""
        return "".join(self._lines(num_running, num_waiting))

    def _lines(self, num_running: int, num_waiting: int) -> Iterator[str]:
        for name, value, about in (
            ("requests_processing", num_running, "Requests being answered."),
            ("requests_deferred", num_waiting, "Requests waiting for their turn."),
        ):
            yield from _metric(name, "gauge", about, {"": value})
        ended = {
            "finished": self.finished,
            "given_up": self.given_up,
            "failed": self.failed,
            "refused": self.refused,
        }
        labelled = {f'{{outcome="{name}"}}': count for name, count in ended.items()}
        yield from _metric("requests_total", "counter", "Requests by how they ended.", labelled)
        for name, about in _SUMS.items():
            yield from _metric(f"{name}_total", "counter", about, {"": self._sums[name]})
        for name, counts, about in (
            ("draft_tokens", self._proposed, "Draft tokens proposed, by source."),
            ("accepted_tokens", self._accepted, "Draft tokens accepted, by source."),
        ):
            labelled = {f'{{source="{source}"}}': n for source, n in sorted(counts.items())}
            yield from _metric(f"spec_decode_num_{name}_total", "counter", about, labelled)


def _metric(name: str, kind: str, about: str, samples: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP coordgen_{name} {about}\n# TYPE coordgen_{name} {kind}\n"
    for label, value in samples.items():
        yield f"coordgen_{name}{label} {value}\n"
