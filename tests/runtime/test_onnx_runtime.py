"""ONNX Runtime in this process: runs that its end waits for, and the crate's kernels."""

import pytest

from checkpoints import exported, write_checkpoint
from coordgen_rs import open_session
from coordgen_rs.errors import ProviderError
from coordgen_rs.loading import session as loading
from coordgen_rs.loading.profile import device_facts
from coordgen_rs.runtime import onnx_runtime
from coordgen_rs.runtime.onnx_runtime import kernel_library


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("kernels")
    checkpoint = write_checkpoint(path / "checkpoint", family="qwen2", ffn=100)
    return exported(checkpoint, path / "out", weights="int8", context=256)


def test_a_library_that_does_not_load_is_told_by_name(monkeypatch, tmp_path, bundle):
    broken = tmp_path / "_core.abi3.so"
    broken.write_text("no library")
    kernel_library.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(onnx_runtime, "extension_file", str(broken))
        with pytest.raises(ProviderError, match="kernels of this package"):
            open_session(bundle.path)
    assert len(open_session(bundle.path).widths) > 1


def test_another_build_of_the_kernels_is_tested_anew_and_makes_profiles_stale(
    monkeypatch, tmp_path, bundle
):
    cache, other = tmp_path / "cache", tmp_path / "other.so"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    other.write_bytes(b"another build")
    builds = []
    for library in (kernel_library(), other):
        with monkeypatch.context() as patch:
            patch.setattr(onnx_runtime, "kernel_library", lambda library=library: library)
            builds.append(device_facts(bundle, 1)["kernels"])
    for build in (*builds, *builds):
        monkeypatch.setattr(loading, "kernel_build", lambda build=build: build)
        assert len(open_session(bundle.path).widths) > 1
    assert len(set(builds)) == len(list(cache.rglob("*.json"))) == 2


class Interrupted(list):
    """A list in which an interrupt comes as an item is added, before or behind it."""

    def __init__(self, *, is_behind):
        super().__init__()
        self._is_behind = is_behind

    def append(self, item):
        if self._is_behind:
            super().append(item)
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("under_way", "error"),
    [
        (Interrupted(is_behind=False), KeyboardInterrupt),
        (Interrupted(is_behind=True), KeyboardInterrupt),
        ([], ZeroDivisionError),
    ],
)
def test_the_end_waits_for_no_run_that_an_interrupt_or_an_error_has_ended(
    monkeypatch, under_way, error
):
    monkeypatch.setattr(onnx_runtime, "_under_way", under_way)
    with pytest.raises(error):
        onnx_runtime.run_native(lambda: 1 / 0)
    assert under_way == []
