"""A draft model: lossless whatever it says, its cache kept right, refused where it does not fit."""

import json
import shutil

import numpy as np
import pytest

from answers import tokens_of
from coordgen_rs import (
    DraftModel,
    Sampling,
    Stats,
    Tokenizer,
    generate,
    make_drafter,
    open_session,
    plain,
)
from coordgen_rs._core import SimulatedClock, draft_method, draft_methods
from coordgen_rs.cli.main import main
from coordgen_rs.errors import DeviceLostError, DraftModelError, NonFiniteLogitsError, OptionError
from coordgen_rs.generation.drafting.draft_model import ModelDrafter
from coordgen_rs.runtime.session import StepCost
from corpus import HELD_OUT_SEEDS, TASKS, example

LOOKUPS = ("automaton", "earlier-requests", "calibration", "reuse", "lookup-table")
EVERYTHING = (*LOOKUPS, "draft-model")


@pytest.fixture(scope="module")
def model(bundle_of):
    return DraftModel(open_session(bundle_of("embedded-draft", "fp32")))


@pytest.fixture(scope="module")
def small_model(bundle_of):
    """Drafts with another model's weights: mostly wrong."""
    return DraftModel(open_session(bundle_of("embedded-draft", "int4")))


@pytest.mark.parametrize("draft", ["edgellm", EVERYTHING])
@pytest.mark.parametrize("sampling", [None, Sampling(1.2, seed=2)])
@pytest.mark.parametrize("commit", ["canonical", "compact"])
def test_a_draft_model_changes_no_token(session_of, model, draft, sampling, commit):
    session = session_of("embedded", "fp32")
    tokenizer = Tokenizer.of(session.bundle)
    drafter = make_drafter(session, draft, commit, draft_model=model)
    asked = {"max_new_tokens": 40, "sampling": sampling}
    for index, task in enumerate(TASKS[:2]):
        prompt = tokenizer.encode(example(task, HELD_OUT_SEEDS[300 + index]).prompt)
        expected = tokens_of(plain(session, prompt, **asked))
        assert tokens_of(generate(session, prompt, drafter=drafter, **asked)) == expected, task


def test_a_wrong_draft_model_changes_no_token_either(session_of, small_model):
    session = session_of("embedded", "int4")
    prompt = np.arange(40, 60, dtype=np.uint32)  # text that neither has ever seen
    drafter = make_drafter(session, "edgellm", draft_model=small_model)
    for limit in (1, 2, 50):
        expected = tokens_of(plain(session, prompt, max_new_tokens=limit))
        assert (
            tokens_of(generate(session, prompt, max_new_tokens=limit, drafter=drafter)) == expected
        )


def next_row(session, text):
    """What the session's model says after a text of which it holds all but the last token."""
    inputs = session.step_inputs[0]
    inputs.fill_chain(np.array(text[-1:], np.uint32), len(text) - 1)
    return session.step(inputs)[0].copy()


def test_the_models_cache_holds_the_text_as_if_read_from_the_start(session_of, model):
    session = session_of("embedded", "fp32")
    prompt = Tokenizer.of(session.bundle).encode(example("rag", HELD_OUT_SEEDS[310]).prompt)
    drafter = make_drafter(session, "edgellm", draft_model=model)
    text = prompt.tolist()
    for step in generate(session, prompt, max_new_tokens=30, drafter=drafter):
        text += step.token_ids
        if len(text) < len(prompt) + 30:
            drafter.model.draft(
                1
            )  # moves the rows that were accepted together, and reads the last token
    model.session.rewind(len(text) - len(step.token_ids) - 1)
    held = next_row(model.session, text[: len(text) - len(step.token_ids)])
    model.session.rewind(0)
    model.session.prefill(np.array(text[: len(text) - len(step.token_ids) - 1], np.uint32))
    read = next_row(model.session, text[: len(text) - len(step.token_ids)])
    np.testing.assert_allclose(held, read, atol=2e-3)


@pytest.mark.parametrize("form", ["f32", "f16", "q8"])
def test_keys_and_values_are_held_as_those_of_the_target(session_of, bundle_of, form):
    target = session_of("embedded", "fp32", kv_cache=form)
    drafting = DraftModel.open(bundle_of("embedded-draft", "fp32"), target)
    assert drafting.session.cache.form == form


def test_drafting_can_stop_and_go_on_between_any_two_steps(session_of, model):
    session = session_of("embedded", "fp32")
    prompt = Tokenizer.of(session.bundle).encode(example("ui", HELD_OUT_SEEDS[311]).prompt)
    drafter = make_drafter(session, "edgellm", draft_model=model)
    assert isinstance(drafter, ModelDrafter)
    drafter.begin(prompt, 20)
    one_by_one, drafting = 0, drafter.model
    while drafting.step(12):
        one_by_one += 1
    assert 1 <= one_by_one <= 12
    assert not drafting.step(12)
    assert drafting.step(24, provisional=True)
    drafter.begin(prompt, 20)  # another request, in the middle of nothing
    drafting.draft(12)
    assert model.session.length >= len(prompt)


STRICT = [
    method.name
    for method in draft_methods()
    if method.needs_draft_model and method.tree == "drafted"
]


@pytest.mark.parametrize("commit", ["canonical", "compact"])
@pytest.mark.parametrize("draft", STRICT)
def test_all_that_is_drafted_is_verified_and_nothing_else(
    session_of, model, draft, commit, monkeypatch
):
    session = session_of("embedded", "fp32")
    costs = [StepCost(10.0 * 4**index, 0.0) for index in range(len(session.widths))]
    monkeypatch.setattr(session, "step_costs", costs)  # rows that no draft pays for
    prompt = Tokenizer.of(session.bundle).encode(example("rag", HELD_OUT_SEEDS[314]).prompt)
    drafter = make_drafter(session, draft, commit, draft_model=model)
    num_before, num_carried = 0, 0
    for step in generate(session, prompt, max_new_tokens=60, drafter=drafter, trees=True):
        drafted, num_before = drafter.num_drafted - num_before, drafter.num_drafted
        assert step.num_drafted == len(step.tree.sources) - 1
        assert {*step.tree.sources[1:]} <= {"draft-model", "target"}
        num_carried += step.num_drafted - drafted
        assert drafted <= step.num_drafted
    assert num_before > 0
    assert num_carried == 0 or commit == "canonical"  # which reads a side branch once more


def test_a_draft_by_count_has_so_many_tokens(session_of, model):
    session = session_of("embedded", "fp32")
    prompt = Tokenizer.of(session.bundle).encode(example("ui", HELD_OUT_SEEDS[315]).prompt)
    for method in STRICT:
        most = draft_method(method).most_drafted
        if most is None:
            continue
        left = 30
        drafter = make_drafter(session, method, "compact", draft_model=model)
        for step in generate(session, prompt, max_new_tokens=left, drafter=drafter):
            # A tree may have branches where a chain would be longer than the answer.
            assert min(most, left - 1) <= step.num_drafted <= most or not step.token_ids
            left -= len(step.token_ids)


def test_drafting_goes_on_only_while_there_is_time_for_it(session_of, model):
    session = session_of("embedded", "fp32")
    prompt = Tokenizer.of(session.bundle).encode(example("ui", HELD_OUT_SEEDS[316]).prompt)
    drafter = make_drafter(session, "edgellm", draft_model=model)
    drafter.begin(prompt, 20)
    assert not drafter.draft_on(1e9), "nothing was drafted that the target verifies"
    drafter.propose(len(prompt) - 1)
    assert not drafter.draft_on(0.0)
    assert drafter.num_provisional == 0
    assert drafter.draft_on(1e9)
    assert drafter.num_provisional == 1
    assert drafter.gap_s > 0


def test_one_slow_step_does_not_end_drafting_in_gaps(session_of, model, monkeypatch):
    session = session_of("embedded", "fp32")
    prompt = Tokenizer.of(session.bundle).encode(example("ui", HELD_OUT_SEEDS[316]).prompt)
    now, step_s, step = [0.0], [1e-3], model.session.step

    def timed(inputs):
        now[0] += step_s[0]
        return step(inputs)

    monkeypatch.setattr(model.session, "step", timed)
    drafter = make_drafter(session, "edgellm-ours", draft_model=DraftModel(model.session))
    drafter.model.clock = lambda: now[0]
    drafter.begin(prompt, 60)
    drafter.propose(len(prompt) - 1)
    assert drafter.num_runs > 1, "a step of one token was measured"
    step_s[0] = 1000.0
    assert drafter.draft_on(1500.0)
    step_s[0] = 1e-3
    assert [drafter.draft_on(1500.0) for _ in range(5)] == [False] * 3 + [True] * 2
    assert not drafter.draft_on(900.0), "a step takes longer, whatever is tried again"
    assert [drafter.draft_on(900.0) for _ in range(50)] == [False] * 50


def test_a_simulated_device_tells_how_long_drafting_takes(session_of, model, monkeypatch):
    monkeypatch.setattr(model.session.device, "clock", SimulatedClock())
    session, prompt = session_of("embedded", "fp32"), np.arange(40, 60, dtype=np.uint32)
    drafter = make_drafter(session, "edgellm-ours", draft_model=DraftModel(model.session))
    drafter.begin(prompt, 20)
    drafter.propose(len(prompt) - 1)
    assert (drafter.num_runs > 0, drafter.model_s) == (True, 0.0), "nobody advances it"


def test_an_error_in_a_gap_is_left_to_the_next_draft(session_of, model, monkeypatch):
    session = session_of("embedded", "fp32")
    prompt = Tokenizer.of(session.bundle).encode(example("ui", HELD_OUT_SEEDS[316]).prompt)
    drafter = make_drafter(session, "edgellm", draft_model=model)
    drafter.begin(prompt, 20)
    drafter.propose(len(prompt) - 1)
    num_asked = []

    def failing(inputs):
        num_asked.append(inputs.num_nodes)
        raise DeviceLostError("the draft model's device")  # the target's session would be closed

    monkeypatch.setattr(model.session, "step", failing)
    assert not drafter.draft_on(1e9)
    assert not drafter.draft_on(1e9)
    assert len(num_asked) == 1
    drafter.begin(prompt, 20)
    with pytest.raises(DeviceLostError, match="the draft model's device"):
        drafter.propose(len(prompt) - 1)


def test_a_row_that_is_not_read_is_not_kept(session_of, model, monkeypatch):
    session = session_of("embedded", "fp32")
    prompt = Tokenizer.of(session.bundle).encode(example("ui", HELD_OUT_SEEDS[316]).prompt)
    drafter = make_drafter(session, "edgellm", draft_model=model)
    drafter.begin(prompt, 20)
    assert drafter.model.step(12)
    length, step = model.session.length, model.session.step
    with monkeypatch.context() as patch:
        patch.setattr(model.session, "step", lambda inputs: np.full_like(step(inputs), np.nan))
        with pytest.raises(NonFiniteLogitsError):
            drafter.model.step(12)
    assert model.session.length == length
    assert drafter.model.step(12)
    assert model.session.length == length + 1


def test_a_draft_model_that_fails_ends_the_request_and_no_more(session_of, model, monkeypatch):
    session = session_of("embedded", "fp32")
    prompt = Tokenizer.of(session.bundle).encode(example("rag", HELD_OUT_SEEDS[313]).prompt)
    expected = tokens_of(plain(session, prompt, max_new_tokens=30))
    drafter = make_drafter(session, "edgellm", draft_model=model)
    for allowed in (0, 3, 9):
        with monkeypatch.context() as patch:
            calls, step = iter(range(1000)), model.session.step

            def failing(inputs, calls=calls, step=step, allowed=allowed):
                if next(calls) == allowed:
                    raise OSError("the disk is gone")
                return step(inputs)

            patch.setattr(model.session, "step", failing)
            given = []
            steps = generate(session, prompt, max_new_tokens=30, drafter=drafter)
            with pytest.raises(OSError, match="the disk is gone"):
                given.extend(token for step in steps for token in step.token_ids)
        assert given == expected[: len(given)]
        assert session.length == len(prompt) - 1 + len(given)
        assert tokens_of(generate(session, prompt, max_new_tokens=30, drafter=drafter)) == expected


def test_a_prompt_beyond_the_models_cache_is_answered_without_it(session_of, model):
    session = session_of("embedded", "fp32")
    drafter = make_drafter(session, "edgellm", draft_model=model)
    prompt = np.resize(np.arange(50, dtype=np.uint32), session.capacity - 4)
    stats = Stats()
    got = tokens_of(generate(session, prompt, max_new_tokens=50, drafter=drafter, stats=stats))
    assert got == tokens_of(plain(session, prompt, max_new_tokens=50))
    assert len(got) <= 5


def test_what_a_gap_has_no_room_for_takes_no_step_of_the_next_draft(session_of, model):
    session, sure = session_of("embedded", "fp32"), DraftModel(model.session, least_that_pays=0.9)
    drafter = make_drafter(session, "edgellm-ours", draft_model=sure)
    drafter.begin(np.resize(np.arange(50, dtype=np.uint32), session.capacity - 24), 20)
    drafter.model.draft(20)
    assert drafter.model.core.num_drafted < 20
    length = model.session.length
    assert not drafter.model.step(24, provisional=True)
    assert not drafter.model.step(20)
    assert model.session.length == length


def test_the_first_differing_token_is_named(session_of, bundle_of, tmp_path):
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "bundle"
    shutil.copytree("models/embedded-draft", checkpoint)
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    by_id = {token_id: token for token, token_id in vocab.items()}
    vocab[by_id[900]], vocab[by_id[901]] = 901, 900
    (checkpoint / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert main(["export", str(checkpoint), str(out)]) == 0
    with pytest.raises(DraftModelError, match="id 900"):
        DraftModel.open(out, session_of("embedded", "fp32"))


def test_a_model_that_costs_what_it_saves_is_not_asked(session_of, bundle_of, monkeypatch):
    target, path = session_of("embedded", "fp32"), bundle_of("embedded-draft", "fp32")
    monkeypatch.setattr(target, "step_costs", None)
    assert DraftModel.open(path, target).least_that_pays == 0
    costs = [StepCost(10.0 + 2 * index, 0.0) for index in range(len(target.widths))]
    monkeypatch.setattr(target, "step_costs", costs)
    model = DraftModel.open(path, target)
    assert model.least_that_pays > 0
    never = DraftModel(model.session, least_that_pays=1.0)
    monkeypatch.setattr(model.session, "step", lambda *_: pytest.fail("the model was asked"))
    drafter = make_drafter(target, EVERYTHING, draft_model=never)
    prompt = np.arange(40, 60, dtype=np.uint32)
    expected = tokens_of(plain(target, prompt, max_new_tokens=20))
    assert tokens_of(generate(target, prompt, max_new_tokens=20, drafter=drafter)) == expected


def test_a_request_too_long_for_the_draft_models_cache_is_not_copied_in_any_step():
    class Core:
        num_unread = 1_000_000

        def take_realignment(self):
            return None

        def unread(self):
            raise AssertionError("a copy of the whole request")

    class Narrow:
        rows = 16

    class Full:
        step_inputs, length, capacity = [Narrow()], 0, 512

    model = DraftModel.__new__(DraftModel)
    model.session, model.core = Full(), Core()
    assert not model.catch_up()
    assert not model.step(8)


def test_methods_that_draft_alike_share_a_tree(model):
    assert model.shaped(draft_method("edgellm-ours")) is model
    assert model.shaped(draft_method("blend")) is model
    other = model.shaped(draft_method("edgellm"))
    assert other is not model
    assert other.shaped(draft_method("edgellm-bnv-sf")) is other
    assert other.shaped(draft_method("edgellm:alpha=0.5")) is not other


def test_what_does_not_fit_is_refused_by_name(session_of, bundle_of, model):
    target = session_of("embedded", "fp32")
    with pytest.raises(OptionError, match="method"):
        DraftModel(model.session, method="edgellm")
    with pytest.raises(OptionError, match="draft model"):
        make_drafter(target, "edgellm")
    with pytest.raises(DraftModelError, match="vocabulary of 512"):
        DraftModel.open(bundle_of("stories260K", "fp32"), target)


@pytest.mark.parametrize("draft", ["edgellm", "edgellm-ours", "speculative"])
def test_without_room_for_a_draft_the_model_is_not_run(session_of, model, monkeypatch, draft):
    session, prompt = session_of("embedded", "fp32"), np.arange(40, 240, dtype=np.uint32)
    expected = tokens_of(plain(session, prompt, max_new_tokens=10))
    for call in ("prefill", "step"):
        monkeypatch.setattr(model.session, call, lambda *_: pytest.fail("the model is run"))
    drafter = make_drafter(session, draft, draft_model=model)
    for no_room, limit in ((ModelDrafter(drafter.drafter, drafter.model, 0), 10), (drafter, 1)):
        steps = list(generate(session, prompt, drafter=no_room, max_new_tokens=limit))
        assert [step.token_ids for step in steps] == [[token] for token in expected[:limit]]
        assert not no_room.draft_on(1e9)
