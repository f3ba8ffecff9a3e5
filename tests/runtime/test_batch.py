"""Several requests in one step: each says what it would say alone, whoever runs beside it."""

import numpy as np
import pytest

from answers import step_of, tokens_of
from coordgen_rs import (
    PrefixPool,
    Tokenizer,
    Vocabulary,
    generate,
    make_drafter,
    open_session,
    plain,
)
from coordgen_rs.errors import CallOrderError, NonFiniteLogitsError, OptionError, ShapeError
from coordgen_rs.generation.step import PlainStep
from coordgen_rs.runtime.batch import Batch, why_alone
from coordgen_rs.runtime.session import FilledStep
from lossless import (
    COMMITS,
    GEMMA4,
    HYBRIDS,
    MIXTURES,
    check_adversarial_drafts,
    check_drafts,
    prompt_of,
)
from together import Asked, random_requests, run_together


@pytest.fixture(scope="module", params=[*HYBRIDS[:2], *MIXTURES, *GEMMA4])
def pair(request, bundles):
    """A session, and a batch of the same family."""
    bundle = bundles(request.param)
    return open_session(bundle), Batch(open_session(bundle), 4)


@pytest.fixture(scope="module")
def embedded(bundle_of):
    bundle = bundle_of("embedded", "fp32")
    return open_session(bundle), Batch(open_session(bundle), 4)


def _check(pair, asked, commit="auto"):
    session, batch = pair
    run_together(batch, asked, commit)
    for number, it in enumerate(asked):
        assert it.error is None, (number, it)
        assert it.said == it.alone(session), (number, it)


def test_each_says_what_it_says_alone_also_under_grammars(pair):
    pytest.importorskip("llguidance", reason="grammars need llguidance")
    session, _ = pair
    vocabulary = Vocabulary(Tokenizer.of(session.bundle), session.vocab_size, session.end_token_ids)
    asked = random_requests(200, 20, vocabulary=vocabulary)
    assert sum("grammar" in it.options for it in asked) > 1
    _check(pair, asked)


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("seed", range(2))
def test_a_trained_model_too(embedded, seed, commit):
    _check(embedded, random_requests(100 + seed, 24), commit)


def test_a_sequence_alone_is_a_session(pair):
    check_drafts(pair[1].sequences[2], num_prompts=1)


def test_wrong_empty_and_too_long_drafts(embedded):
    check_adversarial_drafts(embedded[1].sequences[1], ["auto"])


def test_long_prompts_are_read_beside_answers(embedded):
    asked = [Asked(prompt_of(seed, 60), {"max_new_tokens": 60}) for seed in range(3)]
    asked += [Asked(prompt_of(9, 700), {"max_new_tokens": 10}, joins=3)]
    _check(embedded, asked)


def test_a_failure_is_that_requests_alone(embedded, monkeypatch):
    session, batch = embedded
    good = [Asked(prompt_of(seed, 60), {"max_new_tokens": 30}) for seed in range(3)]
    bad = Asked(prompt_of(5, 60), {"max_new_tokens": 30})
    victim, verified = batch.sequences[1], type(batch.sequences[1]).has_verified

    def spoiled(self, inputs, logits):
        if self is victim and np.array_equal(self._token_ids[: self.length], bad.prompt[:-1]):
            logits[:] = np.nan
        verified(self, inputs, logits)

    monkeypatch.setattr(type(victim), "has_verified", spoiled)
    run_together(batch, [good[0], bad, *good[1:]])
    assert isinstance(bad.error, NonFiniteLogitsError)
    monkeypatch.undo()
    for it in good:
        assert it.error is None
        assert it.said == it.alone(session)


def test_a_run_that_fails_is_told_to_all_and_nothing_is_lost(pair, monkeypatch):
    session, batch = pair
    first, second = (batch.sequences[number] for number in (0, 3))
    prompts = prompt_of(1, 50), prompt_of(2, 70)
    for sequence, prompt in zip((first, second), prompts, strict=True):
        sequence.forget()
        sequence.prefill(prompt[:-1])
    run = type(batch.session.device).run
    left = [1]

    def failing(self, block, graph, buffers):
        if block == 1 and left:
            left.pop()
            raise MemoryError("no memory")
        run(self, block, graph, buffers)

    monkeypatch.setattr(type(batch.session.device), "run", failing)
    drafters = [make_drafter(sequence) for sequence in (first, second)]
    for drafter, sequence, prompt in zip(drafters, (first, second), prompts, strict=True):
        drafter.begin(prompt, 30)
        sequence.offer(drafter)
    assert batch.run()
    for sequence in (first, second):
        with pytest.raises(MemoryError, match="no memory"):
            sequence.taken()
    for sequence, prompt in zip((first, second), prompts, strict=True):
        options = {"max_new_tokens": 20, "reuse_prefix": True}
        got = generate(sequence, prompt, drafter=make_drafter(sequence), **options)
        assert tokens_of(got) == tokens_of(plain(session, prompt, max_new_tokens=20))


def test_a_step_that_nobody_has_taken_yet_outlives_a_run_of_another_request(pair):
    session, batch = pair
    one, other = batch.sequences[:2]
    prompt, root = prompt_of(1, 50), prompt_of(1, 50)[-1:]
    session.rewind(0)
    session.prefill(prompt[:-1])
    expected = step_of(session, root)[0]
    for sequence in (one, other):
        sequence.forget()
    one.prefill(prompt[:-1])
    one.offer(PlainStep(one, root))
    assert batch.run()
    other.prefill(prompt_of(2, 40), on_logits=lambda logits: None)  # it goes back, say, and reads
    step_of(other, prompt_of(3, 4))
    assert np.array_equal(one.step(one.taken())[0], expected)
    one.commit(np.zeros(1, np.uint32))
    assert one.reusable_ids.tolist() == prompt.tolist()


def test_a_shared_step_that_is_run_again_alone_gives_the_rows_of_its_nodes(pair):
    _, batch = pair
    one, other = batch.sequences[:2]
    for sequence, number in ((one, 1), (other, 2)):
        sequence.forget()
        sequence.prefill(prompt_of(number, 40))
        sequence.step_inputs[-1].fill_chain(prompt_of(number, 40)[:5], sequence.length)
        sequence.offer(FilledStep(sequence.step_inputs[-1], 5))
    assert batch.run()
    inputs, shared = one.taken(), one._verified[1].copy()
    other.offer(FilledStep(other.taken(), 5))
    assert batch.run([other])
    assert inputs.rows > 5
    assert shared.shape[0] == 5
    assert np.array_equal(one.step(inputs), shared)
    other.step(other.taken())


def test_prefixes_are_taken_from_other_sequences(pair):
    session, batch = pair
    long, one, other = prompt_of(3, 240), *batch.sequences[:2]
    for sequence in (one, other):
        sequence.forget()
    one.prefill(long)
    shared = one.reachable(230)
    assert shared > 100
    other.take_prefix(one, shared)
    assert other.length == shared
    assert other.reusable_ids.tolist() == long[:shared].tolist()
    prompt = np.concatenate([long[:230], prompt_of(4, 30)])
    got = generate(other, prompt, max_new_tokens=20, reuse_prefix=True)
    assert tokens_of(got) == tokens_of(plain(session, prompt, max_new_tokens=20))
    assert one.reusable_ids.tolist() == long.tolist()


def test_prefixes_are_saved_and_put_back_on_another_sequence(pair):
    session, batch = pair
    pool, prompt = PrefixPool(1 << 24), prompt_of(6, 150)
    one, other = batch.sequences[1], batch.sequences[2]
    for sequence in (one, other):
        sequence.forget()
    one.prefill(prompt)
    pool.hand_over(one, "")
    one.forget()
    longer = np.concatenate([prompt, prompt_of(7, 20)])
    got = generate(other, longer, max_new_tokens=20, reuse_prefix=True, prefixes=pool)
    assert tokens_of(got) == tokens_of(plain(session, longer, max_new_tokens=20))


def test_what_cannot_run_together_is_named(bundle_of):
    whole = open_session(bundle_of("embedded", "fp32"))
    assert why_alone(whole) is None
    switched = open_session(bundle_of("embedded", "fp32"), switch="just_in_time")
    assert "one by one" in why_alone(switched)
    with pytest.raises(OptionError, match="parallel is 2, but blocks are switched one by one"):
        Batch(switched, 2)


def test_what_is_not_asked_for_is_refused(embedded):
    sequence = embedded[1].sequences[0]
    sequence.forget()
    sequence.withdraw()
    with pytest.raises(CallOrderError):
        sequence.taken()
    with pytest.raises(ShapeError, match="exceed the capacity"):
        sequence.ask_to_read(np.zeros(sequence.capacity + 1, np.uint32))
    assert not embedded[1].run()
