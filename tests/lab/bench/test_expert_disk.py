"""`benches/peers/experts.py`: what is said of a disk."""

import pytest

import experts


def test_reads_ahead_that_were_not_used_do_not_count_for_the_disk():
    told = {"read_bytes": 5 * 10**9, "wasted_bytes": 3 * 10**9}
    run = {"new_tokens": 64, "decoding": told}
    assert experts.allowed_tokens_s(run, 10**9) == pytest.approx(32)
