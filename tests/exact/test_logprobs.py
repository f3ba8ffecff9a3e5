"""How likely tokens were: the same bits with and without drafts, and those of the target's rows."""

import threading

import numpy as np
import pytest

from coordgen_rs import Lark, Model, Sampling, Tokenizer, generate, make_drafter, plain
from coordgen_rs._core import token_logprob
from coordgen_rs.errors import NonFiniteLogitsError, OptionError, ShapeError, TokenOutOfRangeError
from coordgen_rs.generation.step import TokenLogprob
from coordgen_rs.lab.check import SideBranchDrafter
from corpus import HELD_OUT_SEEDS, example
from scripted import SCRIPTS, ScriptedDrafter

CHOICES = (
    None,
    Sampling(0.9, top_p=0.9, seed=3),
    Sampling(0, presence_penalty=0.7, frequency_penalty=0.4, logit_bias={300: 2.0}),
    Sampling(1.1, repetition_penalty=1.2, frequency_penalty=-0.2, logit_bias={9: -5.0}, seed=8),
)
SENTENCES = Lark(r"start: sentence+" + "\n" + r"sentence: /[A-Z][a-z ]{2,20}\. /")


def told(steps):
    """Tokens, and what is told of each."""
    steps = list(steps)
    logprobs = [one for step in steps for one in step.logprobs]
    assert [one.token_id for one in logprobs] == [t for step in steps for t in step.token_ids]
    return logprobs


def log_softmax(row):
    scores = row.astype(np.float64)
    return scores - scores.max() - np.log(np.exp(scores - scores.max()).sum())


def prompt_of(session, number=0):
    return Tokenizer.of(session.bundle).encode(example("rag", HELD_OUT_SEEDS[number]).prompt)


@pytest.mark.parametrize("choice", CHOICES, ids=["greedy", "drawn", "changed", "both"])
@pytest.mark.parametrize("commit", ["canonical", "compact"])
def test_logprobs_are_the_same_bits_with_and_without_drafts(session_of, commit, choice):
    session = session_of("embedded", "int8")
    prompt = prompt_of(session)
    options = {"max_new_tokens": 30, "sampling": choice, "logprobs": 4}
    expected = told(plain(session, prompt, **options))
    answer = [one.token_id for one in expected]
    text = np.array([prompt[-1], *answer], np.uint32)
    drafters = [make_drafter(session, draft, commit) for draft in ("auto", "sam", "diaa")]
    drafters.append(SideBranchDrafter(make_drafter(session, (), commit), text, session.vocab_size))
    for script in SCRIPTS:
        drafter = make_drafter(session, (), commit)
        drafters.append(
            ScriptedDrafter(drafter, lambda given, script=script: script(answer, given))
        )
    for drafter in drafters:
        assert told(generate(session, prompt, drafter=drafter, **options)) == expected


@pytest.mark.parametrize("choice", CHOICES, ids=["greedy", "drawn", "changed", "both"])
@pytest.mark.parametrize("is_ruled", [False, True])
def test_they_are_of_the_targets_rows_before_anything_is_done_to_them(
    model, monkeypatch, is_ruled, choice
):
    if is_ruled:
        pytest.importorskip("llguidance", reason="grammars need llguidance")
    session, rows = model._session, []
    grammar = model._vocabulary.matcher(SENTENCES) if is_ruled else None
    prompt, step = prompt_of(session, 1), session.step

    def watched(inputs):
        logits = step(inputs)
        rows.append(logits[0].copy())
        return logits

    options = {"max_new_tokens": 20, "sampling": choice, "logprobs": 20, "grammar": grammar}
    with monkeypatch.context() as watching:
        watching.setattr(session, "step", watched)
        found = told(plain(session, prompt, **options))
    assert len(rows) == len(found) > 0
    for row, one in zip(rows, found, strict=True):
        expected = log_softmax(row)
        assert abs(one.logprob - expected[one.token_id]) < 1e-5
        best = np.argsort(-row, kind="stable")[:20]
        assert [other.token_id for other in one.top] == best.tolist()
        assert np.abs([other.logprob for other in one.top] - expected[best]).max() < 1e-5
    assert told(generate(session, prompt, **options)) == found


@pytest.fixture(scope="module")
def model(bundle_of):
    with Model.open(bundle_of("embedded", "fp32")) as model:
        yield model


def test_an_answer_has_one_for_each_token_also_where_a_stop_string_ends_it(model):
    prompt = example("summary", HELD_OUT_SEEDS[2]).prompt
    whole = model.generate(prompt, max_new_tokens=40, logprobs=2)
    assert [one.token_id for one in whole.logprobs] == [*whole.token_ids]
    stop = whole.text[len(whole.text) // 2 :][:4]
    for drafts in (True, False):
        cut = model.generate(prompt, max_new_tokens=40, logprobs=2, stop=stop, drafts=drafts)
        assert cut.logprobs == whole.logprobs[: len(cut.token_ids)]
        assert len(cut.token_ids) < len(whole.token_ids)
    with model.stream(prompt, max_new_tokens=40, logprobs=2) as stream:
        gains = list(iter(stream.step, None))
        assert tuple(one for gain in gains for one in gain.logprobs) == whole.logprobs
        assert stream.answer.logprobs == whole.logprobs
    with model.stream(prompt, max_new_tokens=40, logprobs=2) as stream:
        next(stream)
        part = stream.answer
    assert part.logprobs == whole.logprobs[: len(part.token_ids)]


def test_without_asking_there_are_none(model):
    answer = model.generate("The lamp", max_new_tokens=4)
    assert answer.logprobs is None
    assert model.generate("The lamp", max_new_tokens=4, logprobs=0).logprobs[0].top == ()


def test_requests_that_share_steps_are_told_what_they_would_be_alone(bundle_of, model):
    asked = [
        {"temperature": 0.0},
        {"temperature": 0.9, "seed": 4, "presence_penalty": 0.5},
        {"frequency_penalty": 0.6, "logit_bias": {300: 1.5}},
        {"temperature": 1.2, "seed": 1, "top_k": 9, "drafts": False},
    ]
    prompts = [example("rag", seed).prompt for seed in HELD_OUT_SEEDS[10:14]]
    alone = [
        model.generate(prompt, max_new_tokens=24, logprobs=3, **(options | {"drafts": False}))
        for prompt, options in zip(prompts, asked, strict=True)
    ]
    found = {}
    with Model.open(bundle_of("embedded", "fp32"), parallel=4) as together:
        assert together.why_alone is None

        def answer(number):
            found[number] = together.generate(
                prompts[number], max_new_tokens=24, logprobs=3, **asked[number]
            )

        threads = [threading.Thread(target=answer, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number, expected in enumerate(alone):
        assert found[number].token_ids == expected.token_ids
        assert found[number].logprobs == expected.logprobs


def test_a_row_tells_of_a_token_what_its_softmax_says():
    row = np.array([1.0, 3.0, 3.0, -np.inf], np.float32)
    expected = log_softmax(row)
    logprob, top = token_logprob(row, 0, 4)
    assert abs(logprob - expected[0]) < 1e-6
    assert [token for token, _ in top] == [1, 2, 0, 3]
    assert top[3][1] == -np.inf
    assert TokenLogprob(0, logprob, ()).token_id == 0
    for wrong, error in (
        ((row, 4, 1), TokenOutOfRangeError),
        ((row, 0, 21), OptionError),
        ((row.astype(np.float64), 0, 1), ShapeError),
        ((np.array([np.nan, 1], np.float32), 0, 1), NonFiniteLogitsError),
    ):
        with pytest.raises(error):
            token_logprob(*wrong)


@pytest.mark.parametrize("logprobs", [-1, 21, 1.5, True, "3"])
def test_what_is_no_number_of_alternatives_is_refused_before_anything_runs(model, logprobs):
    with pytest.raises(OptionError, match="logprobs"):
        model.generate("The lamp", logprobs=logprobs)
    session = model._session
    for loop in (plain, generate):
        with pytest.raises(OptionError, match="logprobs"):
            next(loop(session, np.array([1], np.uint32), logprobs=logprobs))
