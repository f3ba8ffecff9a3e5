"""Step inputs through the binding: whose arrays are filled, with what, and what is refused."""

import numpy as np
import pytest

from coordgen_rs._core import InvalidDraftError, OptionError, ShapeError, StepInputs

ROWS, ATTENDED = 6, 20
MASKED = -1e4


def make_inputs(rows=ROWS, attended=ATTENDED):
    mask = np.full((1, 1, rows, attended), np.nan, np.float32)
    return StepInputs(np.full(rows, -1, np.int64), np.full(rows, -1, np.int64), mask)


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


@pytest.mark.parametrize(
    ("input_ids", "position_ids", "mask"),
    [
        (np.zeros(2, np.int32), np.zeros(2, np.int64), np.zeros((2, 4), np.float32)),
        (np.zeros(3, np.int64), np.zeros(2, np.int64), np.zeros((2, 4), np.float32)),
        (np.zeros(2, np.int64), np.zeros((2, 2), np.int64), np.zeros((2, 4), np.float32)),
        (np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros((2, 4))),
        (np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros((2, 2, 4), np.float32)),
        (np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(4, np.float32)),
        (np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros((4, 2), np.float32).T),
        (np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros((2, 1), np.float32)),
        ([0, 0], np.zeros(2, np.int64), np.zeros((2, 4), np.float32)),
    ],
)
def test_unusable_buffers_are_refused(input_ids, position_ids, mask):
    with pytest.raises(ShapeError):
        StepInputs(input_ids, position_ids, mask)


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


def test_a_step_has_a_mask_or_a_path():
    ids, mask = np.zeros(3, np.int64), np.zeros((1, 1, 3, 8), np.float32)
    path = np.zeros(8, np.int32), np.zeros(1, np.int32), np.zeros(2, np.int32)
    for both in ({"mask": mask, "path": path}, {}):
        with pytest.raises(OptionError, match="one of mask and path"):
            StepInputs(ids, ids.copy(), **both)
    for place, wrong in ((0, np.zeros((2, 8), np.int32)), (1, path[2]), (2, path[1])):
        arrays = [wrong if index == place else array for index, array in enumerate(path)]
        with pytest.raises(ShapeError, match=("parents", "lengths", "span")[place]):
            StepInputs(ids, ids.copy(), path=tuple(arrays))
    with pytest.raises(ShapeError, match="int32"):
        StepInputs(ids, ids.copy(), path=(path[0].astype(np.int64), *path[1:]))


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
