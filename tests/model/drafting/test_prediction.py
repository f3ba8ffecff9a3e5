"""The user's own prediction as a source: right, edited or wrong, it changes no token."""

import pytest

from answers import tokens_of
from coordgen_rs import Tokenizer, generate, make_drafter, plain
from coordgen_rs.errors import TokenOutOfRangeError
from corpus import HELD_OUT_SEEDS, TASKS, example


@pytest.fixture(scope="module")
def session(session_of):
    return session_of("embedded", "fp32")


@pytest.fixture(scope="module")
def request_of(session):
    """A prompt and the tokens that plain decoding says after it."""
    made = example(TASKS[0], HELD_OUT_SEEDS[0])
    prompt = Tokenizer.of(session.bundle).encode(made.prompt)
    return prompt, tokens_of(plain(session, prompt, max_new_tokens=40))


def edited(answer):
    """One word too many, one too few, and another one."""
    return [*answer[:5], 7, *answer[5:12], *answer[14:20], 9, *answer[21:]]


@pytest.mark.parametrize("commit", ["canonical", "compact"])
@pytest.mark.parametrize(
    "predict",
    [
        lambda answer: answer,
        edited,
        lambda answer: answer[::-1],
        lambda answer: [3] * 200,
        lambda answer: answer + answer,
        lambda answer: [],
    ],
    ids=["right", "edited", "reversed", "other", "too long", "empty"],
)
def test_a_prediction_changes_no_token(session, request_of, predict, commit):
    prompt, answer = request_of
    drafter = make_drafter(session, commit=commit)
    for prediction in (predict(answer), None):  # the next request has none
        steps = generate(session, prompt, max_new_tokens=40, drafter=drafter, prediction=prediction)
        assert tokens_of(steps) == answer


@pytest.mark.parametrize("unknown", [-1, 10**6])
def test_unknown_ids_are_refused_by_name(session, request_of, unknown):
    with pytest.raises(TokenOutOfRangeError, match="prediction"):
        next(generate(session, request_of[0], prediction=[1, unknown]))
