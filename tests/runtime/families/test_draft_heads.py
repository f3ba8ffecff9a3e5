"""Heads that draft from a target's own states, MTP and Gemma 4's assistant: they change nothing."""

import sys
from pathlib import Path

import numpy as np
import pytest

from answers import tokens_of
from coordgen_rs import (
    DraftModel,
    Model,
    Sampling,
    Stats,
    generate,
    make_drafter,
    open_session,
    plain,
)
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import BundleDamagedError, BundleError, OptionError, SessionClosedError
from coordgen_rs.runtime.heads.assistant import AssistantSession
from coordgen_rs.runtime.heads.mtp import MtpSession
from coordgen_rs.runtime.session import StepCost
from lossless import (
    COMMITS,
    check_drafts,
    check_ends,
    check_sampled,
    check_streamed,
    prompt_of,
)
from mixtures import write_mixture

KINDS = ("mtp", "gemma4", "gemma4_unified")
LOOKUPS = ("automaton", "resumed-copy", "reuse", "earlier-requests")
DRAFTS = ("auto", "blend", "mtp")
CHOICE = Sampling(1.0, seed=4)


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def session(with_head, kind):
    return priced(with_head(kind))


@pytest.fixture(scope="module")
def fitted(with_head, kind):
    return priced(with_head(kind, "fitted"))


def priced(bundle, **options):
    """A session whose steps cost so much that what a drafter takes here does not count."""
    session = open_session(bundle, **options)
    costs = [StepCost(1e6 * (1 + (width - 1) / 20), 0.0) for width in session.widths]
    session.select(session.widths, costs)
    return session


def figures(session, draft, max_new_tokens=120):
    """Tokens of the answers, tokens a step, and rows that the target computed."""
    said, steps, rows = [], 0, 0
    drafter, random = make_drafter(session, draft), np.random.default_rng(3)
    for _ in range(4):
        prompt, stats = random.integers(100, 1500, 60).astype(np.uint32), Stats()
        options = {"max_new_tokens": max_new_tokens, "sampling": CHOICE, "ignore_eos": True}
        for step in generate(session, prompt, drafter=drafter, stats=stats, **options):
            said += step.token_ids
            rows += step.num_rows
        steps += stats.steps
    return said, len(said) / steps, rows, drafter


def test_drafts_change_nothing(with_head, kind, session):
    check_drafts(session)
    check_sampled(session)
    check_streamed(with_head(kind, blocks=2))


def test_an_answer_ends_where_plain_decoding_ends_it(fitted, monkeypatch):
    check_ends(fitted, monkeypatch, lambda _: [make_drafter(fitted, draft) for draft in DRAFTS])


@pytest.mark.parametrize("head", ["fitted", "random"])
@pytest.mark.parametrize(("weights", "form"), [("fp32", "q8"), ("int8", "f32"), ("int4", "q8")])
def test_no_token_depends_on_the_head(with_head, kind, head, weights, form):
    if (kind, weights) == ("mtp", "int4"):
        weights = "int8"
    session, prompt = priced(with_head(kind, head, weights), kv_cache=form), prompt_of(1)
    samplings = [
        {"max_new_tokens": 40, "sampling": it, "ignore_eos": True} for it in (None, CHOICE)
    ]
    expected = [tokens_of(plain(session, prompt, **options)) for options in samplings]
    for draft in DRAFTS:
        for commit in COMMITS:
            drafter = make_drafter(session, draft, commit)
            for options, answer in zip(samplings, expected, strict=True):
                steps = generate(session, prompt, drafter=drafter, **options)
                assert tokens_of(steps) == answer
            if (draft, head) == ("mtp", "fitted"):
                assert drafter.per_source["draft-model"]["proposed"] > 0


def test_a_fitted_head_is_accepted_and_auto_takes_it_beside_lookups(fitted):
    said, alone, _, drafter = figures(fitted, "mtp")
    told = drafter.per_source["draft-model"]
    assert told["accepted"] > 0.25 * told["proposed"]
    lookups, auto = figures(fitted, LOOKUPS), figures(fitted, "auto")
    assert said == lookups[0] == auto[0]
    assert alone > 1.5
    assert auto[1] >= max(alone, lookups[1])


@pytest.mark.parametrize("kind", KINDS[1:], scope="module")
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_fitted_head_keeps_being_accepted_in_fewer_bits(with_head, kind, weights):
    assert figures(priced(with_head(kind, "fitted", weights)), "mtp")[1] > 1.5


def test_a_useless_head_costs_next_to_nothing(with_head, kind, session):
    lacking, draft = (
        (session, LOOKUPS) if kind == "mtp" else (priced(with_head(kind, None)), "auto")
    )
    said, without, rows, _ = figures(lacking, draft, max_new_tokens=400)
    again, beside, rows_beside, drafter = figures(session, "auto", max_new_tokens=400)
    assert again == said
    assert beside >= 0.99 * without
    assert rows_beside <= 1.02 * rows
    assert drafter.model.session.num_scored == session.vocab_size


def test_it_drafts_on_in_dialogues_and_behind_prefixes_that_were_put_back(with_head, kind):
    with Model.open(with_head(kind, "fitted"), prefix_memory=64 << 20) as model:
        expected = [model.generate(text, max_new_tokens=20).text for text in ("Anna ran", "Who is")]
        for namespace in (None, "other", None):
            options = {} if namespace is None else {"namespace": namespace}
            for text, said in zip(("Anna ran", "Who is"), expected, strict=True):
                assert model.generate(text, max_new_tokens=20, **options).text == said


def test_a_models_requests_draft_with_it(with_head, kind):
    with Model.open(with_head(kind, "fitted"), draft="mtp") as model:
        for namespace in ("one", "two"):
            stats = model.generate("Anna ran", max_new_tokens=30, namespace=namespace).stats
            assert 0 < stats.per_source["draft-model"]["proposed"] <= 3 * stats.steps


def test_a_head_that_gives_nan_drafts_nothing_and_says_so(session):
    prompt = prompt_of(1)
    expected = tokens_of(plain(session, prompt, max_new_tokens=20, ignore_eos=True))
    for draft in DRAFTS:
        drafter = make_drafter(session, draft)
        real = drafter.model.session.step
        drafter.model.session.step = lambda inputs, real=real: real(inputs) * np.float32(np.nan)
        steps = generate(session, prompt, max_new_tokens=20, drafter=drafter, ignore_eos=True)
        with pytest.warns(UserWarning, match="head for further tokens"):
            said = tokens_of(steps)
        assert said == expected


def test_another_draft_model_is_not_called_the_head(fitted, bundle_of):
    other = DraftModel(open_session(bundle_of("embedded-draft", "int4")))
    with pytest.raises(OptionError, match="own head alone: leave the draft model out"):
        make_drafter(fitted, "mtp", draft_model=other)
    drafter = make_drafter(fitted, ("automaton", "draft-model"))
    assert drafter.model.is_own_head


def test_bundles_without_a_head_say_so(with_head, kind):
    session = open_session(with_head(kind, None))
    with pytest.raises(OptionError, match=r"'mtp' needs a head for further tokens \(MTP\)"):
        make_drafter(session, "mtp")
    with pytest.raises(BundleError, match="has no head for further tokens"):
        MtpSession(session)
    with pytest.raises(BundleError, match="has no drafter beside the model"):
        AssistantSession(session)
    assert DraftModel.mtp_of(session) is None


@pytest.fixture
def with_experts(tmp_path):
    """A session whose head has experts, and the file of these."""
    checkpoint = write_mixture(tmp_path / "checkpoint", "qwen3_5_moe", mtp="fitted")
    export_checkpoint(checkpoint, tmp_path / "bundle", context=512)
    session = open_session(tmp_path / "bundle")
    region = session.bundle.manifest.mtp.experts
    assert (region.layer, region.file) == (0, "mtp.experts")
    return session, session.bundle.file(region.file)


def test_a_head_may_have_experts(with_experts):
    session, _ = with_experts
    options, accepted = {"max_new_tokens": 60, "ignore_eos": True}, 0
    for seed in range(3):
        prompt = prompt_of(seed)
        answer = tokens_of(plain(session, prompt, **options))
        for draft in ("mtp", "auto"):
            stats, drafter = Stats(), make_drafter(session, draft)
            steps = generate(session, prompt, drafter=drafter, stats=stats, **options)
            assert tokens_of(steps) == answer
            accepted += (len(answer) - stats.steps) * (draft == "mtp")
    assert accepted > 20


def test_experts_of_a_head_that_are_cut_short_are_named(with_experts):
    session, path = with_experts
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
def test_a_head_is_closed_with_its_target(with_experts):
    session, path = with_experts
    head = make_drafter(session, "mtp").model.session
    head.prefill(prompt_of(1))
    assert str(path) in Path("/proc/self/maps").read_text()
    session.close()
    assert str(path) not in Path("/proc/self/maps").read_text()
    for run in (lambda: head.prefill(prompt_of(1)), lambda: head.step(head.step_inputs[0])):
        with pytest.raises(SessionClosedError, match="the session is closed"):
            run()
