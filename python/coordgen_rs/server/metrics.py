"""What the server has done since it began: counts of requests and tokens, for Prometheus.

In: finished answers, in the worker's threads. Out: text in the format of Prometheus (exposition
format 0.0.4). Draft tokens are labelled by the source that proposed them.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Literal, NamedTuple

from coordgen_rs.model.answer import Answer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Counts = Mapping[str, Mapping[str, float]]
"""What a model counts itself, by the prefix and the names of `_OF_MODEL`."""

_OUTCOMES = ("finished", "given_up", "failed", "refused")
_SUMS: dict[str, tuple[str, Callable[[Answer, float], float]]] = {
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

_OF_MODEL = {
    "shared": {
        "runs": "Runs of the graphs that requests shared.",
        "requests": "Requests that had rows in these runs, counted once for each run.",
        "rows": "Rows of these runs.",
        "decode_rows": "Rows of these runs that verified tokens of answers.",
        "prompt_tokens_beside": "Tokens of prompts that were read while others were answered.",
    },
    "prefix_store": {
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
    },
}
_GAUGES = {
    "requests_processing": "Requests being answered.",
    "requests_deferred": "Requests waiting for their turn.",
    "places": "Requests that are answered at a time.",
}


class Family(NamedTuple):
    """A metric.

    Attributes:
        name: Its name.
        kind: "gauge" or "counter".
        about: What it counts.
        samples: Its values, by the values of the label; under "" where there is none.
        label: The label's name.
    """

    name: str
    kind: str
    about: str
    samples: Mapping[str, float]
    label: str = ""


class Metrics:
    """Counts of a model since the server began.

    Attributes:
        outcomes: Requests by how they ended: "finished" whole; "given_up", as their client went
            away; "failed" after their turn had come; "refused", as the queue was full.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = dict.fromkeys(_OUTCOMES, 0)
        self._lock = Lock()  # answers end in several threads
        self._sums: dict[str, float] = dict.fromkeys(_SUMS, 0)
        self._proposed, self._accepted = Counter[str](), Counter[str]()

    def add(self, answer: Answer, queued_s: float, *, is_given_up: bool) -> None:
        """Count an answer, whole or given up."""
        self.count("given_up" if is_given_up else "finished")
        with self._lock:
            for name, (_, of) in _SUMS.items():
                self._sums[name] += of(answer, queued_s)
            for source, counts in answer.stats.per_source.items():
                self._proposed[source] += counts["proposed"]
                self._accepted[source] += counts["accepted"]

    def count(self, outcome: Literal["finished", "given_up", "failed", "refused"]) -> None:
        """Count a request by how it has ended, where there is no answer to count."""
        with self._lock:
            self.outcomes[outcome] += 1

    def families(
        self, *, num_running: int, num_waiting: int, num_slots: int, counts: Counts
    ) -> list[Family]:
        """All metrics of the model.

        Args:
            num_running: Requests that are answered now.
            num_waiting: Requests that wait now.
            num_slots: How many are answered at a time.
            counts: What the model counts itself.
        """
        now = (num_running, num_waiting, num_slots)
        found = [
            Family(f"coordgen_{name}", "gauge", about, {"": value})
            for (name, about), value in zip(_GAUGES.items(), now, strict=True)
        ]
        with self._lock:
            outcomes = dict(self.outcomes)
            found.append(_counter("requests", "Requests by how they ended.", outcomes, "outcome"))
            found += [
                _counter(name, about, {"": self._sums[name]}) for name, (about, _) in _SUMS.items()
            ]
            for kind, did, by in (
                ("draft", "proposed", self._proposed),
                ("accepted", "accepted", self._accepted),
            ):
                name, about = f"spec_decode_num_{kind}_tokens", f"Draft tokens {did}, by source."
                found.append(_counter(name, about, dict(sorted(by.items())), "source"))
        return found + [
            _counter(f"{prefix}_{name}", about, {"": counts[prefix][name]})
            for prefix, abouts in _OF_MODEL.items()
            if prefix in counts
            for name, about in abouts.items()
        ]


def _counter(name: str, about: str, samples: Mapping[str, float], label: str = "") -> Family:
    return Family(f"coordgen_{name}_total", "counter", about, samples, label)


def added(some: Counts, more: Counts) -> Counts:
    """Counts added up."""
    found = {prefix: dict(counts) for prefix, counts in some.items()}
    for prefix, counts in more.items():
        own = found.setdefault(prefix, {})
        for name, value in counts.items():
            own[name] = own.get(name, 0) + value
    return found


def exposition(models: Mapping[str, Sequence[Family]]) -> str:
    """The metrics of models as text, each sample with its model as a label if there are several.

    Args:
        models: Those of each, by its name.
    """
    is_alone, found = len(models) == 1, dict[str, list[str]]()
    for model, families in models.items():
        escaped = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        own = "" if is_alone else f'model="{escaped}"'
        for name, kind, about, samples, label in families:
            lines = found.setdefault(f"# HELP {name} {about}\n# TYPE {name} {kind}\n", [])
            for value, count in samples.items():
                labels = ",".join(filter(None, (own, f'{label}="{value}"' if label else "")))
                lines.append(f"{name}{{{labels}}} {count}\n" if labels else f"{name} {count}\n")
    return "".join(head + "".join(lines) for head, lines in found.items() if lines or is_alone)
