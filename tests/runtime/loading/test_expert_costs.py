"""What experts cost: measured when a bundle is first opened, kept, and learned from steps."""

import json
from dataclasses import replace

import numpy as np
import pytest

from answers import step_of
from coordgen_rs import OrtSession, generate, make_drafter, open_bundle, open_session
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.loading import self_test
from coordgen_rs.runtime.session import ExpertReport
from mixtures import write_mixture

FAMILY = "qwen3_moe"
EXPERT_US = self_test._expert_us
"""As it is where tests do not replace it by what is always the same."""


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experts")
    export_checkpoint(write_mixture(folder / "checkpoint", FAMILY, seed=5), folder / "bundle")
    return folder / "bundle"


@pytest.fixture
def record(mixture, tmp_path, monkeypatch):
    """Opens the mixture where nothing is known of it, and gives what is kept then."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    session = open_session(mixture)
    (path,) = (tmp_path / "cache" / "coordgen_rs").glob("*.json")
    return session, path


def per_token(session):
    experts = session.bundle.manifest.experts
    return experts.chosen * len(experts.layers)


def test_steps_are_told_how_many_experts_unrelated_tokens_read(record):
    session, path = record
    kept = json.loads(path.read_text())
    counts = [cost.experts for cost in session.step_costs]
    assert counts == list(kept["experts"].values())
    assert counts == sorted(counts)
    experts = session.bundle.manifest.experts
    assert counts[0] == per_token(session) < counts[-1] <= experts.num * len(experts.layers)
    assert {cost.per_expert for cost in session.step_costs} == {kept["expert_us"]}
    assert kept["expert_us"] >= 0


@pytest.mark.parametrize("damage", [{"1": -1.0}, {"1": 9.0}, {"1": 1e12}, "experts"])
def test_a_damaged_count_costs_another_test(record, mixture, damage):
    session, path = record
    kept = json.loads(path.read_text())
    wrong = {**kept, "experts": {**kept["experts"], **damage} if damage != "experts" else damage}
    path.write_text(json.dumps(wrong))
    counts = [cost.experts for cost in open_session(mixture).step_costs]
    assert counts == [cost.experts for cost in session.step_costs]


def test_dense_models_have_no_experts_to_count(session_of):
    session = session_of("embedded", "fp32")
    session.rewind(0)
    step_of(session, [1])
    assert session.step_inputs[0].experts_read is None
    assert {cost.experts for cost in session.step_costs} == {0.0}


def test_padding_reads_no_experts_and_alike_rows_the_same(record):
    session, _ = record
    session.rewind(0)
    wide = session.step_inputs[-1]
    wide.fill_chain(np.array([7], np.uint32), 0)
    session.step(wide)
    assert wide.experts_read == (per_token(session), per_token(session))
    step_of(session, [7] * wide.rows, [0] * wide.rows)
    first_row, all_rows = wide.experts_read
    assert first_row == per_token(session)
    assert all_rows <= 2 * per_token(session)


def test_a_drafter_takes_what_a_step_has_read(record):
    session, _ = record
    prompt = np.tile(np.arange(3, 23, dtype=np.uint32), 4)
    drafter = make_drafter(session)
    for step in generate(session, prompt, max_new_tokens=12, drafter=drafter, ignore_eos=True):
        used = next(inputs for inputs in session.step_inputs if inputs.rows == step.num_rows)
        assert used.experts_read is None


def test_an_expert_costs_what_unrelated_rows_take_longer(record, monkeypatch, steady_expert_costs):
    session, _ = record
    times = iter(range(0, 10_000, 10))
    monkeypatch.setattr(self_test, "_clock", lambda _: lambda: next(times) / 1e6)
    experts = self_test._experts_read(session)
    alike_us = 10.0
    width = session.widths[-1]
    step_of(session, [0] * width, [0] * width)
    more = experts[width] - session.step_inputs[-1].experts_read[1]
    expected = (alike_us + 500.0 - alike_us) / more
    assert steady_expert_costs(session, alike_us + 500.0) == pytest.approx(expected, abs=1e-3)


def test_within_a_budget_steps_of_other_tokens_count_on_average(
    mixture, tmp_path, monkeypatch, steady_costs
):
    """Each time of a clock is longer than the one before: what is read belongs to the cost."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    manifest = open_bundle(mixture).manifest
    graphs = sum(manifest.files[block.weights].num_bytes for block in manifest.blocks)
    budget = graphs + manifest.experts.layers[0].num_bytes
    sessions = [open_session(mixture, memory_budget=it) for it in (budget, None)]
    monkeypatch.setattr(self_test, "_TIMED_SECONDS", 0.0)
    step, costs, tokens = OrtSession.step, [], []

    def told(session, inputs):
        if inputs.rows == session.widths[-1]:
            tokens.append(tuple(inputs.input_ids))
        return step(session, inputs)

    monkeypatch.setattr(OrtSession, "step", told)
    for session in sessions:
        squares = iter([number**2 / 1e6 for number in range(1000)])
        monkeypatch.setattr(self_test, "_clock", lambda _, squares=squares: lambda: next(squares))
        costs.append(steady_costs(session, None)[1])
    rounds, num_widths = self_test._TIMED_ROUNDS[0], len(sessions[0].widths)
    firsts = [(2 * done * num_widths + 1) ** 2 - (2 * done * num_widths) ** 2 for done in range(3)]
    assert costs == [sum(firsts) / rounds, firsts[0]]
    within, without = tokens[:rounds], tokens[rounds:]
    assert len(set(within)) == rounds
    assert len(set(without)) == 1


def test_within_a_budget_experts_count_that_are_not_in_memory(mixture, tmp_path, monkeypatch):
    """A step whose tokens were there before finds theirs, so it reads none, however many it has."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    manifest = open_bundle(mixture).manifest
    graphs = sum(manifest.files[block.weights].num_bytes for block in manifest.blocks)
    layers = [region.num_bytes for region in manifest.experts.layers]
    for held, is_enough in ((max(layers), False), (sum(layers), True)):
        session = open_session(mixture, memory_budget=graphs + held)
        counts = [cost.experts for cost in session.step_costs]
        assert counts == sorted(counts)
        for inputs in (session.step_inputs[0], session.step_inputs[-1]) * 2:
            inputs.fill_chain(np.arange(inputs.rows, dtype=np.uint32), session.length)
            before = session.expert_report()
            session.step(inputs)
            first_row, all_rows = inputs.experts_read
            assert all_rows == session.expert_report().since(before).misses
            assert first_row <= min(all_rows, per_token(session))
        assert (all_rows == 0) == is_enough
        assert is_enough or counts[-1] > 0


@pytest.mark.parametrize(("misses", "wait_us"), [(20, 2500.0), (0, 0.0)])
def test_a_wait_is_shared_by_the_experts_that_were_waited_for(
    mixture, monkeypatch, misses, wait_us
):
    before = ExpertReport(100, 20, 0, 0.05, 0, 0, 0, 0, 0)
    after = replace(before, asked=200, misses=20 + misses, waited_s=0.1)
    reports = iter((before, after))
    session = open_session(mixture)
    monkeypatch.setattr(session, "expert_report", lambda: next(reports))
    monkeypatch.setattr(self_test, "_reached", lambda *_: [])
    assert EXPERT_US(session, 0.0) == wait_us
