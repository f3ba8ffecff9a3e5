"""Requests that run together on sequences of one batch, as random programs would have them.

In: a batch, and requests that join, fail and are cancelled at some round. Out: what each has said.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs import (
    JsonSchema,
    Lark,
    OrtSession,
    Regex,
    Sampling,
    Vocabulary,
    generate,
    make_drafter,
    plain,
)
from coordgen_rs.runtime.batch import Batch
from lossless import ALL_SOURCES, prompt_of

DRAFTS: tuple[Any, ...] = ("auto", "coordgen", "token-recycling", "diaa", ALL_SOURCES, None)

GRAMMARS = (
    Regex("([a-f]{3} [0-9]{2};){1,6}"),
    JsonSchema({"type": "array", "items": {"enum": ["red", "green", 7]}, "maxItems": 5}),
    Lark('start: "yes" | "no" (" no")*'),
)


@dataclass(eq=False)
class Asked:
    """A request.

    Attributes:
        prompt: `(tokens,) u32`.
        options: Of `plain`, and of `generate`.
        draft: The method; None decodes plainly.
        joins: The round in which it begins, if there is a place.
        cancelled: After how many tokens it is given up; None for never.
        said: What it has said so far.
        error: What it has ended with.
    """

    prompt: NDArray[np.uint32]
    options: dict[str, Any]
    draft: Any = "auto"
    joins: int = 0
    cancelled: int | None = None
    said: list[int] = field(default_factory=list)
    error: Exception | None = None

    def alone(self, session: OrtSession) -> list[int]:
        """What it says alone, without drafts."""
        steps = plain(session, self.prompt, **self.options)
        said = [token for step in steps for token in step.token_ids]
        return said if self.cancelled is None else said[: self.cancelled]


def random_requests(
    seed: int,
    count: int,
    *,
    longest: int = 120,
    spread: int = 20,
    vocabulary: Vocabulary | None = None,
) -> list[Asked]:
    """Requests of all kinds, joining within the first rounds; the same for the same seed.

    With a vocabulary, a quarter of them follow grammars; some of these are sampled.
    """
    random, asked = np.random.default_rng(seed), list[Asked]()
    for number in range(count):
        prompt = prompt_of(int(random.integers(4)), int(random.integers(6, longest)))
        options: dict[str, Any] = {"max_new_tokens": int(random.integers(1, 60))}
        options["ignore_eos"] = bool(random.integers(2))
        kind = int(random.integers(4))
        if kind == 1:
            options["sampling"] = Sampling(0.8, top_p=0.9, seed=number)
        elif kind == 2:
            changed = {"presence_penalty": 0.5, "frequency_penalty": 0.2, "logit_bias": {9: 2.0}}
            options["sampling"] = Sampling(0.0, repetition_penalty=1.3, **changed)
        elif kind == 3 and vocabulary is not None:
            options["grammar"] = vocabulary.matcher(GRAMMARS[number % len(GRAMMARS)]).another()
            if number % 2:
                options["sampling"] = Sampling(1.1, seed=number)
        draft = DRAFTS[int(random.integers(len(DRAFTS)))]
        cancelled = int(random.integers(1, 20)) if random.integers(5) == 0 else None
        asked.append(Asked(prompt, options, draft, int(random.integers(spread)), cancelled))
    return asked


def run_together(batch: Batch, asked: Sequence[Asked], commit: str = "auto") -> None:
    """Let requests run, each from the round on in which it joins, once a place is free."""
    waiting = sorted(asked, key=lambda it: it.joins)
    free, running = [*batch.sequences], list[Any]()
    for sequence in free:
        sequence.is_driven = True
    number = 0
    while waiting or running:
        while waiting and free and waiting[0].joins <= number:
            it, sequence = waiting.pop(0), free.pop(0)
            if it.draft is None:
                steps = plain(sequence, it.prompt, **it.options)
            else:
                drafter = make_drafter(sequence, it.draft, commit)
                steps = generate(sequence, it.prompt, drafter=drafter, **it.options)
            running.append((it, sequence, steps))
        for one in [*running]:
            it, sequence, steps = one
            try:
                while True:
                    it.said += next(steps).token_ids
                    if it.cancelled is not None and len(it.said) >= it.cancelled:
                        del it.said[it.cancelled :]
                        steps.close()
                        raise StopIteration
                    if sequence.asked is not None:
                        break
            except StopIteration:
                pass
            except Exception as error:
                it.error = error
            else:
                continue
            sequence.withdraw()
            running.remove(one)
            free.append(sequence)
        batch.run()
        number += 1
    for sequence in batch.sequences:
        sequence.is_driven = False
