"""`benches/widths.py`: what steps of each width cost in several bundles."""

import json
import subprocess
import sys

from checkpoints import ROOT


def test_each_width_and_a_prompt_of_each_bundle_have_a_line(bundle_of):
    bundles = [bundle_of("embedded", weights) for weights in ("fp32", "int8")]
    options = ["--threads", "1", "--prompt", "64", "--seconds", "1", "--json"]
    command = [sys.executable, ROOT / "benches" / "widths.py", *bundles, *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = json.loads(done.stdout)
    for name in (bundle.name for bundle in bundles):
        of_bundle = [row for row in rows if row["bundle"] == name]
        assert {"1 row", "16 rows", "prompt of 64"} <= {row["what"] for row in of_bundle}
        assert all(0 < row["best_ms"] <= row["median_ms"] for row in of_bundle)
    assert all(row["median_ratio"] == 1 for row in rows if row["bundle"] == bundles[0].name)
