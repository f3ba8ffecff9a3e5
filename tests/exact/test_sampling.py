"""Sampling: the target's own distribution, and the same tokens with and without drafts."""

import sys

import numpy as np
import pytest

from answers import tokens_of
from coordgen_rs import (
    Drafter,
    HostDrafter,
    Sampling,
    SeenTokens,
    StepInputs,
    Tokenizer,
    generate,
    make_drafter,
    plain,
)
from coordgen_rs.errors import (
    EmptyPromptError,
    NonFiniteLogitsError,
    OptionError,
    ShapeError,
    TokenOutOfRangeError,
)
from corpus import HELD_OUT_SEEDS, TASKS, example
from scripted import ScriptedDrafter

CHI_SQUARE_OF_8_AT_1E_4 = 29.9
"""Exceeded with a probability of 1e-4 by counts of eight tokens."""


def assert_follows(counts, logits):
    weights = np.exp(logits - logits.max())
    expected = counts.sum() * weights / weights.sum()
    assert ((counts - expected) ** 2 / expected).sum() < CHI_SQUARE_OF_8_AT_1E_4


class MarkovSession:
    """A target of eight tokens whose logits hang on the token before; rows may be any tree."""

    capacity, vocab_size, end_token_ids, step_costs = 64, 8, (), None
    allowed_commits = exact_commits = ("canonical", "compact")

    def __init__(self, real):
        self.step_inputs = real.step_inputs
        self.logits = np.random.default_rng(3).normal(0, 1.5, (8, 8)).astype(np.float32)
        self.length = self.request = 0

    def prefill(self, token_ids, **_):
        self.length += len(token_ids)

    def step(self, inputs):
        return self.logits[inputs.input_ids]

    def commit(self, rows):
        self.length += len(rows)

    def rewind(self, length):
        self.length = length


@pytest.mark.parametrize("commit", ["canonical", "compact"])
def test_accepting_on_trees_keeps_the_distribution(session_of, commit):
    """Chi-square of each token given the one before, over answers made with branching drafts."""
    session = MarkovSession(session_of("embedded", "fp32"))
    fork = ([0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 2])
    counts = np.zeros((8, 8))
    accepted = 0
    for seed in range(600):
        drafter = ScriptedDrafter(make_drafter(session, "automaton", commit), lambda _: fork)
        steps = list(
            generate(session, [2], max_new_tokens=25, drafter=drafter, sampling=Sampling(seed=seed))
        )
        tokens = [2, *tokens_of(steps)]
        accepted += sum(step.accept_len for step in steps)
        np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
    assert accepted > 1000
    for before in range(8):
        assert_follows(counts[before], session.logits[before])


@pytest.mark.parametrize("draft", ["auto", "prompt-lookup"])
def test_same_seed_gives_the_same_text_with_and_without_drafts(session_of, draft):
    session = session_of("embedded", "fp32")
    tokenizer = Tokenizer.of(session.bundle)
    answers = []
    for index in range(8):
        prompt = tokenizer.encode(example(TASKS[index % 4], HELD_OUT_SEEDS[index]).prompt)
        sampling = Sampling(0.9, top_k=40, top_p=0.95, seed=index % 3)
        expected = tokens_of(plain(session, prompt, max_new_tokens=40, sampling=sampling))
        drafter = make_drafter(session, draft)
        got = tokens_of(
            generate(session, prompt, max_new_tokens=40, drafter=drafter, sampling=sampling)
        )
        assert got == expected
        answers.append(expected)
    prompt = tokenizer.encode(example("summary", HELD_OUT_SEEDS[0]).prompt)
    others = {
        tuple(tokens_of(plain(session, prompt, max_new_tokens=40, sampling=Sampling(2, seed=s))))
        for s in range(5)
    }
    assert len(others) > 1


def test_refused_begin_leaves_the_running_request_as_it_was(session_of):
    session = MarkovSession(session_of("embedded", "fp32"))
    session.logits[2] = [0, 0, 0, 0, 0.1, 0, 0, 0]
    drafter = make_drafter(session, "automaton")
    drafter.begin(np.array([2], np.uint32), 5)
    sampling = Sampling(100.0, seed=2)
    with pytest.raises(EmptyPromptError):
        drafter.begin(np.array([], np.uint32), 5, sampling)
    logits = session.step(drafter.propose(0))
    assert sampling.draw(logits[0], 0) != 4
    assert drafter.accept(logits).token_ids[0] == 4


@pytest.mark.parametrize(
    "options",
    [
        *({"temperature": -1}, {"top_p": 0}, {"top_p": 1.5}, {"min_p": 1.5}, {"top_k": -1}),
        *({"repetition_penalty": 0}, {"presence_penalty": 2.1}, {"frequency_penalty": -2.1}),
        *({"frequency_penalty": float("nan")}, {"seed": -1}, {"seed": 2**64}),
    ],
)
def test_options_out_of_range_are_named(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        Sampling(**options)


def test_unusable_logits_are_named():
    with pytest.raises(NonFiniteLogitsError):
        Sampling().draw(np.array([1, np.nan], np.float32), 0)
    with pytest.raises(ShapeError):
        Sampling().draw(np.array([1.0, 2.0]), 0)


def test_what_cannot_be_a_bias_is_refused_by_name():
    for bias in (100.5, np.nan, np.inf):
        with pytest.raises(OptionError, match=r"logit_bias is .* for token 3"):
            Sampling(logit_bias={3: bias})
    for token in (-1, 2**32):
        with pytest.raises(OptionError, match=f"a token id of logit_bias is {token}"):
            Sampling(logit_bias={token: 1.0})
    biased = Sampling(0, logit_bias={4: 1.0})
    with pytest.raises(TokenOutOfRangeError, match="token id 4"):
        biased.draw(np.zeros(4, np.float32), 0)
    with pytest.raises(TokenOutOfRangeError, match="token id 4"):
        biased.check_tokens(4)
    biased.check_tokens(5)
    assert biased == Sampling(0, logit_bias={4: 1.0}) != Sampling(0, logit_bias={4: 2.0})


@pytest.mark.parametrize("loop", [plain, generate])
def test_a_bias_on_an_unknown_token_is_refused_before_anything_runs(session_of, loop):
    session = session_of("embedded", "fp32")
    sampling = Sampling(0, logit_bias={session.vocab_size: 1.0})
    with pytest.raises(TokenOutOfRangeError, match=f"token id {session.vocab_size}"):
        next(loop(session, np.array([1], np.uint32), sampling=sampling))


@pytest.mark.parametrize("loop", [plain, generate])
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_biases_that_leave_no_token_are_told_as_such(session_of, loop, temperature):
    session = session_of("embedded", "fp32")
    no_token = dict.fromkeys(range(session.vocab_size), -np.inf)
    sampling = Sampling(temperature, logit_bias=no_token)
    with pytest.raises(OptionError, match="logit_bias forbids each"):
        next(loop(session, np.array([1], np.uint32), sampling=sampling))
    with pytest.raises(NonFiniteLogitsError):
        sampling.draw(np.full(session.vocab_size, np.nan, np.float32), 0)


def test_seen_tokens_refuse_what_is_of_another_vocabulary_and_stay_as_they_are():
    seen = SeenTokens(4)
    with pytest.raises(TokenOutOfRangeError, match="token id 4"):
        seen.extend(np.array([1, 4], np.uint32))
    assert len(seen) == 0
    with pytest.raises(ShapeError, match="5 scores"):
        Sampling(repetition_penalty=1.5).draw(np.zeros(5, np.float32), 0, seen)


def test_a_vocabulary_that_no_model_has_is_refused_before_it_takes_memory():
    # A bit is kept for each id up to the largest that was told.
    most, message = 2**24, "vocab_size is 16777217, but must be 1 to 16,777,216"
    for number in (most + 1, 2**32 - 1, 2**70):
        with pytest.raises(OptionError, match="vocab_size is"):
            SeenTokens(number)
    array, mask = np.zeros((1, 1), np.int64), np.zeros((1, 1, 1, 8), np.float32)
    step_inputs = StepInputs(array, array.copy(), mask)
    for made in (SeenTokens, HostDrafter, lambda size: Drafter([step_inputs], size)):
        with pytest.raises(OptionError, match=message):
            made(most + 1)
    seen = SeenTokens(most)
    seen.extend(np.array([most - 1], np.uint32))
    assert len(seen) == 1


def test_plain_decoding_tells_a_penalty_each_token_once(session_of, monkeypatch):
    told = []

    class Counted:
        def __init__(self, vocab_size):
            self.seen = SeenTokens(vocab_size)

        def restart(self, prompt_ids):
            told.append(len(prompt_ids))
            self.seen.restart(prompt_ids)

        def extend(self, tokens):
            told.append(len(tokens))
            self.seen.extend(tokens)

    class Drawing:
        penalises = True

        def check_tokens(self, vocab_size):
            pass

        def draw(self, logits, index, seen):
            return Sampling(0.7, repetition_penalty=1.3, seed=4).draw(logits, index, seen.seen)

    session = session_of("embedded", "fp32")
    prompt = Tokenizer.of(session.bundle).encode(example("rag", HELD_OUT_SEEDS[2]).prompt)
    sampling = Sampling(0.7, repetition_penalty=1.3, seed=4)
    expected = tokens_of(generate(session, prompt, max_new_tokens=12, sampling=sampling))
    module = sys.modules[plain.__module__]
    monkeypatch.setattr(module, "SeenTokens", Counted)
    monkeypatch.setattr(module, "Sampling", Drawing)
    said = tokens_of(plain(session, prompt, max_new_tokens=12, sampling=Drawing()))
    assert said == expected
    assert told == [len(prompt)] + [1] * len(said)
