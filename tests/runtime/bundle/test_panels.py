"""Rows that are read out of panels: those that went in."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgen_rs._core import weight_panels, weight_types
from coordgen_rs.bundle.layers import PanelRows, num_bytes
from dequantized import dequantized_as, random_blocks


@pytest.mark.parametrize("weight_type", weight_types())
@settings(max_examples=40)
@given(
    rows=st.integers(1, 50),
    columns=st.integers(1, 600),
    scale=st.sampled_from([1.0, 0.5, 11.3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_of_panels_are_the_rows_of_the_file(weight_type, rows, columns, scale, seed):
    weights, _ = weight_types()[weight_type]
    blocks = -(-columns // weights)
    if weights > 32:  # only blocks of 32 may be filled up
        columns = blocks * weights
    stored = random_blocks(weight_type, rows, blocks, seed)
    panels = weight_panels(weight_type, stored)
    assert len(panels) == num_bytes(weight_type, rows, columns)
    found = PanelRows(panels, weight_type, rows, columns, scale)
    expected = dequantized_as(weight_type, stored)[:, :columns] * np.float32(scale)
    numbers = np.random.default_rng(seed).integers(0, rows, 7)
    got = found[numbers]
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, expected[numbers])
