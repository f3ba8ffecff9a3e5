"""The operator `SoftCap` in ONNX Runtime."""

import numpy as np
import pytest

from operators import FLOAT, operator_session


def session_of(cap, rank=2):
    return operator_session("SoftCap", {"x": (FLOAT, rank)}, {"y": (FLOAT, rank)}, cap=cap)


@pytest.mark.parametrize("columns", [1, 7, 16, 5000, 40_000])
def test_numbers_are_capped_each_by_itself(columns):
    x = np.random.default_rng(columns).normal(0, 40, (9, columns)).astype(np.float32)
    session = session_of(30.0)
    (got,) = session.run(None, {"x": x})
    np.testing.assert_allclose(got, 30 * np.tanh(x.astype(np.float64) / 30), atol=2e-5)
    for row in range(9):
        assert np.array_equal(session.run(None, {"x": x[row : row + 1]})[0][0], got[row])
    assert session.run(None, {"x": x[:0]})[0].shape == (0, columns)


@pytest.mark.parametrize("rank", range(9))
def test_numbers_of_any_shape_are_capped(rank):
    x = np.linspace(-60, 60, 2**rank, dtype=np.float32).reshape([2] * rank)
    (got,) = session_of(30.0, rank).run(None, {"x": x})
    np.testing.assert_allclose(got, 30 * np.tanh(x.astype(np.float64) / 30), atol=2e-5)


def test_more_dimensions_than_are_read_are_refused_by_name():
    with pytest.raises(Exception, match="more than 8 dimensions"):
        session_of(30.0, 9).run(None, {"x": np.zeros([1] * 9, np.float32)})


@pytest.mark.parametrize("cap", [0.0, -1.0, 1e-39, float("inf"), float("nan")])
def test_a_cap_that_is_none_is_refused(cap):
    with pytest.raises(Exception, match="no positive number"):
        session_of(cap)
