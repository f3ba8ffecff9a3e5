"""Files that others damage, own or run while we use them: cut short, foreign, hostile, shared."""

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import pytest

import command_line
from checkpoints import ROOT, write_checkpoint
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import ExportError, HistoryWarning, OptionError
from coordgen_rs.store.history.store import HistoryStore, index_name
from histories import fill, knows, open_history, request, stored
from killed import names, small_disk

# Where a bundle is to be


def refuse_out(out, message):
    """Refused before any work is done: the checkpoint is not even looked at."""
    with pytest.raises(ExportError, match=message):
        export_checkpoint(out.parent / "absent", out)


def test_a_path_where_no_bundle_can_be_is_refused_before_any_work(tmp_path):
    out = tmp_path / "out"
    (tmp_path / "elsewhere").mkdir()
    for target in ("elsewhere", "nowhere"):
        out.symlink_to(tmp_path / target)
        refuse_out(out, f"{out} is a symbolic link")
        out.unlink()
    out.write_text("mine")
    refuse_out(out, f"{out} exists already")
    refuse_out(out / "below", f"{out} is not a directory")
    assert out.read_text() == "mine"
    assert names(tmp_path) == ["elsewhere", "out"]


def test_a_mount_point_cannot_become_a_bundle(tmp_path):
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        refuse_out(disk, "is a mount point")


def test_a_place_without_permission_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may do all
    refuse_out(tmp_path / "a" / "out", f"no permission to write in {tmp_path}")


def test_what_a_killed_export_left_is_named_when_it_is_removed(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    left = tmp_path / ".out.0123456789ab.unfinished"
    left.mkdir()
    (left / "block_00.weights").write_bytes(bytes(2_000_000))
    done = command_line.coordgen("export", checkpoint, tmp_path / "out")
    line = f"coordgen: warning: {left} (2.0 MB), which an interrupted run had left, was removed\n"
    assert done.stderr.startswith(line)
    assert done.stderr.endswith(f"\n{tmp_path / 'out'}: written\n")
    assert done.stderr.count("warning") == 1
    assert names(tmp_path) == ["checkpoint", "out"]


# Histories


def test_clearing_removes_only_what_is_ours(coordgen, tmp_path):
    index = fill(tmp_path, range(20), 300)
    ours = index.read_bytes()
    (tmp_path / index_name("gone")).write_bytes(ours)
    (tmp_path / f".{index_name('b')}.0123456789ab.unfinished").write_bytes(ours)
    foreign = ["words.index", f"{'0' * 32}.index", f"{'0' * 31}.index", "git.unfinished"]
    for name in foreign:
        (tmp_path / name).write_text("of somebody else")
    assert "20 requests cleared" in coordgen("history", "clear", tmp_path).err
    assert names(tmp_path) == sorted([*foreign, "history.sqlite"])


def test_a_limit_stays_with_the_history(tmp_path):
    fill(tmp_path, range(10), 300, namespace="large", max_tokens=4_000)
    fill(tmp_path, [10], 300, namespace="other")
    store = HistoryStore(tmp_path)
    assert (store.max_tokens, store.num_tokens) == (4_000, 3_300)


def test_what_is_evicted_from_other_namespaces_is_told(coordgen, tmp_path, recwarn):
    fill(tmp_path, range(5), 300, namespace="alice", max_tokens=1_000)
    assert not recwarn.list  # its own
    fill(tmp_path, [5], 100, namespace="bob")
    assert not recwarn.list
    with pytest.warns(HistoryWarning, match="at most 1000 tokens, .* evicted: 2 of 'alice'"):
        fill(tmp_path, [6], 600, namespace="bob")
    fill(tmp_path / "carol", [7, 8], 300, namespace="carol")
    carol = tmp_path / "carol.jsonl"
    carol.write_text(coordgen("history", "export", tmp_path / "carol").out)
    said = coordgen("history", "import", tmp_path, carol, "--max-tokens", 700).err
    assert "2 requests imported" in said
    assert "holds at most 700 tokens" in said
    assert "evicted: 1 of 'alice', 2 of 'bob'" in said


@pytest.mark.parametrize("damaged", ["many", "", "-5", "1e9", b"90", None])
def test_a_damaged_limit_evicts_nothing(tmp_path, damaged):
    fill(tmp_path, [0], 60)
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as connection, connection:
        connection.execute("ALTER TABLE properties RENAME TO old")
        connection.execute("CREATE TABLE properties (name TEXT PRIMARY KEY, value)")
        connection.execute("INSERT INTO properties SELECT * FROM old")
        connection.execute("INSERT INTO properties VALUES ('max_tokens', ?)", (damaged,))
    with pytest.warns(HistoryWarning, match="max_tokens"):
        fill(tmp_path, [1], 60)
    assert len(stored(tmp_path)) == 1


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_a_limit_under_which_nothing_is_kept_is_refused(coordgen, tmp_path, max_tokens):
    with pytest.raises(OptionError, match=f"max_tokens is {max_tokens}, but must be at least 1"):
        open_history(tmp_path / "answers", max_tokens=max_tokens)
    fill(tmp_path, [0], 60)
    exported = tmp_path / "answers.jsonl"
    exported.write_text(coordgen("history", "export", tmp_path).out)
    command = ["history", "import", tmp_path, exported, "--max-tokens", max_tokens]
    assert "must be at least 1" in coordgen(*command, code=2).err
    assert len(stored(tmp_path)) == 1


def test_a_new_history_is_its_owners_alone_also_in_an_old_directory(tmp_path):
    (tmp_path / "old").mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        for folder in (tmp_path / "old", tmp_path / "new" / "below"):
            with open_history(folder) as history:
                history.add(request(0), [])
                paths = {*folder.iterdir()}  # also what SQLite has beside its file
                modes = {path.stat().st_mode & 0o777 for path in paths}
            modes.add(fill(folder).stat().st_mode & 0o777)
            assert (len(paths), modes) == (3, {0o600})
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "below").stat().st_mode & 0o077 == 0


def test_an_index_that_is_cut_off_while_it_is_used_is_rebuilt(tmp_path):
    fill(tmp_path, range(20), 300)
    code = f"""
import os, sys, warnings
sys.path.insert(0, {str(ROOT / "tests" / "support")!r})
from pathlib import Path
from histories import knows, open_history, request
from coordgen_rs.store.background import TaskQueue
TaskQueue.add = lambda self, task: None  # no check of the whole index beside it
warnings.simplefilter("always")
folder = Path(sys.argv[1])
with open_history(folder) as history:
    os.truncate(folder / {index_name("default")!r}, 8192)
    print(knows(history, request(7, 300)))
    history.refresh()
    print(knows(history, request(7, 300)))
"""
    command = [sys.executable, "-P", "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "True"]
    assert "a block of the history's index is damaged" in done.stderr


@pytest.mark.parametrize("shift_s", [-20 * 365 * 86_400, 20 * 365 * 86_400])
def test_a_clock_that_jumps_changes_neither_order_nor_drafts(
    coordgen, tmp_path, monkeypatch, shift_s
):
    now = time.time
    with open_history(tmp_path, max_tokens=900) as history:
        for number in range(5):
            monkeypatch.setattr(time, "time", lambda: now() + shift_s * (number == 3))  # noqa: B023
            history.add(request(number, 300), [])
        monkeypatch.undo()
        assert knows(history, request(3, 300))
    np.testing.assert_array_equal(stored(tmp_path), [request(it, 300) for it in (2, 3, 4)])
    assert "default: 3 requests" in coordgen("history", "ls", tmp_path).out


def test_a_mapped_file_that_is_cut_off_ends_the_command_with_a_message(tmp_path):
    code = """
import mmap, os, sys
from coordgen_rs.cli.main import main
path, sys.argv[1:] = sys.argv[1], ["info", "nowhere"]
main()
with open(path, "r+b") as stream:
    mapped = mmap.mmap(stream.fileno(), 0)
    stream.truncate(0)
    mapped[5000]
"""
    (tmp_path / "weights").write_bytes(bytes(8192))
    command = [sys.executable, "-P", "-c", code, str(tmp_path / "weights")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert done.stderr.endswith(
        "coordgen: error: a file in use was cut short, or its disk failed: "
        "find it with coordgen check BUNDLE\n"
    )
