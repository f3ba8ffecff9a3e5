"""Tensors of checkpoints are read a piece at a time."""

import numpy as np
import pytest

from coordgen_rs.tools.export.checkpoints import tensor as tensor_module
from coordgen_rs.tools.export.checkpoints.tensor import Tensor


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


def test_rows_are_read_once_where_they_ascend(monkeypatch):
    monkeypatch.setattr(tensor_module, "PIECE_ELEMENTS", 8)
    values = np.arange(48, dtype=np.float32).reshape(12, 4)
    asked = []

    def read_rows(start, stop):
        asked.append((start, stop))
        return values[start:stop]

    tensor, numbers = Tensor("t", values.shape, read_rows), np.array([1, 2, 5, 7, 11])
    assert (tensor.rows(numbers).load() == values[numbers]).all()
    assert asked == [(1, 3), (5, 8), (11, 12)]
    assert (tensor.rows(numbers[::-1]).load() == values[numbers[::-1]]).all()
