"""Runs of native code that the interpreter's end waits for."""

import pytest

from coordgen_rs.runtime import onnx_runtime


class Interrupted(list):
    """A list in which an interrupt comes as an item is added, before or behind it."""

    def __init__(self, *, is_behind):
        super().__init__()
        self._is_behind = is_behind

    def append(self, item):
        if self._is_behind:
            super().append(item)
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_behind", [False, True])
def test_the_end_waits_for_no_run_that_an_interrupt_has_ended(monkeypatch, is_behind):
    under_way = Interrupted(is_behind=is_behind)
    monkeypatch.setattr(onnx_runtime, "_under_way", under_way)
    with pytest.raises(KeyboardInterrupt):
        onnx_runtime.run_native(lambda: None)
    assert under_way == []


def test_a_run_that_fails_is_over(monkeypatch):
    monkeypatch.setattr(onnx_runtime, "_under_way", [])
    with pytest.raises(ZeroDivisionError):
        onnx_runtime.run_native(lambda: 1 / 0)
    assert onnx_runtime._under_way == []
