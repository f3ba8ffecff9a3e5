"""Models with mixtures of experts: drafts change nothing, whichever experts other rows ask for.

What a row computes depends on the row alone, so a wide step, which reads more experts than a narrow
one, must give the bits of plain decoding.
"""

import numpy as np
import pytest

from answers import tokens_of
from coordgen_rs import (
    Model,
    OrtSession,
    Regex,
    Sampling,
    Stats,
    Tokenizer,
    Vocabulary,
    generate,
    make_drafter,
    open_bundle,
    open_session,
    plain,
)
from coordgen_rs.tools.check import SideBranchDrafter
from coordgen_rs.tools.export import export_checkpoint
from mixtures import CONFIGS, write_mixture
from scripted import SCRIPTS, ScriptedDrafter

ALL_SOURCES = ("automaton", "resumed-copy", "prompt-lookup", "calibration", "reuse", "lookup-table")
DRAFTS = ("auto", "sam", "token-recycling", "diaa", ALL_SOURCES)
WEIGHTS = ("fp32", "int8", "int4")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("mixtures"), {}

    def bundle(family, weights="fp32"):
        if (family, weights) not in made:
            source = folder / family
            if not source.exists():
                write_mixture(source, family, seed=3)
            made[family, weights] = folder / f"{family}-{weights}"
            export_checkpoint(
                source, made[family, weights], weights=weights, blocks=2, context=1024
            )
        return made[family, weights]

    return bundle


@pytest.fixture(scope="module", params=CONFIGS)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def session(bundles, family):
    return open_session(bundles(family))


def prompt_of(seed, length=90):
    """Text that repeats parts of itself, so that lookups find some."""
    random = np.random.default_rng(seed)
    part = random.integers(3, 128, length // 3)
    return np.concatenate([part, random.integers(3, 128, length // 3), part]).astype(np.uint32)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("commit", ["canonical", "compact"])
def test_drafts_change_nothing(bundles, family, weights, commit):
    session = open_session(bundles(family, weights))
    assert session.exact_commits == ("canonical", "compact")
    assert session.is_exact_after_prefill
    assert session.is_exact_at_any_rows
    options = {"max_new_tokens": 60, "ignore_eos": True}
    for seed in range(3):
        prompt = prompt_of(seed)
        answer = tokens_of(plain(session, prompt, **options))
        for draft in DRAFTS:
            drafter = make_drafter(session, draft, commit)
            assert tokens_of(generate(session, prompt, drafter=drafter, **options)) == answer
        text = np.array([prompt[-1], *answer], np.uint32)
        beside = SideBranchDrafter(make_drafter(session, (), commit), text, session.vocab_size)
        assert tokens_of(generate(session, prompt, drafter=beside, **options)) == answer


@pytest.mark.parametrize("commit", ["canonical", "compact"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_adversarial_drafts_change_nothing(session, script, commit):
    for seed in range(3):
        prompt = prompt_of(seed, 40)
        answer = tokens_of(plain(session, prompt, max_new_tokens=50))
        for limit in (1, 2, len(answer) // 2 or 1, 50):
            drafter = ScriptedDrafter(
                make_drafter(session, "auto", commit),
                lambda given, answer=answer: script(answer, given),
            )
            got = tokens_of(generate(session, prompt, max_new_tokens=limit, drafter=drafter))
            assert got == answer[:limit]


def test_an_answer_ends_where_plain_decoding_ends_it(session, monkeypatch):
    """Also where drafts go on behind the end, on the first path or on another."""
    for seed in range(3):
        prompt = prompt_of(seed)
        answer = tokens_of(plain(session, prompt, max_new_tokens=40, ignore_eos=True))
        end = answer[17]
        monkeypatch.setattr(OrtSession, "end_token_ids", (end,))
        expected = answer[: answer.index(end) + 1]
        for script in SCRIPTS:
            drafter = ScriptedDrafter(
                make_drafter(session),
                lambda given, answer=answer, script=script: script(answer, given),
            )
            stats = Stats()
            steps = generate(session, prompt, max_new_tokens=40, drafter=drafter, stats=stats)
            assert tokens_of(steps) == expected
            assert stats.finish_reason == "stop"


def test_sampled_answers_and_those_under_a_grammar_are_the_same(session):
    pytest.importorskip("llguidance", reason="grammars need llguidance")
    vocabulary = Vocabulary(Tokenizer.of(session.bundle), session.vocab_size, session.end_token_ids)
    grammar = vocabulary.matcher(Regex("([a-f]{3} [0-9]{2};){1,6}"))
    for seed in range(3):
        options = {"sampling": Sampling(0.9, top_p=0.95, seed=seed), "max_new_tokens": 40}
        prompt = prompt_of(seed)
        for ruled in ({}, {"grammar": grammar}):
            expected = tokens_of(plain(session, prompt, **options, **ruled))
            for draft in ("auto", ALL_SOURCES):
                drafter = make_drafter(session, draft)
                got = generate(session, prompt, drafter=drafter, **options, **ruled)
                assert tokens_of(got) == expected
                assert len(expected) > 1


def test_rows_have_the_same_bits_whatever_stands_beside_them(session):
    """Each token behind a prompt with one other, and as one of many siblings."""
    prompt, siblings = prompt_of(2), np.random.default_rng(5).permutation(np.arange(10, 41))

    def logits(tokens):
        session.forget()
        session.prefill(prompt)
        step = next(it for it in session.step_inputs if it.rows >= len(tokens))
        step.fill(np.array(tokens, np.uint32), np.zeros(len(tokens), np.uint32), len(prompt))
        return session.step(step)[: len(tokens)].copy()

    together = logits([7, *siblings])
    np.testing.assert_array_equal(logits([7])[0], together[0])
    for number in (0, 3, 17, 30):
        np.testing.assert_array_equal(logits([7, siblings[number]])[1], together[number + 1])


def test_blocks_that_are_streamed_say_the_same(bundles, family):
    prompt = prompt_of(5, 300)
    expected = tokens_of(plain(open_session(bundles(family)), prompt, max_new_tokens=30))
    size = max(path.stat().st_size for path in bundles(family).glob("block_*.weights"))
    experts = open_bundle(bundles(family)).manifest.experts
    largest = max(region.num_bytes for region in experts.layers)
    budget = int(1.5 * size) + largest
    for options in ({"memory_budget": budget}, {"switch": "just_in_time"}):
        streamed = open_session(bundles(family), **options)
        for _ in range(2):
            got = tokens_of(generate(streamed, prompt, max_new_tokens=30))
            assert got == expected


def test_models_open_and_answer_in_turns(bundles, family):
    with Model.open(bundles(family), prefix_memory=64 << 20) as model:
        prompts = [Tokenizer.of(model._session.bundle).decode(prompt_of(n, 150)) for n in (1, 2)]
        expected = [model.generate(prompt, max_new_tokens=12).text for prompt in prompts]
        again = [model.generate(prompt, max_new_tokens=12) for prompt in prompts * 2]
        assert [answer.text for answer in again] == expected * 2
        assert min(answer.stats.reused_tokens for answer in again) > 0


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_a_head_for_further_tokens_may_have_experts(tmp_path, weights):
    checkpoint = write_mixture(tmp_path / "checkpoint", "qwen3_5_moe", mtp="fitted")
    export_checkpoint(checkpoint, tmp_path / "bundle", weights=weights, context=512)
    session = open_session(tmp_path / "bundle")
    region = session.bundle.manifest.mtp.experts
    assert (region.layer, region.file) == (0, "mtp.experts")
    options = {"max_new_tokens": 60, "ignore_eos": True}
    accepted = 0
    for seed in range(3):
        prompt = prompt_of(seed)
        answer = tokens_of(plain(session, prompt, **options))
        for draft in ("mtp", "auto"):
            stats = Stats()
            drafter = make_drafter(session, draft)
            steps = generate(session, prompt, drafter=drafter, stats=stats, **options)
            assert tokens_of(steps) == answer
            accepted += (len(answer) - stats.steps) * (draft == "mtp")
    assert accepted > 20
