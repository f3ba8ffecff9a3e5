"""Tensors of checkpoints are read a piece at a time."""

import numpy as np
import pytest

from coordgen_rs.convert.containers import tensor as tensor_module
from coordgen_rs.convert.containers.tensor import StoredBlocks, Tensor, stacked
from coordgen_rs.convert.families.model_config import halved_experts
from coordgen_rs.errors import CheckpointError


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


def held(values, kind="F32"):
    """A tensor in memory, whose blocks are the bytes of its numbers."""
    raw = values.view(np.uint8).reshape(*values.shape, 4)
    blocks = StoredBlocks(kind, lambda start, stop: raw[start:stop])
    return Tensor("t", values.shape, lambda start, stop: values[start:stop], blocks, kind)


def assert_rows(tensor, expected):
    """Any span of rows is that of the array, in numbers and in bytes."""
    assert tensor.shape == expected.shape
    for first in range(len(expected)):
        for last in range(first + 1, len(expected) + 1):
            np.testing.assert_array_equal(tensor.read_rows(first, last), expected[first:last])
            found = tensor.blocks.read_rows(first, last)
            np.testing.assert_array_equal(found.view("<f4")[..., 0], expected[first:last])


def test_matrices_stand_one_below_the_other():
    values = np.random.default_rng(3).standard_normal((3, 6, 5)).astype(np.float32)
    matrix = held(values).as_matrix()
    assert_rows(matrix, values.reshape(18, 5))
    assert_rows(stacked("t", [held(it) for it in values]), values.reshape(18, 5))
    parts = halved_experts({"0.mlp.experts.gate_up_proj.weight": matrix}, 3)
    gates, ups = (parts[f"0.mlp.experts.{it}_proj.weight"] for it in ("gate", "up"))
    assert_rows(gates, values[:, :3].reshape(9, 5))
    assert_rows(ups, values[:, 3:].reshape(9, 5))
    assert_rows(ups.part(2, 7), values[:, 3:].reshape(9, 5)[2:7])


def test_gates_and_ups_of_another_number_of_experts_are_refused():
    both = held(np.ones((12, 4), np.float32))
    with pytest.raises(CheckpointError, match=r"has the shape \(12, 4\), expected 4 experts"):
        halved_experts({"0.mlp.experts.gate_up_proj.weight": both}, 4)


def test_neighbours_of_heads_become_halves():
    values = np.random.default_rng(5).standard_normal((12, 5)).astype(np.float32)
    order = [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    assert_rows(held(values).halves(6, 6), values[order])
    order = [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]
    assert_rows(held(values).halves(6, 4), values[order])


def test_a_matrix_becomes_a_vector_and_a_vector_a_row():
    values = np.random.default_rng(7).standard_normal((3, 4)).astype(np.float32)
    vector = held(values).as_vector()
    for first, last in ((0, 12), (1, 2), (3, 9), (11, 12)):
        np.testing.assert_array_equal(vector.read_rows(first, last), values.ravel()[first:last])
    np.testing.assert_array_equal(held(values[0]).as_row().load(), values[:1])


def test_matrices_that_are_stored_in_different_ways_become_floats():
    values = np.ones((2, 4), np.float32)
    both = stacked("t", [held(values), held(values, "Q8_0")])
    assert (both.blocks, both.stored_type) == (None, None)
    np.testing.assert_array_equal(both.load(), np.ones((4, 4), np.float32))


def test_matrices_of_different_shapes_do_not_stand_one_below_the_other():
    with pytest.raises(CheckpointError, match=r"t has parts of the shapes \(2, 4\), \(3, 4\)"):
        stacked("t", [held(np.ones((rows, 4), np.float32)) for rows in (2, 3)])
