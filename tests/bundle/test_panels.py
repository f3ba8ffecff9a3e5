"""Rows that are read out of panels: those that went in."""

import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from coordgen_rs._core import weight_panels
from coordgen_rs.bundle.panels import PanelRows, num_bytes

BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


@pytest.mark.parametrize("weight_type", BLOCK_BYTES)
@given(
    rows=st.integers(1, 50),
    columns=st.integers(1, 200),
    scale=st.sampled_from([1.0, 0.5, 11.3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_of_panels_are_the_rows_of_the_file(weight_type, rows, columns, scale, seed):
    random = np.random.default_rng(seed)
    blocks = -(-columns // 32)
    stored = random.integers(0, 256, (rows, blocks, BLOCK_BYTES[weight_type]), np.uint8)
    halves = 2 if weight_type == "Q4_1" else 1
    numbers = random.normal(0, 0.01, (rows, blocks, halves)).astype(np.float16)
    stored[:, :, : 2 * halves] = numbers.view(np.uint8).reshape(rows, blocks, -1)
    panels = weight_panels(weight_type, stored)
    assert len(panels) == num_bytes(weight_type, rows, columns)
    found = PanelRows(panels, weight_type, rows, columns, scale)
    kind = GGMLQuantizationType[weight_type]
    expected = quants.dequantize(stored.reshape(rows, -1), kind)[:, :columns] * np.float32(scale)
    numbers = random.integers(0, rows, 7)
    got = found[numbers]
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, expected[numbers])
