"""Requests of a real model that are answered together: each says what it says alone."""

import os
from importlib.util import find_spec

import pytest

from checkpoints import exported
from coordgen_rs import Model
from coordgen_rs.errors import NonFiniteLogitsError
from coordgen_rs.runtime.sequence import Sequence
from real_model import GGUF, QUESTIONS, chat, needs_real_model
from real_requests import alone, random_requests, together

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
    requests = check(bundle, seed=1, count=24)
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
