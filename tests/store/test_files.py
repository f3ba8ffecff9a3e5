"""What is being written has a name of its own, and what a killed run left under one is removed."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from coordgen_rs._core import remove_abandoned
from coordgen_rs.errors import LeftoverWarning
from coordgen_rs.store.files import (
    locked,
    replacing,
    sweep,
    unfinished_directory,
    whole_file,
    write_file,
)
from killed import limited, names

_HOLD = """
import sys
from pathlib import Path
from coordgen_rs.store.files import replacing, unfinished_directory
with unfinished_directory(Path(sys.argv[1])) as folder, replacing(Path(sys.argv[2])) as stream:
    (folder / "weights").write_bytes(bytes(1000))
    stream.write(b"half"), stream.flush()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process in the middle of writing `out` and `file`."""
    command = [sys.executable, "-P", "-c", _HOLD, str(tmp_path / "out"), str(tmp_path / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def test_what_a_live_process_writes_is_left_alone(holder, tmp_path):
    before = names(tmp_path)
    assert len(before) == 2
    assert remove_abandoned(tmp_path / "out") == remove_abandoned(tmp_path / "file") == []
    with unfinished_directory(tmp_path / "out") as folder, replacing(tmp_path / "file") as stream:
        assert len(names(tmp_path)) == 4
        stream.write(b"whole")
        folder.rename(tmp_path / "out")
    assert names(tmp_path) == sorted([*before, "out", "file"])


@pytest.mark.parametrize("shift_s", [-10 * 365 * 86_400, 0, 10 * 365 * 86_400])
def test_what_a_killed_process_left_is_removed_and_told_whatever_the_clock_says(
    holder, tmp_path, shift_s
):
    moment = time.time() + shift_s
    for path in tmp_path.iterdir():
        os.utime(path, (moment, moment))
    assert remove_abandoned(tmp_path / "out") == remove_abandoned(tmp_path / "file") == []
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert len(names(tmp_path)) == 2
    told = pytest.warns(LeftoverWarning, match=r"\.out\.[0-9a-f]{12}\.unfinished \(0\.0 MB\)")
    with told, unfinished_directory(tmp_path / "out"):
        assert len(names(tmp_path)) == 2
    with replacing(tmp_path / "file") as stream:
        stream.write(b"whole")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_files_of_other_names_links_and_pipes_stay(tmp_path):
    for name in (
        *(
            ".out.0123456789.unfinished",
            ".out.0123456789AB.unfinished",
            "out.0123456789ab.unfinished",
        ),
        *(".out.0123456789ab.partial", ".output.0123456789ab.unfinished"),
        *(".out..0123456789ab.unfinished", ".a.0123456789ab.unfinished"),  # no pattern, a name
    ):
        (tmp_path / name).write_text("mine")
    (tmp_path / "precious").mkdir()
    (tmp_path / ".out.0123456789ac.unfinished").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / ".out.0123456789ad.unfinished")
    before = names(tmp_path)
    for name in ("out", "[ab]"):
        (tmp_path / f".{name}.0123456789ae.unfinished").write_text("left")
        assert [num_bytes for _, num_bytes in remove_abandoned(tmp_path / name)] == [4]
    assert remove_abandoned(tmp_path / "?") == []
    assert names(tmp_path) == before


def fail_while_writing(file, out):
    with replacing(file) as stream, unfinished_directory(out) as folder:
        stream.write(b"half")
        (folder / "weights").write_text("half")
        raise KeyError


def test_an_exception_leaves_the_file_as_it_was(tmp_path):
    (tmp_path / "file").write_text("before")
    with pytest.raises(KeyError):
        fail_while_writing(tmp_path / "file", tmp_path / "out")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "before"


def test_links_are_followed_and_devices_written_to(tmp_path):
    (tmp_path / "link").symlink_to("file")
    for path in (tmp_path / "link", Path(os.devnull)):
        with replacing(path, private=True) as stream:
            stream.write(b"whole")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert Path(os.devnull).is_char_device()
    with pytest.raises(OSError, match="No space left"), replacing(Path("/dev/full")) as stream:
        stream.write(b"lost")


def test_links_in_a_circle_are_an_error_that_names_them(tmp_path):
    (tmp_path / "link").symlink_to("link")
    for writing in (replacing, locked):
        with pytest.raises(OSError, match=r"link'$"), writing(tmp_path / "link"):
            pytest.fail("it leads nowhere")
    assert names(tmp_path) == ["link"]


def test_errors_name_the_file_that_was_to_be(tmp_path):
    (tmp_path / "folder").mkdir()
    for writing, path, error in (
        (replacing, tmp_path / "absent" / "file", errno.ENOENT),
        (replacing, tmp_path / "folder", errno.EISDIR),
        (replacing, Path("/"), errno.EISDIR),
        (unfinished_directory, Path(".."), errno.EINVAL),  # it has no file name
        (unfinished_directory, Path("/"), errno.EINVAL),
    ):
        with pytest.raises(OSError, match=r"[a-z/.]'$") as caught, writing(path):
            pass
        assert (caught.value.errno, caught.value.filename) == (error, str(path))
    assert names(tmp_path) == ["folder"]


def test_who_waits_for_a_lock_gets_it_or_is_told(tmp_path):
    path, asked = tmp_path / "table", []
    with locked(path) as first:
        with locked(path, wait_s=0.05, ask_s=0.01, go_on=lambda: asked.append(1)) as second:
            assert (first, second) == (True, False)
        assert asked
        holding = ExitStack()
        holding.enter_context(locked(tmp_path / "other"))
        with locked(tmp_path / "other", wait_s=60, ask_s=0.01, go_on=holding.close) as third:
            assert third

        def stop():
            raise KeyError

        with pytest.raises(KeyError), locked(path, wait_s=60, go_on=stop):
            pytest.fail("it is another's")
    assert names(tmp_path) == []


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_name_is_locked_by_one_at_a_time_whatever_happens_to_the_file(tmp_path, is_folder):
    path, link = tmp_path / "table", tmp_path / "link"
    link.symlink_to("table")
    (tmp_path / ".table.lock").touch()  # a killed run left it
    if is_folder:
        path.mkdir()
    with locked(path) as first:
        if not is_folder:
            write_file(path, b"new")
        with locked(link) as second:
            assert (first, second) == (True, False)
    assert names(tmp_path) == ["link", "table"]
    with locked(link) as third, locked(path) as fourth:
        assert (third, fourth) == (True, False)


def test_what_killed_runs_left_of_some_names_is_swept(tmp_path):
    for name in ("a.index", "b.index", "c.other"):
        (tmp_path / f".{name}.0123456789ab.unfinished").touch()
    with replacing(tmp_path / "d.index"):
        before = names(tmp_path)
        sweep(tmp_path, re.compile(r".\.index"))
        swept = {f".{name}.index.0123456789ab.unfinished" for name in "ab"}
        assert names(tmp_path) == [it for it in before if it not in swept]


def test_a_file_that_is_not_waited_for_is_whole_or_not_there_and_replaces_links(tmp_path):
    (tmp_path / "file").write_text("before")
    (tmp_path / "link").symlink_to("file")
    with whole_file(tmp_path / "link", private=True) as stream:
        stream.write(b"whole")
        assert (tmp_path / "link").read_text() == "before"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").stat().st_mode & 0o777 == 0o600
    with pytest.raises(KeyError), whole_file(tmp_path / "file"):
        raise KeyError
    assert names(tmp_path) == ["file", "link"]
    assert (tmp_path / "file").read_text() == "before"


@pytest.mark.parametrize("writing", [replacing, unfinished_directory])
def test_what_cannot_be_locked_is_an_error_and_leaves_nothing(tmp_path, writing):
    with open(os.devnull) as free:  # noqa: PTH123 (of which the number is asked)
        next_descriptor = free.fileno()
    with (
        limited("NOFILE", next_descriptor),
        pytest.raises(OSError, match="Too many open files") as failed,
        writing(tmp_path / "out"),
    ):
        pass
    assert (failed.value.errno, failed.value.filename) == (errno.EMFILE, str(tmp_path / "out"))
    assert names(tmp_path) == []


def full_of_zeros(stream):
    np.save(stream, np.zeros(60_000, np.uint8))


@pytest.mark.parametrize("write", [lambda out: out.write(bytes(60_000)), full_of_zeros])
def test_a_full_disk_is_said_with_the_file(tmp_path, write):
    path = tmp_path / "found.npy"
    path.write_text("before")
    with (
        limited("FSIZE", 10_000),
        pytest.raises(OSError, match=r"found\.npy") as failed,
        replacing(path) as stream,
    ):
        write(stream)
    assert failed.value.filename == str(path)
    assert path.read_text() == "before"
    assert names(tmp_path) == ["found.npy"]


def test_a_full_folder_is_not_sorted_for_each_file_in_it(tmp_path, monkeypatch):
    for number in range(50):
        (tmp_path / f"{number}.index").touch()
    compared = []
    monkeypatch.setattr(
        Path, "__lt__", lambda one, other: compared.append(one) or id(one) < id(other)
    )
    with replacing(tmp_path / "next.index") as stream:
        stream.write(b"whole")
    assert (tmp_path / "next.index").read_bytes() == b"whole"
    assert not compared
