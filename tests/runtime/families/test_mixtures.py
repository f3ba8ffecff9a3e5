"""Models with mixtures of experts: drafts change nothing, whichever experts other rows ask for.

What a row computes depends on the row alone, so a wide step, which reads more experts than a narrow
one, must give the bits of plain decoding.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from answers import tokens_of
from coordgen_rs import (
    Model,
    Stats,
    Tokenizer,
    generate,
    make_drafter,
    open_session,
    plain,
)
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import BundleDamagedError, SessionClosedError
from lossless import (
    COMMITS,
    Bundles,
    check_adversarial_drafts,
    check_drafts,
    check_ends,
    check_sampled,
    check_streamed,
    prompt_of,
)
from mixtures import CONFIGS, write_mixture
from scripted import SCRIPTS

WEIGHTS = ("fp32", "int8", "int4")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixtures")
    return Bundles(folder, lambda path, family: write_mixture(path, family, seed=3))


@pytest.fixture(scope="module", params=CONFIGS)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def session(bundles, family):
    return open_session(bundles(family))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("commit", COMMITS)
def test_drafts_change_nothing(bundles, family, weights, commit):
    check_drafts(open_session(bundles(family, weights)), commit)


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_adversarial_drafts_change_nothing(session, script, commit):
    check_adversarial_drafts(session, script, commit)


def test_an_answer_ends_where_plain_decoding_ends_it(session, monkeypatch):
    check_ends(session, SCRIPTS, monkeypatch)


def test_sampled_answers_and_those_under_a_grammar_are_the_same(session):
    check_sampled(session)


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
    check_streamed(bundles(family))


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


@pytest.fixture
def drafting(tmp_path):
    """A session whose own head has experts, and the file of these."""
    checkpoint = write_mixture(tmp_path / "checkpoint", "qwen3_5_moe", mtp="fitted")
    export_checkpoint(checkpoint, tmp_path / "bundle", context=512)
    session = open_session(tmp_path / "bundle")
    return session, session.bundle.file(session.bundle.manifest.mtp.experts.file)


def test_experts_of_a_head_that_are_cut_short_are_named(drafting):
    session, path = drafting
    drafter, whole = make_drafter(session, "mtp"), path.read_bytes()

    def answer():
        return tokens_of(generate(session, prompt_of(1), max_new_tokens=8, drafter=drafter))

    expected = answer()
    with path.open("r+b") as stream:
        stream.truncate(0)
    with pytest.raises(BundleDamagedError, match=rf"{path} cannot be read: it was cut short"):
        answer()
    path.write_bytes(whole)
    assert answer() == expected


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_head_is_closed_with_its_target(drafting):
    session, path = drafting
    head = make_drafter(session, "mtp").model.session
    head.prefill(prompt_of(1))
    assert str(path) in Path("/proc/self/maps").read_text()
    session.close()
    assert str(path) not in Path("/proc/self/maps").read_text()
    for run in (lambda: head.prefill(prompt_of(1)), lambda: head.step(head.step_inputs[0])):
        with pytest.raises(SessionClosedError, match="the session is closed"):
            run()
