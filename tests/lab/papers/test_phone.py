"""CoordGen's items on the simulated phone: what plans, steps and the given tokens make of them."""

import json

import pytest

from coordgen_rs.lab.bench.switching import VARIANTS
from coordgen_rs.lab.loads.plans import plan_prompt
from coordgen_rs.lab.papers import phone
from coordgen_rs.lab.papers.items import Wanted
from coordgen_rs.loading.profile import Profile
from prompts import PROMPTS

NEW_TOKENS = 8
PROFILE = Profile.find("redmi-k60-pro-qwen2.5-1.5b")
BUDGET = 3_050_000_000


@pytest.fixture(scope="module")
def wanted(bundle_of, tmp_path_factory):
    data = tmp_path_factory.mktemp("phone") / "prompts.jsonl"
    data.write_text(json.dumps(PROMPTS[0]._asdict() | {"task": "summary"}))
    return Wanted(bundle_of("embedded", "fp32"), None, data, is_full=False, threads=None)


@pytest.fixture(scope="module")
def found(wanted):
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(phone, "_NEW_TOKENS", NEW_TOKENS)
        changed.setattr(phone, "EnergyMeter", NoMeter)
        return {(one.item, one.name): one for one in phone.phones(wanted)}


class NoMeter:
    """As on a machine that measures no energy."""

    @staticmethod
    def find(root):
        return None


def of_table_3(found, column):
    return found["CoordGen Table 3", f"Qwen2.5-1.5B, {column}"]


@pytest.mark.parametrize(
    ("column", "strategy", "start"),
    [
        ("NPU", "single", "decode"),
        ("+G", "greedy", "prefill"),
        ("+ graphs, just_in_time", "just_in_time", "prefill"),
    ],
)
def test_a_row_without_drafts_is_its_plan_and_steps_of_one_row(found, column, strategy, start):
    num_tokens = int(of_table_3(found, column).why.split()[0])
    request = {"strategy": strategy, "start": start, "memory_budget": BUDGET}
    plan = plan_prompt(PROFILE, num_tokens, **request)
    assert plan.peak_bytes <= BUDGET
    expected = plan.makespan_us / 1e3 / NEW_TOKENS + 51.1
    assert of_table_3(found, column).ours == pytest.approx(expected, rel=1e-4)


def test_table_3_has_each_column_and_ours_beside_it(found):
    columns = ("NPU", "+G", "+SD", "+G+SD", "Ours")
    assert list(phone.COLUMNS.values()) == list(columns)
    assert len(VARIANTS) == 7
    for column in (*columns, "+ graphs, just_in_time", "coordgen, just_in_time"):
        assert of_table_3(found, column).how == "simulated"
    # Section 4.4's 3 ms a step and section 3.3's 2 ms a token of the prompt are within it.
    beside = found["CoordGen Table 3", "at Table 4's tokens per step, +G+SD"]
    assert beside.ours == pytest.approx(
        of_table_3(found, "+G").ours - 51.1 + 25.35 * 0.992, rel=2e-3
    )


def test_gains_are_those_of_whole_answers_and_energy_is_their_time(found):
    ours = of_table_3(found, "Ours").ours
    for column, over in (("NPU", "over NPU vanilla"), ("+SD", "over SAM")):
        gain = of_table_3(found, column).ours / ours
        figures = "CoordGen Figure 10", "CoordGen Figure 11"
        for item, name in zip(figures, (f"Redmi K60 Pro, {over}", over), strict=True):
            for end in ("least", "most"):
                assert found[item, f"{name}, {end}"].ours == pytest.approx(gain)
    num_tokens = int(of_table_3(found, "NPU").why.split()[0])
    chunks_ms = plan_prompt(PROFILE, num_tokens, strategy="resident").prefill_us / 1e3
    on_cpu = found["CoordGen Figure 10", "summary, over CPU vanilla, most"]
    assert on_cpu.ours == pytest.approx((chunks_ms / NEW_TOKENS + 51.1) / ours, rel=1e-4)
    assert found["CoordGen Figure 11", "over CPU vanilla, least"].ours is None


def test_eagle_is_a_verification_over_5_5_tokens_and_a_run_of_its_draft_model_for_each():
    steps = {1: 100.0, 32: 550.0}
    assert phone.eagle_us(steps, 32) == pytest.approx(550 / 5.5 + 100 * phone.EAGLE_SHARE)
    assert pytest.approx(0.1815, abs=1e-4) == phone.EAGLE_SHARE


def test_figures_5_and_6_are_steps_of_the_profile(wanted):
    found = {(one.item, one.name): one.ours for one in phone.chunk_sizes(wanted)}
    steps = {32: 182.4, 64: 192.914, 128: 213.943}
    for rows, ms in steps.items():
        prefill = found["CoordGen Figure 5", f"Redmi K60 Pro, prefill at chunk {rows}, ms/token"]
        decode = found["CoordGen Figure 5", f"Redmi K60 Pro, decode at chunk {rows}, ms/token"]
        assert prefill == pytest.approx(ms / rows, rel=1e-4)
        assert decode == pytest.approx(ms / 4.2, rel=1e-4)
    of_8 = 51.1 + 7 * (182.4 - 51.1) / 31
    below = found["CoordGen Figure 6", "throughput of 8 rows, below that of 64, %"]
    assert below == pytest.approx(100 * (1 - (192.914 / 64) / (of_8 / 8)), rel=1e-3)
