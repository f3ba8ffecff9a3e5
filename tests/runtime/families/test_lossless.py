"""Families with peculiarities: drafts change nothing, and every way back leads to the same bits.

Recurrent layers keep states that cannot be cut as a cache can; a wide step of a mixture reads more
experts than a narrow one; Gemma 4 has caches of different sizes, some of them those of earlier
layers; gpt-oss has sinks and windows. Whatever was drafted, committed, rewound, cancelled or failed
before, the next answer must be that of a session that has done nothing else.
"""

import numpy as np
import pytest

from answers import step_of, tokens_of
from coordgen_rs import Model, PrefixPool, Tokenizer, generate, make_drafter, open_session, plain
from lossless import (
    ALL_SOURCES,
    COMMITS,
    DRAFTS,
    FAMILIES,
    GEMMA4,
    HYBRIDS,
    MIXTURES,
    check_adversarial_drafts,
    check_drafts,
    check_ends,
    check_sampled,
    check_streamed,
    fresh_logits,
    logits_behind,
    prompt_of,
    scripted,
)
from scripted import SCRIPTS

WEIGHTS = {"gpt_oss": ("fp32", "int8", "int4", "keep")}  # kept are experts in MXFP4, beside floats
WEIGHTS |= dict.fromkeys(HYBRIDS, ("fp32", "int8"))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def bundle(bundles, family):
    return bundles(family, "keep" if family == "gpt_oss" else "fp32")


@pytest.fixture(scope="module")
def session(bundle):
    return open_session(bundle)


def test_drafts_change_nothing(bundles, family):
    for weights in WEIGHTS.get(family, ("fp32", "int8", "int4")):
        check_drafts(open_session(bundles(family, weights)), 2 if weights == "fp32" else 1)


def test_adversarial_drafts_change_nothing(session):
    check_adversarial_drafts(session)


def test_an_answer_ends_where_plain_decoding_ends_it(session, monkeypatch):
    check_ends(session, monkeypatch, lambda said: [scripted(session, it, said) for it in SCRIPTS])


@pytest.mark.parametrize("family", [*HYBRIDS, *MIXTURES, *GEMMA4], scope="module")
def test_sampled_answers_and_those_under_a_grammar_are_the_same(session):
    check_sampled(session)


def test_blocks_that_are_streamed_say_the_same(bundle):
    check_streamed(bundle)


@pytest.mark.parametrize("form", ["f16", "q8"])
@pytest.mark.parametrize("family", [*GEMMA4, "gpt_oss"], scope="module")
def test_a_cache_in_fewer_bits_is_exact_too(bundle, form):
    session = open_session(bundle, kv_cache=form)
    assert session.exact_commits == COMMITS
    prompt, options = prompt_of(2), {"max_new_tokens": 40, "ignore_eos": True}
    answer = tokens_of(plain(session, prompt, **options))
    for draft in DRAFTS:
        for commit in COMMITS:
            drafter = make_drafter(session, draft, commit)
            assert tokens_of(generate(session, prompt, drafter=drafter, **options)) == answer


@pytest.mark.parametrize("family", list(MIXTURES), scope="module")
def test_rows_have_the_same_bits_whatever_stands_beside_them(session):
    """Each token behind a prompt with one other, and as one of many siblings."""
    prompt, siblings = prompt_of(2), np.random.default_rng(5).permutation(np.arange(10, 41))

    def logits(tokens):
        session.forget()
        session.prefill(prompt)
        return step_of(session, tokens, [0] * len(tokens))

    together = logits([7, *siblings])
    np.testing.assert_array_equal(logits([7])[0], together[0])
    for number in (0, 3, 17, 30):
        np.testing.assert_array_equal(logits([7, siblings[number]])[1], together[number + 1])


@pytest.mark.parametrize("blocks", [1, 3, 6])
@pytest.mark.parametrize("family", GEMMA4, scope="module")
def test_wherever_layers_are_cut_the_bits_are_the_same(bundles, family, session, blocks):
    """Also where a layer reads the keys of one in another block."""
    cut = open_session(bundles(family, blocks=blocks))
    for seed in range(2):
        tokens = prompt_of(seed, 200)
        np.testing.assert_array_equal(fresh_logits(cut, tokens), fresh_logits(session, tokens))


@pytest.mark.parametrize("family", ["gpt_oss"], scope="module")
def test_a_prompt_says_the_same_after_a_rewind_as_at_first(bundle, session):
    """Also where a window has moved on behind what is read again."""
    for length in (200, 130, 24, 5):
        prompt = prompt_of(11, 210)[:length]
        expected = tokens_of(plain(open_session(bundle), prompt, max_new_tokens=20))
        assert tokens_of(generate(session, prompt, max_new_tokens=20)) == expected


class Failing:
    """Makes the nth run of a block from now on fail."""

    def __init__(self, session, monkeypatch):
        self._run, self._left = session.device.run, None
        monkeypatch.setattr(session.device, "run", self._counted)

    def within(self, runs):
        self._left = runs

    def _counted(self, *arguments):
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self._left = None
                raise OSError("gone")
        self._run(*arguments)


@pytest.mark.parametrize("family", [*HYBRIDS, *GEMMA4], scope="module")
def test_random_rewinds_cancels_and_failures_leave_what_a_fresh_session_has(
    bundle, session, monkeypatch
):
    other, failing = open_session(bundle), Failing(session, monkeypatch)
    pool, random = PrefixPool(8 << 20), np.random.default_rng(7)
    drafters = [make_drafter(session, draft) for draft in ("auto", "sam", ALL_SOURCES)]
    prompts = [prompt_of(seed, 120) for seed in range(4)]
    saved, failures = None, 0
    for _ in range(100):
        what = random.integers(6)
        held = session.reusable_ids
        try:
            if what in (0, 1):  # a request, given up half-way, or one of whose runs fails
                prompt = prompts[random.integers(len(prompts))][: random.integers(2, 121)]
                drafter = drafters[random.integers(len(drafters))]
                steps = generate(
                    session, prompt, drafter=drafter, reuse_prefix=True, prefixes=pool,
                    max_new_tokens=int(random.integers(1, 40)), ignore_eos=True,
                )  # fmt: skip
                if what == 1:
                    failing.within(int(random.integers(30)))
                for _ in range(random.integers(1, 20)):
                    next(steps, None)
                steps.close()
            elif what == 2:
                session.rewind(int(random.integers(session.length + 1)))
            elif what == 3:  # a prompt that is read in parts, and given up between them
                tokens = random.integers(3, 128, random.integers(1, 400)).astype(np.uint32)
                tokens = tokens[: session.capacity - session.length - 60]
                failing.within(int(random.integers(1, 8)))
                session.prefill(tokens)
            elif what == 4:
                saved = session.saved_prefix()
            elif saved is not None:
                session.restore_prefix(saved, int(random.integers(len(saved.token_ids) + 1)))
        except OSError:
            failures += 1
        failing.within(1 << 30)
        if what == 2:
            assert session.reusable_ids.tolist() == held[: session.length].tolist()
        tokens = np.append(session.reusable_ids, random.integers(3, 128)).astype(np.uint32)
        tokens = tokens[: session.capacity - 40]
        if len(tokens) <= session.length:
            session.rewind(len(tokens) - 1)
        np.testing.assert_array_equal(logits_behind(session, tokens), fresh_logits(other, tokens))
    assert failures > 6


def test_models_open_and_answer_in_turns(bundle):
    with Model.open(bundle, prefix_memory=64 << 20) as model:
        prompts = [Tokenizer.of(model._session.bundle).decode(prompt_of(n, 150)) for n in (1, 2)]
        expected = [model.generate(prompt, max_new_tokens=12).text for prompt in prompts]
        again = [model.generate(prompt, max_new_tokens=12) for prompt in prompts * 2]
        assert [answer.text for answer in again] == expected * 2
        assert min(answer.stats.reused_tokens for answer in again) > 0
        other = model.generate(prompts[0], max_new_tokens=12, namespace="other")
        assert (other.text, other.stats.reused_tokens) == (expected[0], 0)
