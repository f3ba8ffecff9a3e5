"""Plans through the binding, and profiles as files."""

import json
import os

import pytest

from checkpoints import ROOT
from coordgen_rs._core import BlockCost, starts, strategies
from coordgen_rs._core import plan as plan_blocks
from coordgen_rs.errors import MemoryBudgetError, OptionError, ProfileError, ShapeError
from coordgen_rs.lab.loads.plans import plan_by_all, plan_prompt, plan_to_json, step_us
from coordgen_rs.loading.profile import (
    BlockFigures,
    DecodeFigures,
    GraphFigures,
    Profile,
    packaged_profiles,
)

FIGURES = {
    "prefill_load_us": 100,
    "prefill_compute_us": 1_000,
    "prefill_bytes": 5,
    "decode_load_us": 2_000,
    "decode_compute_us": 125,
    "decode_bytes": 5,
}
"""A load of G2 takes as long as two chunks; both graphs are as quick."""
FIGURE_8 = {
    "blocks": [BlockCost(**FIGURES)] * 6,
    "prefill_rows": 256,
    "decode_rows": 32,
    "num_tokens": 512,
}


@pytest.fixture
def profile():
    prefill = GraphFigures(9_000.4, 10.0, 10_000.0, 5.0, 100)
    decode = DecodeFigures(28_000.0, 10.0, 1_700.0, 5.0, 110, {1: 600.0, 32: 1_700.0})
    return Profile(
        schema_version=1,
        source="measured",
        note="",
        bundle={"layers": 24, "tied": True},
        device={"cores": 2},
        prefill_rows=256,
        decode_rows=32,
        blocks=[BlockFigures(prefill, decode)] * 6,
        head=None,
        step_us_by_width={1: 4_000.0, 32: 11_000.0},
    )


def test_figure_8_through_the_binding():
    plan = plan_blocks(**FIGURE_8, strategy="greedy")
    assert (plan.makespan_us, plan.prefill_us, plan.exposed_load_us) == (12_000, 12_000, 0)
    assert (plan.strategy, plan.num_blocks, plan.peak_bytes) == ("greedy", 6, 30)
    assert repr(plan.runs[0]) == "Run(block 0, chunk 0, prefill, 0 to 1000 us)"
    assert repr(plan.runs[5]) == "Run(block 5, chunk 0, decode, 5000 to 6000 us)"
    loads = [action for action in plan.actions if action.kind == "load"]
    assert [(load.block, load.after_runs) for load in loads] == [
        *((5, 0), (4, 2), (3, 4), (2, 6), (1, 8), (0, 10))
    ]
    assert repr(loads[0]) == "Action(load block 5, decode, after 0 runs, 0 to 2000 us)"


def test_each_block_may_start_with_other_graphs():
    start = ["decode"] * 5 + ["prefill"]
    plan = plan_blocks(**FIGURE_8, start=start, strategy="single", memory_budget=30)
    assert [action.block for action in plan.actions if action.kind == "load"] == [5]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"strategy": "best"}, OptionError, "resident, sync, async"),
        ({"start": "Both"}, OptionError, "prefill, decode, nothing, both"),
        ({"start": ["both"]}, ShapeError, "start has 1 elements, expected 6"),
        ({"num_tokens": 0}, OptionError, "prompt tokens is 0"),
        ({"num_tokens": -1}, OptionError, "prompt tokens is -1"),
        ({"num_tokens": 2**40}, OptionError, "at most 131,072 runs"),
        ({"memory_budget": -1}, OptionError, "memory_budget is -1"),
        ({"memory_budget": 29}, MemoryBudgetError, "29 bytes, but 30 bytes"),
        ({"blocks": []}, OptionError, "number of blocks is 0"),
        ({"decode_rows": 512}, OptionError, "prefill_rows is 256"),
    ],
)
def test_a_wrong_argument_is_named(wrong, error, message):
    with pytest.raises(error, match=message):
        plan_blocks(**(FIGURE_8 | wrong))


def test_a_block_cost_names_every_figure():
    cost = BlockCost(**FIGURES)
    for name, figure in FIGURES.items():
        assert getattr(cost, name) == figure
        assert cost != BlockCost(**FIGURES | {name: figure + 1})
        with pytest.raises(OptionError, match=f"{name} is -1"):
            BlockCost(**FIGURES | {name: -1})
    assert cost == BlockCost(**FIGURES)
    assert eval(repr(cost)) == cost
    delayed = cost.with_load_delay(7)
    assert delayed == BlockCost(**FIGURES | {"prefill_load_us": 107, "decode_load_us": 2_007})
    guessed = BlockCost.guessed(5_000_000, 256, 32)
    assert (guessed.decode_load_us, guessed.decode_compute_us) == (5_000, 1_600)


def test_every_strategy_is_told_in_a_line_and_stands_in_the_guide():
    guide = (ROOT / "docs" / "switching-and-streaming.md").read_text("utf-8")
    rows = [line.split("`")[1] for line in guide.splitlines() if line.startswith("| `")]
    assert rows == list(strategies())
    assert all(strategies().values())


def test_every_strategy_plans_every_start(profile):
    for start in starts():
        plans = plan_by_all(profile, 1_000, start=start)
        assert list(plans) == list(strategies())
        assert plans["auto"].makespan_us == min(plan.makespan_us for plan in plans.values())


def test_what_does_not_fit_is_told_by_strategy(profile):
    plans = plan_by_all(profile, 1_000, memory_budget=660)
    assert isinstance(plans["resident"], MemoryBudgetError)
    assert plans["auto"].peak_bytes <= 660


def test_json_holds_the_whole_schedule(profile):
    document = plan_to_json(plan_prompt(profile, 1_000, strategy="sync"))
    figures = "makespan_us", "prefill_us", "exposed_load_us", "peak_bytes", "lower_bound_us"
    assert set(document) == {*figures, "schedule"}
    assert len(document["schedule"]["runs"]) == 4 * 6
    first = {"block": 0, "chunk": 0, "graph": "prefill", "start_us": 0, "end_us": 10_000}
    assert document["schedule"]["runs"][0] == first
    assert document["schedule"]["actions"][-1]["end_us"] == document["makespan_us"]


def test_a_profile_comes_back_as_it_was_written_also_behind_a_byte_order_mark(profile, tmp_path):
    profile.write(tmp_path / "profile.json")
    assert Profile.read(tmp_path / "profile.json") == profile
    (tmp_path / "profile.json").write_text("\ufeff" + profile.to_json(), "utf-8")
    assert Profile.find(str(tmp_path / "profile.json")) == profile
    assert profile.block_costs()[0] == BlockCost(
        prefill_load_us=9_000,
        prefill_compute_us=10_000,
        prefill_bytes=100,
        decode_load_us=28_000,
        decode_compute_us=1_700,
        decode_bytes=110,
    )


def change(profile, path, value):
    """The profile's document with another value at a path of keys."""
    document = json.loads(profile.to_json())
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["schema_version"], 2, "schema version 2, this coordgen_rs reads 1"),
        (["source"], "guessed", "profile.source is 'guessed', expected one of measured, paper"),
        (["blocks"], [], "profile.blocks is empty"),
        (["blocks", 1, "decode", "load_us"], -1, r"profile.blocks\[1\].decode.load_us is -1"),
        (["blocks", 0, "prefill", "num_bytes"], 1.5, "num_bytes is float 1.5, expected int"),
        (["blocks", 0, "prefill", "num_bytes"], 2**60, r"num_bytes is \d+, expected 0 or more"),
        (["blocks", 0, "prefill", "load_us"], 10**400, "the profile holds the integer 10*, which"),
        (["blocks", 0, "prefill", "load_us"], float("nan"), "the profile holds NaN"),
        (["blocks", 0, "decode"], {}, r"profile.blocks\[0\].decode has no field compute_spread_us"),
        (["decode_rows"], 512, "profile.decode_rows is 512, expected 1 to prefill_rows, 256"),
        (["step_us_by_width"], {"0": 1.0}, "step_us_by_width has the key 0"),
        (["step_us_by_width"], {"wide": 1.0}, "step_us_by_width has the key 'wide'"),
    ],
)
def test_a_wrong_profile_is_refused_by_the_field(profile, path, value, message):
    with pytest.raises(ProfileError, match=message):
        Profile.from_json(change(profile, path, value))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1}', "[" * 200_000], ids=len)
def test_what_is_no_profile_is_refused(text):
    with pytest.raises(ProfileError):
        Profile.from_json(text)


def test_a_directory_or_a_pipe_is_no_profile(tmp_path):
    with pytest.raises(ProfileError, match="is a directory, not a regular file"):
        Profile.find(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ProfileError, match="is a pipe, not a regular file"):
        Profile.find(str(tmp_path / "pipe"))


def test_a_wrong_name_lists_the_right_ones():
    with pytest.raises(ProfileError, match=r"redmi-k60-pro-qwen2\.5-1\.5b"):
        Profile.find("redmi")


@pytest.mark.parametrize("name", packaged_profiles())
def test_packaged_profiles_are_marked_and_can_be_planned(name):
    profile = Profile.find(name)
    assert profile.source == "paper"
    assert "none of its results" in profile.note
    plans = plan_by_all(profile, 1_024)
    assert plans["auto"].makespan_us < plans["sync"].makespan_us
    assert sum(block.decode.compute_us for block in profile.blocks) == pytest.approx(
        profile.step_us_by_width[profile.decode_rows], rel=1e-3
    )


def test_packaged_profiles_are_what_the_paper_tells():
    """Sections 1, 2.1, 2.3, 3.2 and 4.3 of CoordGen, and the line between two of its steps."""
    profiles = {name: Profile.find(name) for name in packaged_profiles()}
    assert {(of.prefill_rows, of.decode_rows) for of in profiles.values()} == {
        (256, 256 // 4), (256, 256 // 2), (256, 32),
    }  # fmt: skip
    told = {1: 51.1e3, 32: 32 * 5.7e3, 256: 256 * 1e6 / 1_000}
    for profile in profiles.values():
        blocks = profile.blocks
        load_us = sum(block.decode.load_us for block in blocks)
        assert load_us == pytest.approx(0.949 * 2e6, rel=1e-3)
        assert sum(block.prefill.compute_us for block in blocks) == pytest.approx(
            told[256], rel=1e-3
        )
        assert sum(block.prefill.num_bytes for block in blocks) == pytest.approx(3.05e9)
        for rows, us in profile.step_us_by_width.items():
            assert us == pytest.approx(step_us(told, rows), abs=1)
            shares = [block.decode.compute_us_by_width[rows] for block in blocks]
            assert sum(shares) == pytest.approx(us, rel=1e-3)
