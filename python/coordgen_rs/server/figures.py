"""Counts of what a server has answered, for `/metrics`.

In: finished answers, in the worker's threads. Out: text in the format of Prometheus (exposition
format 0.0.4). Draft tokens are labelled by the source that proposed them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple
from threading import Lock
from typing import Literal, TypeVar

from coordgen_rs.model.answer import Answer
from coordgen_rs.runtime.batch import BatchStats
from coordgen_rs.store.prefixes.store import StoreCounts

_Counts = TypeVar("_Counts", BatchStats, StoreCounts)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ENDS = ("finished", "given_up", "failed", "refused")
_Sum = Callable[[Answer, float], float]
_SUMS: dict[str, tuple[str, _Sum]] = {
    "prompt_tokens": ("Tokens of prompts.", lambda answer, _: answer.stats.prompt_tokens),
    "cached_tokens": (
        "Tokens of prompts that were not computed again.",
        lambda answer, _: answer.stats.reused_tokens,
    ),
    "tokens_predicted": ("Tokens of answers.", lambda answer, _: len(answer.token_ids)),
    "steps": (
        "Verifications, one run of a decode graph each.",
        lambda answer, _: answer.stats.steps,
    ),
    "prompt_seconds": ("Seconds of reading prompts.", lambda answer, _: answer.stats.prefill_s),
    "tokens_predicted_seconds": ("Seconds of decoding.", lambda answer, _: answer.stats.decode_s),
    "queue_seconds": ("Seconds that requests waited for their turn.", lambda _, queued_s: queued_s),
}
"""What is added up over answers, and how much of it one has that waited for so many seconds."""

_RUNS = {
    "runs": "Runs of the graphs that requests shared.",
    "requests": "Requests that had rows in these runs, counted once for each run.",
    "rows": "Rows of these runs.",
    "decode_rows": "Rows of these runs that verified tokens of answers.",
    "prompt_tokens_beside": "Tokens of prompts that were read while others were answered.",
}
_STORE = {
    "lookups": "Requests that looked on disk for more of their prompt than was in memory.",
    "hits": "Those that found it.",
    "read_tokens": "Tokens of prompts that were read from disk, not computed.",
    "read_bytes": "Bytes that were read for that.",
    "read_seconds": "Seconds of looking and reading.",
    "stored_tokens": "Tokens that were written to disk.",
    "stored_bytes": "Bytes that were written to disk.",
    "evicted_bytes": "Bytes that were removed to make room.",
    "damaged": "Files that were not what they should be.",
    "failures": "How often something could not be written.",
    "skipped": "How often something was not written, as too much was waiting for that.",
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
        self._right = Lock()  # to count: answers end in several threads
        self._sums: dict[str, float] = dict.fromkeys(_SUMS, 0)
        self._proposed, self._accepted = Counter[str](), Counter[str]()

    def add(self, answer: Answer, queued_s: float, *, is_given_up: bool) -> None:
        """Count an answer, whole or given up."""
        self.ended("given_up" if is_given_up else "finished")
        with self._right:
            for name, (_, of) in _SUMS.items():
                self._sums[name] += of(answer, queued_s)
            for source, counts in answer.stats.per_source.items():
                self._proposed[source] += counts["proposed"]
                self._accepted[source] += counts["accepted"]

    def ended(self, how: Literal["finished", "given_up", "failed", "refused"]) -> None:
        """Count a request by how it has ended, where there is no answer to count."""
        with self._right:
            setattr(self, how, getattr(self, how) + 1)

    def text(
        self,
        *,
        num_running: int,
        num_waiting: int,
        num_places: int,
        runs: BatchStats | None,
        store: StoreCounts | None = None,
    ) -> str:
        """All counts.

        Args:
            num_running: Requests that are answered now.
            num_waiting: Requests that wait now.
            num_places: How many are answered at a time.
            runs: What the runs were made of that they shared; None where there are none.
            store: What was done with prefixes on disk; None where none are kept.
        """
        found = [
            _gauge("requests_processing", "Requests being answered.", num_running),
            _gauge("requests_deferred", "Requests waiting for their turn.", num_waiting),
            _gauge("places", "Requests that are answered at a time.", num_places),
        ]
        with self._right:
            ends = {how: getattr(self, how) for how in _ENDS}
            found.append(_counter("requests", "Requests by how they ended.", ends, "outcome"))
            found += [_counter(name, about, self._sums[name]) for name, (about, _) in _SUMS.items()]
            for kind, did, by in (
                ("draft", "proposed", self._proposed),
                ("accepted", "accepted", self._accepted),
            ):
                name, about = f"spec_decode_num_{kind}_tokens", f"Draft tokens {did}, by source."
                found.append(_counter(name, about, dict(sorted(by.items())), "source"))
        for kind, counts, abouts in (("shared", runs, _RUNS), ("prefix_store", store, _STORE)):
            if counts is not None:
                each = abouts.items()
                found += [_counter(f"{kind}_{n}", about, getattr(counts, n)) for n, about in each]
        return "".join(found)


def _gauge(name: str, about: str, value: float) -> str:
    name = f"coordgen_{name}"
    return f"# HELP {name} {about}\n# TYPE {name} gauge\n{name} {value}\n"


def _counter(name: str, about: str, value: float | Mapping[str, float], label: str = "") -> str:
    """A counter, or several by the values of a label."""
    name = f"coordgen_{name}_total"
    values = value if isinstance(value, Mapping) else {"": value}
    samples = [
        f'{name}{{{label}="{key}"}} {one}\n' if label else f"{name} {one}\n"
        for key, one in values.items()
    ]
    return "".join([f"# HELP {name} {about}\n# TYPE {name} counter\n", *samples])


def summed(every: Iterable[_Counts | None]) -> _Counts | None:
    """Counts of the same kind, added up; None where there are none."""
    found = [counts for counts in every if counts is not None]
    if not found:
        return None
    return type(found[0])(*map(sum, zip(*map(astuple, found), strict=True)))


def merged(texts: Mapping[str, str]) -> str:
    """The texts of several models as one, each sample with its model as a label.

    Args:
        texts: Of `Figures.text`, by the model's name.
    """
    found: dict[str, list[str]] = {}
    for model, text in texts.items():
        about = ""
        label = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        for line in text.splitlines():
            if line.startswith("#"):
                about = about + line + "\n" if line.startswith("# TYPE") else line + "\n"
                found.setdefault(about, [])
                continue
            name, _, value = line.rpartition(" ")
            name, has_labels, rest = name.partition("{")
            labels = f'model="{label}",{rest}' if has_labels else f'model="{label}"}}'
            found[about].append(f"{name}{{{labels} {value}\n")
    return "".join(about + "".join(lines) for about, lines in found.items() if lines)
