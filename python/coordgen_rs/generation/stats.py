"""What one request took: filled by `generate` and `plain`, printed by `generate --json`."""

import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coordgen_rs._core import SwitchReport
from coordgen_rs.runtime.session import ExpertReport

OfExperts = Callable[[], ExpertReport | None]
"""What a session tells of its experts so far."""


@dataclass
class Stats:
    """Counts and times of one request.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        reused_tokens: How many of them were not computed, as the session held them already.
        read_again_tokens: How many of the others the session had held, too: the states of recurrent
            layers can be gone back to at some lengths only.
        new_tokens: Tokens of the answer, including the end token.
        steps: Verifications, one run of a decode graph each.
        accept_histogram: Entry `n` counts the steps that accepted `n` draft tokens.
        per_source: Draft tokens by the source that proposed them: `{name: {"proposed": n,
            "accepted": m}}`.
        prefill_s: Seconds of the prefill.
        first_token_s: Seconds until the first step's tokens, prefill included.
        decode_s: Seconds from the prefill to the last token, without the consumer's own time.
        switching: How loading the target's blocks went; None if nothing was loaded.
        experts: What was asked of experts and read; None without any, or without a memory budget.
        drafting_us: Microseconds of `propose` and `accept` together, one entry per step.
        finish_reason: "stop" (end token or stop string), "grammar" (the grammar is complete),
            "length" (token limit) or "capacity" (cache full); None while running, and if the
            request was ended before. A `Model`'s may be ahead of its reader.
        cut_at: How many tokens the answer has where a stop string ended it, less than `new_tokens`
            if its last step went on; None if none did.
        stop_string: The stop string that ended it; None if none did.
        seed: What sampling began from, given or drawn; None where nothing is sampled.
        clock: Tells the time in seconds; another one where it is simulated.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    read_again_tokens: int = 0
    new_tokens: int = 0
    steps: int = 0
    accept_histogram: list[int] = field(default_factory=list)
    per_source: dict[str, dict[str, int]] = field(default_factory=dict)
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    switching: SwitchReport | None = None
    experts: ExpertReport | None = None
    drafting_us: list[float] = field(default_factory=list, repr=False)
    finish_reason: str | None = None
    cut_at: int | None = None
    stop_string: str | None = None
    seed: int | None = None
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False, compare=False)
    _experts: tuple[OfExperts, ExpertReport] | None = field(default=None, repr=False, compare=False)
    _part: str | None = field(default=None, repr=False, compare=False)
    _since: float = field(default=0.0, repr=False, compare=False)
    _step_drafting_us: float = field(default=0.0, repr=False, compare=False)

    @property
    def tokens_per_step(self) -> float:
        """Mean of `accept_len + 1`: new tokens per verification (papers: acceptance ratio, MAT)."""
        return self.new_tokens / self.steps if self.steps else 0.0

    @property
    def tokens_per_s(self) -> float:
        """New tokens per second of decoding, prefill excluded."""
        return self.new_tokens / self.decode_s if self.decode_s else 0.0

    def __str__(self) -> str:
        """The figures that people ask for first, on a line each."""
        again = f", {self.read_again_tokens:,} read again" if self.read_again_tokens else ""
        told = [
            f"prompt tokens: {self.prompt_tokens:,}, {self.reused_tokens:,} of them reused{again}, "
            f"in {self.prefill_s:.2f} s",
            f"new tokens: {self.new_tokens:,} in {self.decode_s:.2f} s, "
            f"{self.tokens_per_s:.0f} tokens/s",
            f"steps: {self.steps:,}, {self.tokens_per_step:.2f} tokens_per_step",
        ]
        if self.experts is not None:
            told.append(f"experts: {self.experts}")
        if self.finish_reason is not None:
            told.append(f"finish_reason: {self.finish_reason}")
        if self.seed is not None:
            told.append(f"seed: {self.seed}")
        return "\n".join(told)

    def follow(self, of_experts: OfExperts | None) -> None:
        """Tell of experts, from now on: what `of_experts` gives, if it gives anything."""
        before = None if of_experts is None else of_experts()
        self._experts = None if of_experts is None or before is None else (of_experts, before)

    def _look_at_experts(self) -> None:
        if self._experts is not None:
            of_experts, before = self._experts
            now = of_experts()
            self.experts = None if now is None else now.since(before)

    @contextmanager
    def prefill(self, prompt: Sized, num_reused: int = 0, num_again: int = 0) -> Iterator[None]:
        """Measure the reading of the prompt, of which `num_reused` tokens are there already.

        `num_again` more had been read before.
        """
        self.prompt_tokens, self.reused_tokens = len(prompt), num_reused
        self.read_again_tokens = num_again
        self._part, self._step_drafting_us = None, 0.0  # of a step that failed
        with self.reading():
            yield
        self._look_at_experts()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Measure a part of the prefill."""
        start = self.clock()
        try:
            yield
        finally:
            self.prefill_s += self.clock() - start

    def begin(self, part: str) -> None:
        """Begin a part of a step, and end the one before it.

        Args:
            part: "draft" and "accept" count as drafting, all others as decoding alone.
        """
        self.pause()
        self._part, self._since = part, self.clock()

    def pause(self) -> None:
        """End the current part; what follows is the consumer's time."""
        if self._part is None:
            return
        seconds = self.clock() - self._since
        self.decode_s += seconds
        if self._part in ("draft", "accept"):
            self._step_drafting_us += 1e6 * seconds
        self._part = None

    def end_step(self, num_tokens: int, finish_reason: str | None) -> None:
        """End a step.

        Args:
            num_tokens: New tokens of the step.
            finish_reason: Why it was the last; None while the request continues.
        """
        self.pause()
        if self.steps == 0:
            self.first_token_s = self.prefill_s + self.decode_s
        self.steps += 1
        self.new_tokens += num_tokens
        self.drafting_us.append(self._step_drafting_us)
        self._step_drafting_us = 0.0
        self.finish_reason = finish_reason
        self._look_at_experts()

    def drafting_percentiles(self) -> dict[str, float]:
        """Median and 99th percentile of `propose` + `accept`, microseconds per step."""
        if not self.drafting_us:
            return {"p50": 0.0, "p99": 0.0}
        # np.percentile gives the same, but loads numpy.ma, a third of NumPy.
        ordered = np.sort(self.drafting_us)
        last = len(ordered) - 1
        p50, p99 = np.interp([0.50 * last, 0.99 * last], np.arange(len(ordered)), ordered)
        return {"p50": round(float(p50), 2), "p99": round(float(p99), 2)}

    def to_json(self) -> dict[str, Any]:
        """The figures under the names that `coordgen generate --json` prints."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "read_again_tokens": self.read_again_tokens,
            "new_tokens": self.new_tokens,
            "steps": self.steps,
            "tokens_per_step": round(self.tokens_per_step, 4),
            "accept_histogram": self.accept_histogram,
            "per_source": self.per_source,
            "prefill_s": round(self.prefill_s, 6),
            "first_token_s": round(self.first_token_s, 6),
            "decode_s": round(self.decode_s, 6),
            "tokens_per_s": round(self.tokens_per_s, 2),
            "switching": None if self.switching is None else self.switching.to_json(),
            "experts": None if self.experts is None else self.experts.to_json(),
            "draft_us": self.drafting_percentiles(),
            "finish_reason": self.finish_reason,
            "seed": self.seed,
        }
