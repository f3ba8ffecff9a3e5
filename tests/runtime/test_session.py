"""The session: consistent after every kind of ending, and refusing what does not fit."""

import numpy as np
import pytest

from answers import prompt_logits, step_of, tokens_of
from coordgen_rs import Stats, Tokenizer, generate, make_drafter, open_session, plain
from coordgen_rs.errors import (
    CallOrderError,
    EmptyPromptError,
    NonFiniteLogitsError,
    OptionError,
    PromptTooLongError,
    SessionClosedError,
    ShapeError,
    TokenOutOfRangeError,
)


@pytest.fixture
def session(session_of):
    return session_of("embedded", "fp32")


@pytest.fixture
def prompt(session):
    return Tokenizer.of(session.bundle).encode("the cat and the dog and the cat and")


def test_closing_early_leaves_exactly_the_committed_tokens(session, prompt):
    expected = tokens_of(plain(session, prompt, max_new_tokens=30))
    steps = generate(session, prompt, max_new_tokens=30)
    given = len(next(steps).token_ids) + len(next(steps).token_ids)
    steps.close()
    assert session.length == len(prompt) - 1 + given
    assert tokens_of(generate(session, prompt, max_new_tokens=30)) == expected


def test_an_exception_in_a_step_leaves_the_session_usable(session, prompt, monkeypatch):
    expected = tokens_of(plain(session, prompt, max_new_tokens=20))
    steps = generate(session, prompt, max_new_tokens=20)
    next(steps)
    before = session.length
    with monkeypatch.context() as broken:
        broken.setattr(type(session), "step", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        with pytest.raises(OSError, match="gone"):
            next(steps)
    assert session.length == before
    assert tokens_of(generate(session, prompt, max_new_tokens=20)) == expected


def test_a_commit_that_fails_half_way_is_not_done_twice(session, prompt, monkeypatch):
    session.rewind(0)
    session.prefill(prompt)
    tree = [1, 2, 3, 4], [0, 0, 0, 2]
    step_of(session, *tree)

    def fail(rows):
        raise MemoryError

    path = np.array([0, 2, 3], np.uint32)
    with monkeypatch.context() as patch:
        patch.setattr(session.cache, "commit", fail)
        with pytest.raises(MemoryError):
            session.commit(path)
    assert session.length == len(prompt)
    with pytest.raises(ShapeError):
        session.commit(path)
    step_of(session, *tree)
    session.commit(path)
    assert session._token_ids[len(prompt) : session.length].tolist() == [1, 3, 4]
    session.rewind(0)


def test_nan_logits_are_a_named_error(session, prompt, monkeypatch):
    steps = generate(session, prompt, max_new_tokens=20)
    next(steps)
    real = type(session).step
    monkeypatch.setattr(type(session), "step", lambda *given: real(*given) * np.nan)
    with pytest.raises(NonFiniteLogitsError):
        next(steps)
    with pytest.raises(NonFiniteLogitsError):
        next(plain(session, prompt))


@pytest.mark.parametrize("answer", [plain, generate])
def test_requests_of_one_length_that_take_turns_are_refused(session, prompt, answer):
    first = answer(session, prompt, max_new_tokens=20)
    next(first)
    second = answer(session, prompt[::-1], max_new_tokens=20)
    given = next(second).token_ids
    with pytest.raises(CallOrderError, match="another request"):
        next(first)
    rest = tokens_of(second)
    assert given + rest == tokens_of(plain(session, prompt[::-1], max_new_tokens=20))


def test_a_request_that_ends_late_leaves_the_work_for_gaps_to_its_successor(session, prompt):
    first = generate(session, prompt, max_new_tokens=20)
    next(first)
    second = generate(session, prompt, max_new_tokens=20)
    next(second)
    first.close()
    assert session.gap_work is not None
    second.close()
    assert session.gap_work is None
    abandoned = generate(session, prompt, max_new_tokens=20)
    next(abandoned)
    next(plain(session, prompt))
    assert session.gap_work is None


def test_a_request_closed_late_does_not_take_its_successors_statistics(session, prompt):
    drafter, early, late = make_drafter(session), Stats(), Stats()
    first = generate(session, prompt, max_new_tokens=20, drafter=drafter, stats=early)
    next(first)
    tokens_of(generate(session, prompt, max_new_tokens=20, drafter=drafter, stats=late))
    first.close()
    assert sum(early.accept_histogram) <= early.steps
    assert sum(late.accept_histogram) == late.steps


def test_a_refused_prediction_leaves_the_session_to_its_request(session, prompt):
    first = generate(session, prompt, max_new_tokens=20)
    next(first)
    with pytest.raises(TokenOutOfRangeError, match="prediction"):
        next(generate(session, prompt, prediction=[session.vocab_size]))
    next(first)


def test_a_session_is_closed_behind_its_with_block_and_says_so_each_time_anew(bundle_of, prompt):
    with open_session(bundle_of("embedded", "fp32")) as closed:
        assert tokens_of(plain(closed, prompt, max_new_tokens=3))
    raised = []
    for _ in range(2):
        with pytest.raises(SessionClosedError) as caught:
            next(plain(closed, prompt))
        raised.append(caught.value)
    assert raised[0] is not raised[1]


def test_a_session_whose_closing_was_interrupted_is_closed(bundle_of, prompt, monkeypatch):
    session = open_session(bundle_of("embedded", "fp32"))

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session.device, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.close()
    with pytest.raises(SessionClosedError):
        next(plain(session, prompt))
    session.close()
    assert not any(session.device.is_loaded(0, graph) for graph in ("prefill", "decode"))


def test_a_session_that_is_closed_while_it_runs_says_so(bundle_of, prompt, monkeypatch):
    session = open_session(bundle_of("embedded", "fp32"))
    run = session.device.run

    def closed_meanwhile(*arguments):
        session.close()
        run(*arguments)

    monkeypatch.setattr(session.device, "run", closed_meanwhile)
    with pytest.raises(SessionClosedError):
        session.prefill(prompt)


def test_a_step_that_failed_is_not_counted_with_the_next_request():
    stats = Stats()
    stats.begin("draft")
    stats.pause()
    stats.begin("verify")  # and fails
    before = stats.decode_s
    with stats.prefill([0]):
        pass
    stats.end_step(1, "length")
    assert stats.decode_s == before
    assert stats.drafting_us == [0.0]


def test_statistics_add_up(session, prompt):
    stats = Stats()
    tokens = tokens_of(generate(session, prompt, max_new_tokens=40, stats=stats))
    assert stats.new_tokens == len(tokens)
    assert sum(stats.accept_histogram) == stats.steps == len(stats.drafting_us)
    accepted = sum(source["accepted"] for source in stats.per_source.values())
    accept_len = sum(n * count for n, count in enumerate(stats.accept_histogram))
    assert stats.new_tokens - stats.steps <= accept_len <= accepted
    assert stats.finish_reason in ("stop", "length")


@pytest.mark.parametrize("start", [generate, plain])
@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        ([], {}, EmptyPromptError),
        (np.zeros(1 << 16, int), {}, PromptTooLongError),
        ([1, 1 << 20], {}, TokenOutOfRangeError),
        ([-1], {}, TokenOutOfRangeError),
        ([1], {"max_new_tokens": 0}, OptionError),
    ],
)
def test_unusable_prompts_are_named(session, start, prompt, options, error):
    with pytest.raises(error):
        next(start(session, prompt, **options))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda session: make_drafter(session, "guess"), OptionError, "auto"),
        (lambda session: make_drafter(session, "auto", "maybe"), OptionError, "canonical"),
        (lambda session: session.select([3]), OptionError, "widths"),
        (lambda session: session.select([1], []), OptionError, "0 step costs for 1 widths"),
        (lambda session: session.limit(1 << 20), OptionError, "was made for"),
        (lambda session: session.rewind(session.length + 1), ShapeError, "cannot rewind"),
        (lambda session: session.prefill(np.zeros(1 << 16, int)), ShapeError, "capacity"),
    ],
)
def test_what_cannot_be_is_refused_by_name(session, call, error, match):
    with pytest.raises(error, match=match):
        call(session)


@pytest.mark.parametrize("graphs", ["both", "prefill", "decode"])
def test_prefill_hands_out_the_logits_of_every_token(session, graphs):
    tokens = np.arange(300, dtype=np.uint32) % session.vocab_size
    expected = []
    session.rewind(0)
    for start in range(0, len(tokens), session.widths[-1]):
        part = tokens[start : start + session.widths[-1]]
        expected.append(step_of(session, part))
        session.commit(np.arange(len(part), dtype=np.uint32))
    for _ in range(2):  # the head is bound on first use, and kept
        got = prompt_logits(session, tokens, graphs)
        assert session.length == len(tokens)
        np.testing.assert_allclose(got, np.concatenate(expected), rtol=1e-3, atol=1e-3)


def test_unusable_logits_in_the_prompt_are_a_named_error(session, prompt, monkeypatch):
    expected = tokens_of(plain(session, prompt, max_new_tokens=20))
    real = type(session)._chunk_logits

    def broken(self, graph, num_rows):
        return (logits * np.nan for logits in real(self, graph, num_rows))

    drafter = make_drafter(session, ["automaton", "calibration"])
    with monkeypatch.context() as patched:
        patched.setattr(type(session), "_chunk_logits", broken)
        with pytest.raises(NonFiniteLogitsError, match="row 0 "):
            next(generate(session, prompt, drafter=drafter))
    assert session.length == 0
    assert tokens_of(generate(session, prompt, max_new_tokens=20, drafter=drafter)) == expected


def test_calibration_is_automatic_only_where_rows_cost_nothing(session, monkeypatch):
    assert not make_drafter(session).reads_prefill
    monkeypatch.setattr(session, "step_costs", None)
    assert make_drafter(session).reads_prefill


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_the_rest_of_a_prompt_is_read_in_one_run_of_as_many_rows(session_of, weights):
    session = session_of("embedded", weights)
    prompt = np.random.default_rng(0).integers(session.vocab_size, size=300).astype(np.uint32)

    def read(token_ids, graphs):
        session.rewind(0)
        runs, logits = [], []
        session.prefill(
            token_ids,
            graphs,
            on_logits=lambda rows: logits.append(rows.copy()),
            on_read=runs.append,
        )
        of_all_layers = session.cache.copied(session.length)
        return runs, np.concatenate(logits), np.concatenate(of_all_layers, axis=None)

    assert session.is_exact_at_any_rows
    for num_tokens in (1, 3, 33, 255, 300):
        runs, logits, cache = read(prompt[:num_tokens], "both")
        assert runs == [256, 300] if num_tokens == 300 else runs == [num_tokens]
        for graphs, rows in (("decode", session.widths[-1]), ("prefill", 256)):
            in_parts, expected_logits, expected_cache = read(prompt[:num_tokens], graphs)
            assert len(in_parts) == -(-num_tokens // rows)
            np.testing.assert_array_equal(cache, expected_cache)
            np.testing.assert_array_equal(logits, expected_logits)
    session.rewind(0)


def test_runs_that_were_bound_for_a_rest_are_let_go(session):
    session.rewind(0)
    session.prefill(np.arange(5))
    (graph,) = (it for name, it in session.device._loaded.items() if name == (0, "prefill"))
    before = len(graph.bound)
    for rest in range(2, 20):
        session.prefill(np.arange(rest))
    assert len(graph.bound) == before
    session.rewind(0)
