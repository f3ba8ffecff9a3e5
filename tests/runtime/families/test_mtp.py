"""The MTP head of a target: which states it reads, of chains and of trees."""

import numpy as np
import pytest

from answers import step_of, token_by_token
from coordgen_rs import open_session
from coordgen_rs.errors import BundleError
from coordgen_rs.runtime.heads.mtp import MtpSession


@pytest.fixture(scope="module")
def fitted(with_head):
    return open_session(with_head("mtp", "fitted"))


def prompts(number, length=60):
    random = np.random.default_rng(3)
    return [random.integers(100, 1500, length).astype(np.uint32) for _ in range(number)]


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
        token, rows = prompt[-1], []
        for _ in range(4):
            rows.append(token_by_token(session, [token])[0])
            token = rows[-1].argmax()
        logits.append(np.stack(rows))
    np.testing.assert_array_equal(*logits)
    assert len(set(logits[0].argmax(axis=1))) > 1


def test_a_tree_is_drafted_as_its_paths(fitted):
    prompt = prompts(1, 20)[0]
    fitted.rewind(0)
    fitted.prefill(prompt[:-1])
    session = MtpSession(fitted)
    session.prefill(prompt[:-1])
    tree = step_of(session, [prompt[-1], 200, 300, 301], [0, 0, 0, 2])
    # Deeper rows of one step read states that it has not given yet.
    np.testing.assert_array_equal(token_by_token(session, prompt[-1:])[0], tree[0])


@pytest.mark.parametrize("parts", [(40,), (7, 33), (13, 14, 13)])
def test_it_reads_the_targets_state_before_each_token_and_further_on_its_own(with_head, parts):
    """A head that says again what the state says: of a token what the target said before it."""
    target = open_session(with_head("mtp", "echo"))
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
    # The last ten tokens of the prompt, then a tree behind them, beside the target's next token.
    tree = [*prompt[30:], 300, 301, 302, 303], [0, *range(9), 9, 10, 10, 12]
    echoed = step_of(head, *tree).argmax(axis=1)
    assert echoed[:10].tolist() == said[29:39]
    assert echoed[10] == said[39]
    assert len(set(said)) > 10


def test_states_of_a_tree_follow_what_is_committed(with_head):
    """Of a branch that is moved, and of a commit in two parts."""
    target, prompt = open_session(with_head("mtp", "echo")), prompts(1, 20)[0]
    states = target.forward.keep_states()
    target.rewind(0)
    target.prefill(prompt)
    step_of(target, [5, 700, 300, 301, 302, 303], [0, 0, 0, 2, 3, 4])
    target.commit(np.array([0, 2], np.uint32))
    target.commit(np.array([1, 2], np.uint32))
    path = target.reusable_ids.copy()
    kept = states[: len(path)].copy()
    target.rewind(0)
    target.prefill(path)
    np.testing.assert_array_equal(kept, states[: len(path)])


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"num_scored": 100}, "logits is"), ({"graph": "mtp_head.onnx"}, "one of them lacks")],
)
def test_graphs_that_do_not_fit_the_manifest_are_refused(with_head, changed, why):
    session = open_session(with_head("mtp", "fitted"))
    for name, value in changed.items():
        object.__setattr__(session.bundle.manifest.mtp, name, value)
    with pytest.raises(BundleError, match=f"does not fit its manifest: {why}"):
        MtpSession(session)
