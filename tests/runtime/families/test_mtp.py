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
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import BundleError, OptionError
from coordgen_rs.runtime.heads.mtp import MtpSession
from coordgen_rs.runtime.session import StepCost
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


@pytest.mark.parametrize("parts", [(40,), (7, 33), (13, 14, 13)])
def test_it_reads_the_targets_state_before_each_token_and_further_on_its_own(bundles, parts):
    """A head that says again what the state says: of a token what the target said before it."""
    target = open_session(bundles("echo"))
    target.forward.keep_states()
    prompt, said, start = prompts(1, 40)[0], [], 0
    target.rewind(0)
    target.prefill(prompts(2, 40)[1])  # of an earlier request
    target.rewind(0)
    for part in parts:
        tokens = prompt[start : start + part]
        target.prefill(tokens, on_logits=lambda logits: said.extend(logits.argmax(axis=1)))
        start += part
    head = MtpSession(target)
    head.prefill(prompt[:30])
    inputs = next(it for it in head.step_inputs if it.rows == 16)
    # The last ten tokens of the prompt, then a tree behind them, beside the target's next token.
    tree = np.array([300, 301, 302, 303], np.uint32)
    parents = np.array([0, *range(9), 9, 10, 10, 12], np.uint32)
    inputs.fill(np.concatenate([prompt[30:], tree]), parents, 30)
    echoed = head.step(inputs)[:14].argmax(axis=1)
    assert echoed[:10].tolist() == said[29:39]
    assert echoed[10] == said[39]
    assert len(set(said)) > 10


def test_states_of_a_tree_follow_what_is_committed(bundles):
    """Of a branch that is moved, and of a commit in two parts."""
    target, prompt = open_session(bundles("echo")), prompts(1, 20)[0]
    states = target.forward.keep_states()
    target.rewind(0)
    target.prefill(prompt)
    inputs = next(it for it in target.step_inputs if it.rows == 8)
    tokens = np.array([5, 700, 300, 301, 302, 303], np.uint32)
    inputs.fill(tokens, np.array([0, 0, 0, 2, 3, 4], np.uint32), 20)
    target.step(inputs)
    target.commit(np.array([0, 2], np.uint32))
    target.commit(np.array([1, 2], np.uint32))
    path = target.reusable_ids.copy()
    kept = states[: len(path)].copy()
    target.rewind(0)
    target.prefill(path)
    np.testing.assert_array_equal(kept, states[: len(path)])


def test_a_models_requests_draft_with_it(bundles):
    with Model.open(bundles("fitted"), draft="mtp") as model:
        for namespace in ("one", "two"):
            stats = model.generate("Anna ran", max_new_tokens=30, namespace=namespace).stats
            assert 0 < stats.per_source["draft-model"]["proposed"] <= 3 * stats.steps


def test_a_head_that_gives_nan_drafts_nothing_and_says_so(bundles):
    session = priced(bundles("random"))
    prompt = prompts(1)[0]
    expected = tokens_of(plain(session, prompt, max_new_tokens=20, ignore_eos=True))
    for draft in DRAFTS:
        drafter = make_drafter(session, draft)
        real = drafter.model.session.step
        drafter.model.session.step = lambda inputs, real=real: real(inputs) * np.float32(np.nan)
        steps = generate(session, prompt, max_new_tokens=20, drafter=drafter, ignore_eos=True)
        with pytest.warns(UserWarning, match="head for further tokens"):
            said = tokens_of(steps)
        assert said == expected


def test_another_draft_model_is_not_called_the_head(bundles, bundle_of):
    session = open_session(bundles("fitted"))
    other = DraftModel(open_session(bundle_of("embedded-draft", "int4")))
    with pytest.raises(OptionError, match="own head alone: leave the draft model out"):
        make_drafter(session, "mtp", draft_model=other)
    drafter = make_drafter(session, ("automaton", "draft-model"))
    assert drafter.model.is_own_head


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"num_scored": 100}, "logits is"), ({"graph": "mtp_head.onnx"}, "one of them lacks")],
)
def test_graphs_that_do_not_fit_the_manifest_are_refused(bundles, changed, why):
    session = open_session(bundles("fitted"))
    for name, value in changed.items():
        object.__setattr__(session.bundle.manifest.mtp, name, value)
    with pytest.raises(BundleError, match=f"does not fit its manifest: {why}"):
        MtpSession(session)


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
