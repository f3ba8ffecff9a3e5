"""Requests of a real model that are answered together: each says what it says alone.

The requests are random, as many programs with one model would make them: some are sampled, some
follow a grammar, some are given up half-way, some fail while their prompt is read.
"""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from random import Random
from typing import Any

import pytest

from checkpoints import exported
from coordgen_rs import JsonSchema, Model, Regex
from coordgen_rs.errors import NonFiniteLogitsError
from coordgen_rs.runtime.batch import Sequence
from corpus import HELD_OUT_SEEDS, TASKS, example
from grammar_schemas import FOLLOWED
from real_model import GGUF, QUESTIONS, chat, needs_real_model

_NAMESPACES = ("default", "alice", "bob")
_SAMPLED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.2, "min_p": 0.05},
    {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.1},
    {"repetition_penalty": 1.2},
)
_GRAMMARS = (
    Regex("(yes|no)(, (yes|no)){0,6}"),
    JsonSchema(FOLLOWED["one of several tools"]),
    JsonSchema(FOLLOWED["an enum of strings"]),
)


class BrokenOffError(Exception):
    """What a request fails with in its callback."""


@dataclass(frozen=True)
class RealRequest:
    """One request.

    Attributes:
        prompt: Its text.
        options: Of `Model.stream`.
        num_chars: After how many characters it is given up; None for never.
        fails: Whether it fails while its prompt is read.
    """

    prompt: str
    options: dict[str, Any] = field(hash=False)
    num_chars: int | None = None
    fails: bool = False

    def said_by(self, model: Model, **more: Any) -> tuple[str, list[int], str | None]:
        """Text, tokens and end of the answer; of one that is given up, the text until then.

        Args:
            model: Answers it.
            more: Further options.
        """
        options = self.options | more
        if self.fails:
            options |= {"on_read": _break_off, "reuse_prefix": False}  # what is kept is not read
        with closing(model.stream(self.prompt, **options)) as stream:
            try:
                text = ""
                for piece in stream:
                    text += piece
                    if self.num_chars is not None and len(text) >= self.num_chars:
                        return text[: self.num_chars], [], None
            except BrokenOffError:
                return "", [], "failed"
            return text, stream.answer.token_ids, stream.answer.finish_reason


def random_requests(seed: int, count: int, *, with_grammars: bool) -> Iterator[RealRequest]:
    """Requests of all kinds; the same for the same seed."""
    for number in range(count):
        random = Random(f"{seed} {number}")
        prompt = chat(random.choice(QUESTIONS))
        if random.random() < 0.2:  # a long one
            held_out = HELD_OUT_SEEDS[random.randrange(1000)]
            prompt = chat(example(random.choice(TASKS), held_out).prompt)
        options: dict[str, Any] = {"max_new_tokens": random.randint(1, 40)}
        options["ignore_eos"] = random.random() < 0.3
        options["namespace"] = random.choice(_NAMESPACES)
        options["drafts"] = random.random() < 0.9
        kind = random.random()
        if kind < 0.3:
            options |= random.choice(_SAMPLED) | {"seed": number}
        elif kind < 0.5 and with_grammars:
            options["grammar"] = random.choice(_GRAMMARS)
            options["ignore_eos"] = False
        elif kind < 0.6:
            options["stop"] = [".", "\n\n"]
        chance = random.random()
        num_chars = random.randint(1, 60) if chance < 0.15 else None
        yield RealRequest(prompt, options, num_chars, fails=chance > 0.95)


def alone(model: Model, requests: Iterable[RealRequest]) -> list[Any]:
    """What each says alone, without drafts, and with nothing that was read before."""
    return [it.said_by(model, drafts=False, reuse_prefix=False) for it in requests]


def together(model: Model, requests: Iterable[RealRequest], num_clients: int) -> list[Any]:
    """What each says beside the others: so many threads ask for the next whenever they are done."""
    with ThreadPoolExecutor(num_clients) as pool:
        return list(pool.map(lambda it: it.said_by(model), requests))


def _break_off(_: int) -> None:
    raise BrokenOffError


pytestmark = needs_real_model


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("together") / "bundle"
    return exported(GGUF, path, weights="keep", context=2048).path


def check(bundle, seed, count, threads=None):
    """That requests say the same in every way of being together."""
    requests = list(random_requests(seed, count, with_grammars=find_spec("llguidance") is not None))
    with Model.open(bundle, threads=threads) as model:
        expected = alone(model, requests)
    options = {"parallel": 4, "prefix_memory": 1 << 27}
    with Model.open(bundle, threads=threads, **options) as model:
        got = together(model, requests, num_clients=7)
        counts = model.runs
    for request, said, wanted in zip(requests, got, expected, strict=True):
        assert said == wanted, request
    assert counts.requests > 1.2 * counts.runs  # some are given up or fail at once
    return requests


def test_random_requests_say_what_they_say_alone(bundle):
    requests = check(bundle, seed=1, count=16)
    assert any(request.fails for request in requests)
    assert any(request.num_chars is not None for request in requests)


def test_a_request_whose_logits_are_no_numbers_ends_alone(bundle, monkeypatch):
    prompts = [chat(question) for question in QUESTIONS[:4]]
    with Model.open(bundle) as model:
        expected = [model.generate(it, max_new_tokens=12).token_ids for it in prompts]
    verified = Sequence.has_verified
    with Model.open(bundle, parallel=4) as model:
        bad = model.tokenizer.encode(prompts[1])

        def spoiled(self, inputs, logits):
            if self._token_ids[: len(bad) - 1].tolist() == bad[:-1].tolist():
                logits[:] = float("nan")
            verified(self, inputs, logits)

        monkeypatch.setattr(Sequence, "has_verified", spoiled)
        got = model.generate_many(prompts, max_new_tokens=12, keep_errors=True)
    assert isinstance(got.pop(1), NonFiniteLogitsError)
    assert [answer.token_ids for answer in got] == [*expected[:1], *expected[2:]]


@pytest.mark.real_full
@pytest.mark.parametrize("seed", range(5))
def test_500_random_requests_say_what_they_say_alone(bundle, seed):
    check(bundle, 100 + seed, count=100, threads=int(os.environ["COORDGEN_THREADS"]))
