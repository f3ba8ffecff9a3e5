"""`coordgen plan` as a user types it, and its simulations."""

import json
import re
import sys
from functools import partial

import pytest

from coordgen_rs._core import strategies
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.loads.plans import simulate_decode, step_us, tokens_per_step
from coordgen_rs.loading.profile import Profile

PROFILE = "redmi-k60-pro-qwen2.5-1.5b"


@pytest.fixture
def coordgen(coordgen):
    return partial(coordgen, "plan")


@pytest.fixture
def without(monkeypatch):
    """A function that makes a package look as if it were not installed."""

    def hide(package):
        for name in [*sys.modules, package]:
            if name == package or name.startswith(f"{package}."):
                monkeypatch.setitem(sys.modules, name, None)

    return hide


def test_the_table_has_a_row_a_strategy_and_is_plain_without_rich(coordgen, without):
    rich = coordgen("--profile", PROFILE, "--prompt-len", 1_024).out
    assert all(name in rich for name in strategies())
    assert re.search(r"auto +. just_in_time", rich)
    assert "figures from a paper" in rich
    without("rich")
    plain = coordgen("--profile", PROFILE, "--prompt-len", 1_024).out
    assert "│" not in plain
    figures = [line.split() for line in plain.splitlines()[2:]]
    assert all(" ".join(row[-2:]) in " ".join(rich.split()).replace(" │", "") for row in figures)


def test_json_holds_every_strategy_that_fits(coordgen):
    request = ("--profile", PROFILE, "--prompt-len", 1_024, "--json")
    found = json.loads(coordgen(*request).out)["strategies"]
    assert list(found) == list(strategies())
    done = coordgen(*request, "--memory-budget", "3.05G")
    assert list(json.loads(done.out)["strategies"]) == list(strategies())[1:]
    assert done.err.startswith("resident: the memory budget is 3050000000 bytes")


def test_one_strategy_is_printed_alone(coordgen):
    request = ("--profile", PROFILE, "--prompt-len", 200, "--start", "decode")
    done = coordgen(*request, "--strategy", "single", "--json")
    (plan,) = json.loads(done.out)["strategies"].values()
    assert plan["schedule"]["actions"] == []


def test_the_picture_is_a_png(coordgen, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.png"
    coordgen("--profile", PROFILE, "--prompt-len", 1_024, "--plot", path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_decoding_is_simulated_by_width(coordgen):
    request = ("--profile", PROFILE, "--simulate-decode")
    out = coordgen(*request, "--acceptance-rate", 0.8).out
    assert "best: 8 rows" in out
    measured = coordgen(*request, "--widths", "1,32", "--tokens-per-step", "32=5", "--json").out
    assert json.loads(measured)["best"] == 32
    assert json.loads(measured)["widths"]["32"]["ms_per_token"] == pytest.approx(182.4 / 5)


def test_the_grid_has_every_point(coordgen):
    grid = json.loads(coordgen("--grid", "--json").out)
    assert len(grid) == 3 * 5 * 4 * 3
    for point in grid:
        ratios = point["ratios"]
        assert 1 <= ratios["auto"] <= ratios["just_in_time"] <= ratios["greedy"]
        assert ratios["just_in_time"] <= ratios["async"] <= ratios["sync"]
    assert max(point["ratios"]["just_in_time"] for point in grid) <= 1.25
    assert "makespan / lower bound" in coordgen("--grid").out


SHORT, DECODE = f"--profile {PROFILE} --prompt-len 9", f"--profile {PROFILE} --simulate-decode"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "--profile is missing"),
        (f"--profile {PROFILE}", "--prompt-len is missing"),
        ("--profile nowhere.json --prompt-len 9", "there is no profile at nowhere.json"),
        (f"--profile {PROFILE} --prompt-len 0", "--prompt-len is 0"),
        (f"--profile {PROFILE} --prompt-len -4", "--prompt-len is -4"),
        (f"{SHORT} --memory-budget much", "--memory-budget: 'much' is not a number of bytes"),
        (f"{SHORT} --memory-budget 2G", "the memory budget is 2000000000 bytes, but"),
        (f"{SHORT} --plot plan.doc", "plan.doc cannot be drawn"),
        (DECODE, "give either an acceptance rate or"),
        (f"{DECODE} --tokens-per-step x", "--tokens-per-step 'x' is not like 8=3.3,16=3.6"),
        (f"{DECODE} --tokens-per-step 8=", "--tokens-per-step '8=' is not like 8=3.3,16=3.6"),
        (f"{DECODE} --widths 0", "--widths is 0"),
        (f"{DECODE} --acceptance-rate 1.5", "--acceptance-rate is 1.5"),
        (f"{DECODE} --drafting-us nan", "--drafting-us is nan"),
    ],
)
def test_a_mistake_is_told_in_one_line(coordgen, arguments, message):
    err = coordgen(*arguments.split(), code=2).err
    assert err.startswith(f"coordgen: error: {message}")
    assert err.count("\n") == 1


def test_a_file_that_is_no_profile_is_told_in_one_line(coordgen, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text("not json")
    err = coordgen("--profile", path, "--prompt-len", 9, code=2).err
    assert "profile.json is not valid JSON" in err
    assert err.count("\n") == 1


def test_without_matplotlib_the_picture_says_what_to_install(coordgen, without, tmp_path):
    without("matplotlib")
    request = ("--profile", PROFILE, "--prompt-len", 9, "--plot", tmp_path / "plan.png")
    assert "plots need matplotlib: pip install " in coordgen(*request, code=2).err


def test_decoding_comes_near_table_3_where_the_paper_tells_what_a_step_costs():
    """Qwen2.5-1.5B on the Redmi K60 Pro: +G 47.72, +G+SD 25.35 ms a token; SAM accepts 3.60."""
    profile = Profile.find("redmi-k60-pro-qwen2.5-1.5b")
    rate = 1 - 1 / 3.60  # of endless drafts; drafting takes up to 3 ms a step (section 4.4)
    plain, *drafted = simulate_decode(
        profile.step_us_by_width, [1, 4, 8, 16, 32], acceptance_rate=rate, drafting_us=3_000
    )
    assert plain.ms_per_token / 47.72 == pytest.approx(1.071, abs=1e-3)
    best = min(drafted, key=lambda width: width.ms_per_token)
    assert (best.rows, best.ms_per_token / 25.35) == (8, pytest.approx(0.992, abs=1e-3))


def test_expected_tokens_are_those_of_every_outcome():
    for rate in (0.0, 0.3, 1.0):
        for rows in (1, 2, 5):
            # `n` draft tokens in a row are right, then one is not, or there is none left.
            expected = sum(rate**n * (1 - rate) * (n + 1) for n in range(rows - 1))
            assert tokens_per_step(rows, rate) == pytest.approx(
                expected + rate ** (rows - 1) * rows
            )


def test_steps_between_measured_widths_are_on_the_line():
    steps = {1: 4_000.0, 8: 11_000.0, 32: 12_000.0}
    assert [step_us(steps, rows) for rows in (1, 2, 8, 32)] == [4_000, 5_000, 11_000, 12_000]
    with pytest.raises(OptionError, match="1, 8, 32 rows, which do not enclose 64"):
        step_us(steps, 64)


def test_measured_acceptance_needs_every_width():
    steps = {1: 4_000.0, 32: 11_000.0}
    one, wide = simulate_decode(steps, [1, 32], known_tokens_per_step={32: 5.0})
    assert (one.ms_per_token, wide.ms_per_token) == (4.0, pytest.approx(2.2))
    for wrong in ({}, {32: 33.0}, {32: 0.5}, {32: float("nan")}):
        with pytest.raises(OptionError, match="tokens a step of 32 rows"):
            simulate_decode(steps, [32], known_tokens_per_step=wrong)
    for neither in ({}, {"acceptance_rate": 0.5, "known_tokens_per_step": {}}):
        with pytest.raises(OptionError, match="either"):
            simulate_decode(steps, [32], **neither)
