"""Step inputs through the binding: whose arrays are filled, with what, and what is refused."""

import numpy as np
import pytest

from coordgen_rs._core import InvalidDraftError, OptionError, ShapeError, StepInputs

ROWS, ATTENDED = 6, 20
MASKED = -1e4


def make_inputs():
    ids, mask = np.full(ROWS, -1), np.full((1, 1, ROWS, ATTENDED), np.nan, np.float32)
    return StepInputs(ids, ids.copy(), mask)


def test_the_callers_own_arrays_are_filled():
    input_ids, position_ids = np.zeros(2, np.int64), np.zeros(2, np.int64)
    mask = np.zeros((2, 4), np.float32)
    inputs = StepInputs(input_ids, position_ids, mask)
    inputs.fill_chain(np.array([7, 8], np.uint32), 1)
    assert inputs.mask is mask
    assert (inputs.rows, inputs.attended) == (2, 4)
    assert input_ids.tolist() == [7, 8]
    assert position_ids.tolist() == [1, 2]
    assert mask.tolist() == [[0, 0, MASKED, MASKED], [0, 0, 0, MASKED]]
    inputs.fill(np.array([7, 8], np.uint32), np.zeros(2, np.uint32), 2)
    assert (input_ids.tolist(), position_ids.tolist(), inputs.num_nodes) == ([7, 8], [2, 3], 2)
    assert mask.tolist() == [[0, 0, 0, MASKED], [0, 0, 0, 0]]


IDS, MASK = np.zeros(2, np.int64), np.zeros((2, 4), np.float32)
PATH = np.zeros(8, np.int32), np.zeros(1, np.int32), np.zeros(2, np.int32)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"input_ids": np.zeros(2, np.int32)}, ShapeError, "input_ids"),
        ({"input_ids": np.zeros(3, np.int64)}, ShapeError, "position_ids|input_ids"),
        ({"input_ids": [0, 0]}, ShapeError, "input_ids"),
        ({"position_ids": np.zeros((2, 2), np.int64)}, ShapeError, "position_ids"),
        ({"mask": np.zeros((2, 4))}, ShapeError, "mask"),
        ({"mask": np.zeros((2, 2, 4), np.float32)}, ShapeError, "mask"),
        ({"mask": np.zeros(4, np.float32)}, ShapeError, "mask"),
        ({"mask": np.zeros((4, 2), np.float32).T}, ShapeError, "mask"),
        ({"mask": np.zeros((2, 1), np.float32)}, ShapeError, ""),
        ({"path": PATH}, OptionError, "one of mask and path"),
        ({"mask": None}, OptionError, "one of mask and path"),
        ({"mask": None, "path": (np.zeros((2, 8), np.int32), *PATH[1:])}, ShapeError, "parents"),
        ({"mask": None, "path": (PATH[0], PATH[2], PATH[2])}, ShapeError, "lengths"),
        ({"mask": None, "path": (PATH[0], PATH[1], PATH[1])}, ShapeError, "span"),
        ({"mask": None, "path": (PATH[0].astype(np.int64), *PATH[1:])}, ShapeError, "int32"),
    ],
)
def test_unusable_buffers_are_refused(wrong, error, message):
    with pytest.raises(error, match=message or None):
        StepInputs(**({"input_ids": IDS, "position_ids": IDS.copy(), "mask": MASK} | wrong))


@pytest.mark.parametrize(
    ("token_ids", "parents", "past_len", "error"),
    [
        ([0] * (ROWS + 1), [0] * (ROWS + 1), 0, InvalidDraftError),
        ([0, 1], [0, 1], 0, InvalidDraftError),
        ([0, 1], [1, 0], 0, InvalidDraftError),
        ([0, 1], [0], 0, ShapeError),
        ([], [], 0, ShapeError),
        ([0], [0], ATTENDED - ROWS + 1, ShapeError),
    ],
)
def test_a_refused_tree_writes_nothing(token_ids, parents, past_len, error):
    inputs = make_inputs()
    with pytest.raises(error):
        inputs.fill(np.array(token_ids, np.uint32), np.array(parents, np.uint32), past_len)
    assert np.isnan(inputs.mask).all()
    assert (inputs.input_ids == -1).all()


def test_buffers_that_share_memory_are_refused_at_every_fill():
    rows = np.zeros(4, np.int64)
    inputs = StepInputs(rows, rows, np.zeros((4, 20), np.float32))
    tree = np.arange(3, dtype=np.uint32), np.zeros(3, np.uint32)
    for past_len in (0, 1):
        with pytest.raises(TypeError, match="borrowed"):
            inputs.fill(*tree, past_len)
    assert not rows.any()


def test_a_path_says_what_each_node_descends_from():
    ids = np.zeros(4, np.int64)
    parents, lengths, span = np.full(12, 9, np.int32), np.zeros(1, np.int32), np.zeros(2, np.int32)
    inputs = StepInputs(ids, ids.copy(), path=(parents, lengths, span))
    inputs.fill(np.array([9, 8, 7], np.uint32), np.array([0, 0, 1], np.uint32), 5)
    assert parents[:3].tolist() == [-1, 0, 1]
    assert (lengths.tolist(), span.tolist()) == ([5], [0, 3])
    assert inputs.mask is None
    with pytest.raises(ShapeError):
        inputs.fill(np.array([9], np.uint32), np.array([0], np.uint32), 9)
