"""Damaged files: every one ends in an error of ours, and where a sum covers it, never in silence.

The drivers run as programs (`support/damage_drivers.py`), since a crash would end this one.
"""

import json
import subprocess
import sys

import pytest

import damage_drivers

SHARES = {"bundle": 700, "history": 700, "table": 600}
"""2,000 damages in all."""


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    directory = tmp_path_factory.mktemp("damages") / "originals"
    damage_drivers.make_originals(directory)
    return directory


def drive(kind, originals, first, last):
    """How the damages of these numbers ended; fails on a crash and on any error without a name."""
    command = [sys.executable, damage_drivers.__file__, kind, originals, first, last]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-3_000:]}"
    assert "panicked" not in done.stderr
    outcomes = json.loads(done.stdout)
    assert sum(outcomes.values()) == last - first
    return outcomes


@pytest.mark.parametrize("kind", SHARES)
def test_a_damaged_file_is_named_or_harmless(originals, kind):
    outcomes = drive(kind, originals, 0, SHARES[kind] // 15)
    assert outcomes["refused"] > sum(outcomes.values()) // 4
    if kind == "table":
        assert list(outcomes) == ["refused"]


@pytest.mark.damage_full
@pytest.mark.parametrize("kind", SHARES)
def test_two_thousand_damaged_files_are_named_or_harmless(originals, kind):
    outcomes = drive(kind, originals, 0, SHARES[kind])
    print(kind, outcomes)
    assert sum(outcomes.values()) == SHARES[kind]
    assert outcomes["refused"] > SHARES[kind] // 4
