"""A device in a profile's time: the model's tokens, and schedules as they are planned."""

from dataclasses import replace

import numpy as np
import pytest

from checkpoints import CHECKPOINTS
from coordgen_rs import plain
from coordgen_rs._core import SimulatedClock
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import MemoryBudgetError, OptionError, ProfileError
from coordgen_rs.lab.bench.workbench import Settings, Workbench
from coordgen_rs.lab.loads.plans import plan_prompt
from coordgen_rs.lab.loads.simulated import figure_8, open_simulated, simulate, with_decode_rows
from coordgen_rs.runtime.cpu import CpuDevice
from coordgen_rs.runtime.ort_session import OrtSession


@pytest.fixture(scope="module", params=[1, 3])
def bundle(request, tmp_path_factory):
    """The embedded model, in other numbers of blocks than the profile has."""
    out = tmp_path_factory.mktemp("simulated") / "bundle"
    rows = {"prefill_rows": 64, "context": 512}
    export_checkpoint(CHECKPOINTS["embedded"], out, blocks=request.param, **rows)
    return Bundle.open(out)


@pytest.fixture(scope="module")
def profile():
    """That of Figure 8."""
    return figure_8(64, 32)


def prompt_of(session, num_tokens, seed=0):
    ids = np.random.default_rng(seed).integers(session.vocab_size, size=num_tokens)
    return ids.astype(np.uint32)


@pytest.fixture(scope="module")
def prompt(bundle):
    """Two chunks, and the token that the first step begins with."""
    return np.random.default_rng(0).integers(bundle.manifest.model.vocab_size, size=129, dtype="u4")


@pytest.mark.parametrize("budget", [None, 600])
@pytest.mark.parametrize(
    ("strategy", "computations"),
    [("sync", 24), ("async", 19), ("greedy", 12), ("just_in_time", 12)],
)
def test_figure_8_is_carried_out_to_the_microsecond(
    bundle, profile, prompt, strategy, computations, budget
):
    given = simulate(
        bundle, profile, [prompt] * 2, strategy=strategy, memory_budget=budget, max_new_tokens=4
    )
    planned = plan_prompt(profile, 128, strategy=strategy, memory_budget=budget)
    for one in given:
        assert one.makespan_ms == pytest.approx(10 * computations)
        assert one.makespan_ms == pytest.approx(planned.makespan_us / 1e3)
        assert one.prefill_ms == planned.prefill_us / 1e3
        assert one.ms_per_token == pytest.approx(30)
        assert one.answer_ms_per_token == pytest.approx(one.makespan_ms / 4 + 30)
        assert one.joules is None
        assert budget is None or one.peak_bytes <= budget


def test_tokens_are_those_of_the_model_and_drafts_take_what_they_are_told_to(
    bundle, profile, prompt
):
    with OrtSession(CpuDevice(bundle)) as session:
        expected = [step.token_ids[0] for step in plain(session, prompt, max_new_tokens=24)]
    for method in ("plain", "sam", "auto"):
        given, free = (
            simulate(bundle, profile, [prompt], method=method, max_new_tokens=24, drafting_us=us)[0]
            for us in (3_000, 0)
        )
        answered = given.answered
        assert answered.tokens[: len(expected)] == expected
        assert answered.tokens == free.answered.tokens
        steps = 0 if method == "plain" else answered.stats.steps
        assert answered.total_s - free.answered.total_s == pytest.approx(3e-3 * steps)


def test_two_sessions_share_a_clock(bundle, profile):
    clock = SimulatedClock()
    with (
        open_simulated(bundle, profile, clock) as target,
        open_simulated(bundle, profile, clock) as draft,
    ):
        target.switcher.only("prefill")
        loaded_us = clock.now_us
        draft.switcher.ensure("decode")
        assert clock.now_us - loaded_us == loaded_us == 6 * 20_000
        draft.switcher.ensure("prefill")
        draft.prefill(prompt_of(draft, 20), "decode")
        assert clock.now_us == 3 * loaded_us + 6 * 5_000
        assert target.switcher.resident() == [(True, False)] * 6


def test_a_bench_over_it_is_in_its_time_and_says_so(bundle, profile, prompt):
    with open_simulated(bundle, profile, SimulatedClock()) as session:
        bench = Workbench(Settings(bundle.path, max_new_tokens=4), session, {"task": [prompt]})
        session.switcher.only("decode")
        assert bench.how == "simulated"
        assert bench.answer(prompt, None).stats.decode_s == pytest.approx(4 * 30e-3)


def test_energy_is_the_power_over_the_whole_answer(bundle, profile, prompt):
    (given,) = simulate(bundle, replace(profile, watts=5.0), [prompt], max_new_tokens=4)
    assert given.joules == pytest.approx(5 * given.answered.total_s)


@pytest.mark.parametrize("decode_rows", [16, 64])
def test_a_bundle_has_a_decode_graph_of_other_rows(bundle, prompt, decode_rows):
    other = with_decode_rows(bundle, decode_rows)
    assert max(other.manifest.decode_widths) == decode_rows
    (given,) = simulate(other, figure_8(64, decode_rows), [prompt[:65]], max_new_tokens=8)
    with OrtSession(CpuDevice(bundle)) as session:
        expected = [step.token_ids[0] for step in plain(session, prompt[:65], max_new_tokens=8)]
    assert given.answered.tokens[: len(expected)] == expected
    with pytest.raises(OptionError, match="decode_rows is 65, but must be from 1 to 64"):
        with_decode_rows(bundle, 65)


def test_what_cannot_be_simulated_is_refused(bundle, profile, prompt):
    with pytest.raises(ProfileError, match="the profile is for chunks of 256 and steps of 32 rows"):
        simulate(bundle, replace(profile, prefill_rows=256), [prompt])
    with pytest.raises(OptionError, match="do not enclose 1"):
        simulate(bundle, replace(profile, step_us_by_width={32: 1.0}), [prompt], widths=[1])
    with pytest.raises(OptionError, match="'edgellm' needs a draft model"):
        simulate(bundle, profile, [prompt], method="edgellm")
    with pytest.raises(MemoryBudgetError):
        simulate(bundle, profile, [prompt], memory_budget=599)
