"""Top-k of logits, calibration and reuse through the binding: right, bounded, and never trusted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgen_rs._core import (
    CallOrderError,
    NonFiniteLogitsError,
    ShapeError,
    top_k,
)
from ruled_target import (
    VOCAB_SIZE,
    commits,
    make_drafter,
    plain,
    prompts,
    run_target,
    uint32,
)

ALL_SOURCES = ("automaton", "prompt-lookup", "calibration", "reuse")
scores = st.integers(-3, 3).map(float) | st.just(-np.inf)


@given(st.lists(st.lists(scores, min_size=12, max_size=12), min_size=1, max_size=4))
def test_top_k_equals_a_sort(rows):
    logits = np.array(rows, np.float32)
    if not np.isfinite(logits.max(1)).all():
        with pytest.raises(NonFiniteLogitsError):
            top_k(logits)
        return
    token_ids, probabilities = top_k(logits)
    expected = np.argsort(-logits, 1, kind="stable")[:, :8]  # stable: ties to the lowest id
    softmax = np.exp(logits - logits.max(1, keepdims=True))
    softmax /= softmax.sum(1, keepdims=True)
    softmax = np.take_along_axis(softmax, expected, 1)
    np.testing.assert_array_equal(token_ids, np.where(softmax > 0, expected, 0))
    np.testing.assert_allclose(probabilities, softmax, rtol=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("columns", [5, 700, 40_000])
def test_unusable_rows_are_named(bad, columns):
    logits = np.zeros((3, columns), np.float32)
    logits[1, columns - 2] = bad
    if bad == -np.inf:
        logits[1] = bad
    with pytest.raises(NonFiniteLogitsError, match="row 1 "):
        top_k(logits)


def test_logits_are_read_in_place_or_refused():
    logits = np.zeros((4, 6), np.float32)
    no_columns = np.zeros((3, 0), np.float32)
    for wrong in (logits[:, ::2], logits.astype(np.float64), logits[0], no_columns):
        with pytest.raises(ShapeError):
            top_k(wrong)


@settings(max_examples=200)
@given(
    prompts,
    st.integers(0, 4),
    st.integers(1, 40),
    commits,
    st.permutations(ALL_SOURCES),
    st.sampled_from([None, [1.0, 1.1, 1.2]]),
    st.integers(0, 2**32 - 1),
)
def test_output_equals_plain_decoding_whatever_the_prompt_expected(
    prompt, seed, max_new_tokens, commit, sources, costs, noise
):
    drafter = make_drafter(sources=sources, costs=costs, commit=commit)
    assert drafter.reads_prefill
    expected = np.random.default_rng(noise).normal(size=(len(prompt), VOCAB_SIZE)) * 4
    for _ in range(2):  # a drafter serves one request after the other
        text = list(prompt)
        drafter.begin(uint32(prompt), max_new_tokens)
        for part in np.array_split(expected.astype(np.float32)[:-1], 3):
            drafter.prefilled(part)
        while drafter.finish_reason is None:
            inputs = drafter.propose(len(text) - 1)
            logits = run_target(text, drafter.draft, inputs.rows, seed)
            text += drafter.accept(logits).token_ids.tolist()
        assert text[len(prompt) :] == plain(prompt, seed, max_new_tokens)


def test_what_the_prompt_expected_is_drafted():
    drafter = make_drafter(sources=("calibration",))
    drafter.begin(uint32([0, 1, 2, 0]), 20)
    # After 0 the target expects 2, not the 1 that stands there; after 2 it expects 3.
    drafter.prefilled(9 * np.eye(VOCAB_SIZE, dtype=np.float32)[[2, 3, 3]])
    drafter.propose(3)
    token_ids, parents = drafter.draft
    assert token_ids[:3].tolist() == [0, 2, 3]
    assert parents[:3].tolist() == [0, 0, 1]


def test_misuse_is_named():
    drafter = make_drafter(sources=("calibration",))
    row = np.zeros((1, VOCAB_SIZE), np.float32)
    with pytest.raises(CallOrderError):
        drafter.prefilled(row)
    drafter.begin(uint32([1, 2]), 5)
    drafter.prefilled(row)
    with pytest.raises(NonFiniteLogitsError, match="row 1 "):
        drafter.prefilled(row * np.nan)
    drafter.prefilled(row)
    with pytest.raises(ShapeError, match="logits of the prompt"):
        drafter.prefilled(row)
    with pytest.raises(ShapeError):
        drafter.prefilled(np.zeros((1, VOCAB_SIZE + 1), np.float32))
    assert not make_drafter(sources=("automaton", "reuse")).reads_prefill


def test_memory_of_a_long_prompt_is_reported_and_bounded():
    drafter = make_drafter(sources=("calibration",))
    drafter.begin(uint32(np.arange(2_048) % VOCAB_SIZE), 5)
    before = drafter.memory_bytes()
    drafter.prefilled(np.zeros((2_047, VOCAB_SIZE), np.float32))
    assert 2_047 * 8 * 8 < drafter.memory_bytes() - before < 1 << 20
