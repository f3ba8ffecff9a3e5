"""Tensors of checkpoints are read a piece at a time."""

import numpy as np
import pytest

from coordgen_rs.export.checkpoints import tensor as tensor_module
from coordgen_rs.export.checkpoints.tensor import Tensor


@pytest.mark.parametrize("shape", [(10, 4), (3, 40), (50,)])
def test_a_whole_tensor_is_read_a_piece_at_a_time(monkeypatch, shape):
    monkeypatch.setattr(tensor_module, "PIECE_ELEMENTS", 16)
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    asked = []

    def read_rows(start, stop):
        asked.append(values[start:stop].size)
        return values[start:stop]

    assert (Tensor("t", shape, read_rows).load() == values).all()
    assert max(asked) <= max(16, values[0].size)
