"""Disks that run full at any write, and files that cannot be read: errors by name, nothing half."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from checkpoints import write_checkpoint
from coordgen_rs import Bundle, LookupTable
from coordgen_rs._core import remove_abandoned
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.qnn import compile as qnn_compile
from coordgen_rs.convert.qnn.exporter import export_qnn
from coordgen_rs.convert.writer import Staging
from coordgen_rs.errors import CheckpointError, ExportError, LookupTableError
from fault_workers import KEY, VOCAB_SIZE, stub_compiler, table
from killed import names, small_disk

PAGE = 4096


def sizes(short, full):
    """Sizes of disks in pages: some, and in the full form each."""
    every = pytest.param(range(2, max(full)), marks=pytest.mark.faults)
    return pytest.mark.parametrize("num_pages", [short, every], ids=["some", "every"])


def refused(kind, call):
    """The message of the error that the call raises; None if it does what it should."""
    try:
        call()
    except kind as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("full") / "checkpoint", layers=1)


@sizes([2, 9, 40, 70], [120])
def test_an_export_to_a_full_disk_is_an_error_and_leaves_nothing(
    checkpoint, tmp_path, monkeypatch, num_pages
):
    monkeypatch.setattr(Staging, "check_space", lambda self, num_bytes: None)
    results = set()
    for pages in num_pages:
        with small_disk(tmp_path / "disk", pages * PAGE) as disk:
            message = refused(
                ExportError,
                partial(export_checkpoint, checkpoint, disk / "out", prefill_rows=8, decode_rows=4),
            )
            results.add(message is None)
            if message is None:
                assert names(disk) == ["out"]
                Bundle.open(disk / "out").verify()
            else:
                assert f"{disk}/out" in message
                assert "No space left on device" in message
                assert ".unfinished" not in message
                assert names(disk) == []
    assert False in results
    assert True in results or len(num_pages) < 10


def test_a_disk_that_is_known_to_be_too_small_is_refused_at_once(checkpoint, tmp_path):
    with small_disk(tmp_path / "disk", 20 * PAGE) as disk:
        with pytest.raises(ExportError, match=r"it takes at least [0-9.,]+ MB, and its disk has"):
            export_checkpoint(checkpoint, disk / "out", on_progress=pytest.fail)
        assert names(disk) == []


@sizes([6, 40], [140])
def test_compiling_on_a_full_disk_leaves_the_bundle_as_it_was(
    checkpoint, tmp_path, monkeypatch, num_pages
):
    stub_compiler(monkeypatch.setattr)
    bundle = tmp_path / "bundle"
    options = {"context": 32, "prefill_rows": 8, "decode_rows": 4}
    export_qnn(checkpoint, bundle, soc="8-gen-2", **options)
    num_bytes = sum(path.stat().st_size + PAGE for path in bundle.iterdir())
    for pages in num_pages:
        with small_disk(tmp_path / "disk", num_bytes + pages * PAGE) as disk:
            copy = Path(shutil.copytree(bundle, disk / "bundle"))
            before = names(copy)
            message = refused(ExportError, partial(qnn_compile.compile_bundle, copy))
            assert message is None or "No space left on device" in message
            assert message is None or names(copy) == before
            Bundle.open(copy).verify()


@sizes([1, 20], [60])
def test_a_table_on_a_full_disk_stays_as_it_was(tmp_path, num_pages):
    small, large = LookupTable(), table(0)
    for pages in num_pages:
        with small_disk(tmp_path / "disk", (pages + 1) * PAGE) as disk:
            path = disk / "table"
            small.save(path, VOCAB_SIZE, KEY)
            before = path.read_bytes()
            message = refused(LookupTableError, partial(large.save, path, VOCAB_SIZE, KEY))
            assert message is None or "No space left on device" in message
            assert message is None or path.read_bytes() == before
            assert names(disk) == ["table"]


# Reading


def test_a_checkpoint_that_is_cut_off_meanwhile_is_named(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    weights = checkpoint / "model.safetensors"

    def cut(what: str, done: int, total: int) -> None:
        if what == "layer 0":
            os.truncate(weights, weights.stat().st_size // 2)

    with pytest.raises(CheckpointError, match=r"model\.safetensors ends inside"):
        export_checkpoint(checkpoint, tmp_path / "out", on_progress=cut)
    assert names(tmp_path) == ["checkpoint"]


def test_a_read_error_in_the_middle_is_named(tmp_path, monkeypatch):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    real, calls = np.fromfile, []

    def fail_at_the_fifth(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 5:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*arguments, **options)

    monkeypatch.setattr(np, "fromfile", fail_at_the_fifth)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read: .*Input/output"):
        export_checkpoint(checkpoint, tmp_path / "out")
    assert names(tmp_path) == ["checkpoint"]


# Memory

_LIMITED = """
import resource, sys
from coordgen_rs.cli import main
from coordgen_rs.convert.families.checkpoint import Checkpoint

def limit():
    in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + int(sys.argv[3]), resource.RLIM_INFINITY))

if sys.argv[4] == "at the first weight":
    real = Checkpoint.norm_tensor
    Checkpoint.norm_tensor = lambda *arguments: (limit(), real(*arguments))[1]
else:
    limit()
sys.exit(main.main(["export", sys.argv[1], sys.argv[2]]))
"""


def export_within(headroom, when, checkpoint, out):
    python = sys.executable
    command = [python, "-P", "-c", _LIMITED, checkpoint, out, str(headroom), when]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    sizes = {"hidden": 512, "ffn": 2048, "heads": 8, "layers": 2, "vocab": 16_000}
    return write_checkpoint(tmp_path_factory.mktemp("larger") / "checkpoint", **sizes)


def test_an_export_that_runs_out_of_memory_says_so_and_leaves_nothing(larger, tmp_path):
    done = export_within(4 << 20, "at the first weight", larger, tmp_path / "out")
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert f"{tmp_path}/out was not written: out of memory" in done.stderr
    assert "ulimit -v" in done.stderr
    assert names(tmp_path) == []


@pytest.mark.faults
@pytest.mark.parametrize("headroom_mb", range(0, 200, 20))
def test_no_lack_of_memory_leaves_half_a_bundle(larger, tmp_path, headroom_mb):
    """Where the tokenizers package ends the process, the next export removes what it left."""
    done = export_within(headroom_mb << 20, "at once", larger, tmp_path / "out")
    print(headroom_mb, "MB:", done.returncode, done.stderr.strip().rpartition("\n")[2])
    if done.returncode == 0:
        Bundle.open(tmp_path / "out").verify()
        assert names(tmp_path) == ["out"]
        return
    assert done.returncode in (2, -signal.SIGABRT), done.stderr
    assert not (tmp_path / "out").exists()
    if done.returncode == 2:
        assert names(tmp_path) == []
    remove_abandoned(tmp_path / "out")
    assert names(tmp_path) == []
