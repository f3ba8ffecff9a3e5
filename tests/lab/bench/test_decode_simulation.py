"""What a token would cost with graphs of some widths, against the paper and against counting."""

import pytest

from coordgen_rs.errors import OptionError
from coordgen_rs.lab.plans.simulation import simulate_decode, step_us, tokens_per_step
from coordgen_rs.loading.profile import Profile


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
