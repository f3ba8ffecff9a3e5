"""The target's own head for further tokens: what it drafts, beside lookups and alone."""

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
from coordgen_rs.errors import BundleError, OptionError
from coordgen_rs.target.mtp import MtpSession
from coordgen_rs.target.session import StepCost
from coordgen_rs.tools.export import export_checkpoint
from hybrids import write_hybrid

LOOKUPS = ("automaton", "resumed-copy", "reuse", "earlier-requests")
DRAFTS = ("auto", "blend", "mtp")
CHOICE = Sampling(1.0, seed=4)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("mtp"), {}

    def bundle(mtp, weights="fp32"):
        if (mtp, weights) not in made:
            source = folder / str(mtp)
            if not source.exists():
                write_hybrid(source, "qwen3_5", mtp=mtp)
            made[mtp, weights] = folder / f"{mtp}-{weights}"
            export_checkpoint(source, made[mtp, weights], weights=weights, context=1024)
        return made[mtp, weights]

    return bundle


@pytest.fixture(scope="module")
def fitted(bundles):
    return priced(bundles("fitted"))


def priced(bundle):
    """A session whose steps cost so much that what a head takes here does not count."""
    session = open_session(bundle)
    costs = [StepCost(1e6 * (1 + (width - 1) / 20), 0.0) for width in session.widths]
    session.select(session.widths, costs)
    return session


def prompts(number, length=60):
    random = np.random.default_rng(3)
    return [random.integers(100, 1500, length).astype(np.uint32) for _ in range(number)]


def figures(session, draft, number=4, max_new_tokens=120):
    """Tokens of the answers, tokens a step, and rows that the target computed."""
    said, steps, rows = [], 0, 0
    drafter = make_drafter(session, draft)
    for prompt in prompts(number):
        stats = Stats()
        options = {"max_new_tokens": max_new_tokens, "sampling": CHOICE, "ignore_eos": True}
        for step in generate(session, prompt, drafter=drafter, stats=stats, **options):
            said += step.token_ids
            rows += step.num_rows
        steps += stats.steps
    return said, len(said) / steps, rows, drafter


@pytest.mark.parametrize("mtp", ["fitted", "random"])
@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_no_token_depends_on_the_head(bundles, mtp, weights):
    session = open_session(bundles(mtp, weights))
    for sampling in (None, CHOICE):
        for prompt in prompts(2):
            options = {"max_new_tokens": 60, "sampling": sampling, "ignore_eos": True}
            expected = tokens_of(plain(session, prompt, **options))
            for draft in DRAFTS:
                drafter = make_drafter(session, draft)
                for _ in range(2):
                    got = tokens_of(generate(session, prompt, drafter=drafter, **options))
                    assert got == expected


def test_a_fitted_head_is_accepted_and_auto_takes_it_beside_lookups(fitted):
    said, alone, _, drafter = figures(fitted, "mtp")
    told = drafter.per_source["draft-model"]
    assert told["accepted"] > 0.25 * told["proposed"]
    lookups, auto = figures(fitted, LOOKUPS), figures(fitted, "auto")
    assert said == lookups[0] == auto[0]
    assert alone > 1.5
    assert auto[1] >= max(alone, lookups[1])


def test_a_useless_head_costs_next_to_nothing(bundles):
    session = priced(bundles("random"))
    said, without, rows, _ = figures(session, LOOKUPS, max_new_tokens=400)
    again, with_head, rows_with_head, drafter = figures(session, "auto", max_new_tokens=400)
    assert again == said
    assert with_head >= 0.99 * without
    assert rows_with_head <= 1.02 * rows
    reads = drafter.model.session
    assert reads.num_scored == session.vocab_size


def test_its_chain_is_what_it_says_of_the_targets_states(fitted):
    """Each drafted token is the likeliest of a computation from the start."""
    prompt = prompts(1, 20)[0]
    fitted.rewind(0)
    fitted.forward.keep_states()
    fitted.prefill(prompt[:-1])
    once, parts = MtpSession(fitted), MtpSession(fitted)
    once.prefill(prompt[:-1])
    parts.prefill(prompt[:7])
    parts.prefill(prompt[7:-1])
    logits = []
    for session in (once, parts):
        tokens, rows = prompt[-1:], []
        for _ in range(4):
            inputs = session.step_inputs[0]
            inputs.fill_chain(tokens, session.length)
            rows.append(session.step(inputs)[0].copy())
            session.commit(np.zeros(1, np.uint32))
            tokens = rows[-1].argmax(keepdims=True).astype(np.uint32)
        logits.append(np.stack(rows))
    np.testing.assert_array_equal(*logits)
    assert len(set(logits[0].argmax(axis=1))) > 1


def test_a_tree_is_drafted_as_its_paths(fitted):
    prompt = prompts(1, 20)[0]
    fitted.rewind(0)
    fitted.prefill(prompt[:-1])
    session = MtpSession(fitted)
    session.prefill(prompt[:-1])
    inputs = next(it for it in session.step_inputs if it.rows == 4)
    inputs.fill(
        np.array([prompt[-1], 200, 300, 301], np.uint32), np.array([0, 0, 0, 2], np.uint32), 19
    )
    tree = session.step(inputs)[:4].copy()
    one = session.step_inputs[0]
    for token, row in ((prompt[-1], 0), (300, 2), (301, 3)):
        one.fill_chain(np.array([token], np.uint32), session.length)
        alone = session.step(one)[0].copy()
        session.commit(np.zeros(1, np.uint32))
        if row < 2:  # deeper rows of one step read states that it has not given yet
            np.testing.assert_array_equal(alone, tree[row])


def test_it_drafts_on_in_dialogues_and_behind_prefixes_that_were_put_back(bundles):
    with Model.open(bundles("fitted"), prefix_memory=64 << 20) as model:
        expected = [model.generate(text, max_new_tokens=20).text for text in ("Anna ran", "Who is")]
        for namespace in (None, "other", None):
            options = {} if namespace is None else {"namespace": namespace}
            for text, said in zip(("Anna ran", "Who is"), expected, strict=True):
                assert model.generate(text, max_new_tokens=20, **options).text == said


def test_bundles_without_a_head_say_so(bundles):
    session = open_session(bundles(None))
    with pytest.raises(OptionError, match=r"'mtp' needs a head for further tokens \(MTP\)"):
        make_drafter(session, "mtp")
    with pytest.raises(BundleError, match="has no head for further tokens"):
        MtpSession(session)
    assert DraftModel.mtp_of(session) is None
