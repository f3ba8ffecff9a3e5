"""Lists of widths compared on recorded answers, and what the command prints."""

import json
import subprocess
import sys

import numpy as np
import pytest

from coordgen_rs.runtime.session import StepCost
from support.oracles import Recorded
from width_lists import compare, cost_at, lists_of

COSTS = {1: StepCost(10.0, 0.0), 2: StepCost(11.0, 0.5), 6: StepCost(19.0, 2.5)}


def test_what_lies_between_measured_widths_is_on_a_line_between_them():
    assert [cost_at(width, COSTS) for width in COSTS] == list(COSTS.values())
    assert cost_at(3, COSTS) == StepCost(13.0, 1.0)


def test_the_lists_begin_with_the_bundles_and_reach_as_far():
    lists = lists_of([1, 2, 3, 5, 8])
    assert list(lists.values()) == [
        [1, 2, 3, 5, 8],
        [1, 2, 8],
        [1, 2, 3, 4, 5, 6, 7, 8],
        [1, 2, 4, 8],
    ]


def test_finer_lists_are_faster_where_rows_beyond_a_copy_are_dear():
    random = np.random.default_rng(0)
    records = []
    for _ in range(30):  # copies of four tokens: a step of four would be best, or one of five
        pieces = random.permutation(400).astype(np.uint32).reshape(-1, 4)
        order = random.permutation(len(pieces))[:12]
        records.append(Recorded(pieces.ravel(), pieces[order].ravel()))
    costs = {width: StepCost(10.0 + 2 * width, 0.0) for width in (1, 2, 8)}
    rows = {row["list"]: row for row in compare(costs, {"copies": records}, 400, 900)}
    assert rows["the bundle's"]["over_own"] == 1
    finer = rows["every width to 8"]
    assert finer["over_own"] > 1.02
    assert finer["over_plain"] == pytest.approx(
        finer["over_own"] * rows["the bundle's"]["over_plain"]
    )


def test_the_command_prints_every_list(bundle_of, data):
    command = [sys.executable, "benches/width_lists.py", bundle_of("embedded", "int8"), "--json"]
    command += ["--data", data, "--limit", 1, "--max-new-tokens", 4]
    done = subprocess.run([*map(str, command)], check=True, capture_output=True)
    rows = json.loads(done.stdout)
    assert len(rows) == 4
    assert rows[0]["over_own"] == 1
