"""A short form of `make soak`: requests of all kinds, one after another, in one process."""

import ctypes
import sys

import pytest

import soak
from soak import GROWTH, Memory, growth


@pytest.mark.skipif(sys.platform != "linux", reason="handles are counted in /proc")
def test_models_that_lived_leave_no_file_and_no_thread_behind(bundle_of, monkeypatch):
    monkeypatch.setattr(soak, "WARM_UP", 30)
    found = soak.soak(bundle_of("embedded", "fp32"), bundle_of("embedded-draft", "fp32"), 30)
    assert sum(map(len, found.seconds.values())) == 30
    assert len(found.seconds) == 30, "five kinds of requests to each of six models"
    assert len(found.memory) == 1
    assert found.left[0] == found.left[1], "open files and threads, before and after"


def test_growth_is_told_also_where_it_has_gone_again():
    assert growth([1_000, 1_019, 1_001]) <= GROWTH
    assert growth([1_000, 1_021, 1_001]) > GROWTH


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_memory_that_is_kept_is_in_use_before_anything_touches_it():
    before = Memory.now()
    kept = bytearray(32 << 20)
    assert Memory.now().in_use - before.in_use > 0.9 * len(kept)
