"""A short form of `make soak`: requests of all kinds, one after another, in one process."""

import sys

import pytest

from soak import soak


@pytest.mark.skipif(sys.platform != "linux", reason="handles are counted in /proc")
def test_models_that_lived_leave_no_file_and_no_thread_behind(bundle_of):
    found = soak(bundle_of("embedded", "fp32"), bundle_of("embedded-draft", "fp32"), 60)
    assert sum(map(len, found.seconds.values())) == 60
    assert len(found.seconds) > 15, "kinds of requests"
    assert found.left[0] == found.left[1], "open files and threads, before and after"
