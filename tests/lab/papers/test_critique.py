"""What the papers' own numbers say of each other: the arithmetic, done again by hand."""

import pytest

from coordgen_rs.lab.papers.critique import remarks, told
from coordgen_rs.lab.papers.items import PAPERS

STEP = (47.72 - 25.35) / (1 - 1 / 3.60)
LINE = [51.1 + (32 * 5.7 - 51.1) * (rows - 1) / 31 for rows in range(257)]
"""Figure 6, by rows: 51.1 ms with 1, 5.7 ms a row with 32."""
CHUNK = 256 * 1_000 / 1_000
"""Milliseconds, at 1000 tokens/s."""
STEPS = {32: 32 * 5.7, 64: 32 * 5.7 + (CHUNK - 32 * 5.7) * 32 / 224}
STEPS[128] = 32 * 5.7 + (CHUNK - 32 * 5.7) * 96 / 224

EXPECTED = {
    "+G saves without drafts": 57.41 - 47.72,
    "+G saves with drafts": 35.04 - 25.35,
    "a step, ms": STEP,
    "prefill and switching": 47.72 - STEP,
    "Ours, ms/token": 47.72 - STEP + STEP / 4.21,
    "Ours over +G+SD": 25.35 / 15.08,
    "a step of 32 rows": 32 * 5.7 / 4.21,
    "throughput of 8": 100 * (1 - (8 / LINE[8]) / (64 / LINE[64])),
    "prefill by 256": 256 / LINE[256] * 1e3,
    "a run of 32 rows": 8 * 32,
    "loads, s": 0.949 * 2 / (1 - 0.735),
    "what of these loads": 100 * 2 / (0.949 * 2 / (1 - 0.735)),
    "a chunk in pieces of 64": 4 * STEPS[64] / CHUNK,
    "a chunk in pieces of 128": 2 * STEPS[128] / CHUNK,
    "speedup, if decoding, 74 %": 1 / 0.26,
    "speedup, if decoding took": 1 / (0.26 + 0.74 / 8.15),
    "calibration of 1,024": 2,
    "EAGLE, ms/token": 32 * 5.7 / 5.5 + 51.1 * (46.8 + 233.4) / (28 * 46.8 + 233.4),
    "of it the verification": 32 * 5.7 / 5.5,
    "provisional generation": (15.2 + 15.2 / 2.5 * 1.3) / (15.2 + (1 - 0.472) * 15.2 / 2.5 * 1.3),
    "over SP by branches": 1.4 * 1.08,
    "tokens for a verification, least": 7.0 / 1.31,
    "tokens for a verification, most": 10.5 / 1.89,
    "mT5, P over G": 0.48 / 0.33,
    "a verification over": 21.8,
    "the most that overlap": 1 / (1 - 0.0015 - 0.027),
    "1B, SAM-D, QA": 1_000 / 45.64,
}


@pytest.mark.parametrize(("begin", "figure"), EXPECTED.items())
def test_a_remark_is_what_its_name_says(begin, figure):
    (one,) = [one for one in remarks() if one.name.startswith(begin)]
    assert one.figure == pytest.approx(figure, rel=1e-4)


@pytest.mark.parametrize(("rows", "figure"), [(32, 4_877), (64, 2_700), (128, 1_540)])
def test_k_star_loses_to_loading_at_the_end_where_loads_take_two_blocks(rows, figure):
    """Prompts of 1,024 tokens; each load takes as long as two blocks' chunks (Figure 8)."""
    of = {one.name: one.figure for one in remarks()}
    named = f", 1,024 tokens, G2 of {rows} rows, loads of two blocks, ms"
    assert of[f"sync{named}"] == pytest.approx(4 * 256 + 6 * 2 * 256 / 6, rel=1e-4)
    assert of[f"greedy{named}"] == pytest.approx(figure, rel=1e-3)
    assert of[f"greedy{named}"] > of[f"sync{named}"]


@pytest.mark.parametrize("rows", [32, 64, 128])
def test_loads_of_94_9_percent_of_the_prefill_are_added_to_it(rows):
    of = {one.name: one.figure for one in remarks()}
    named = f", 1,024 tokens, G2 of {rows} rows, loads of 94.9 % of 2 s, ms"
    assert of[f"sync{named}"] == pytest.approx(4 * 256 + 1_898, rel=1e-4)


@pytest.mark.parametrize(
    ("method", "times"),
    [
        ("SpS", [104.65, 123.54, 118.16, 113.34, 134.48, 164.80]),
        ("DIAA", [76.18, 54.76, 69.10, 77.58, 103.07, 86.26]),
    ],
)
def test_latencies_of_7b_are_not_what_table_2_has(method, times):
    vanilla = [130.22, 121.27, 125.76, 124.41, 156.84, 129.13]
    (one,) = [one for one in remarks() if one.name.startswith(f"{method}, 7B")]
    mean = sum(a / b for a, b in zip(vanilla, times, strict=True)) / 6
    assert one.figure == pytest.approx(mean)
    assert one.published is not None
    assert one.published > one.figure + 0.04


def test_remarks_are_of_all_papers_and_their_names_differ():
    assert list(dict.fromkeys(one.paper for one in remarks())) == list(PAPERS)
    assert len({(one.paper, one.name) for one in remarks()}) == len(remarks())
    with pytest.raises(KeyError):
        told("CoordGen Figure 8", "just_in_time")
