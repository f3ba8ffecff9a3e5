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
from coordgen_rs import History
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import ExportError, HistoryWarning, OptionError
from coordgen_rs.store.history.indexes import index_name
from coordgen_rs.store.history.store import HistoryStore
from drafts import drafted_after
from history_writer import VOCAB_SIZE, open_history, request
from killed import names, small_disk

TOKENIZER = {"fingerprint": "a tokenizer", "vocab_size": VOCAB_SIZE}


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
    with History(tmp_path, namespace="a", **TOKENIZER) as history:
        for number in range(20):
            history.add(request(number, 300), [])
    assert index_name("a") in names(tmp_path)
    ours = (tmp_path / index_name("a")).read_bytes()
    (tmp_path / index_name("gone")).write_bytes(ours)
    (tmp_path / f".{index_name('b')}.0123456789ab.unfinished").write_bytes(ours)
    foreign = ["words.index", f"{'0' * 32}.index", f"{'0' * 31}.index", "git.unfinished"]
    for name in foreign:
        (tmp_path / name).write_text("of somebody else")
    assert "20 requests cleared" in coordgen("history", "clear", tmp_path).err
    assert names(tmp_path) == sorted([*foreign, "history.sqlite"])


def test_a_limit_stays_with_the_history(tmp_path):
    with History(tmp_path, namespace="large", max_tokens=4_000, **TOKENIZER) as history:
        for number in range(10):
            history.add(request(number, 300), [])
    with History(tmp_path, namespace="other", **TOKENIZER) as history:
        history.add(request(10, 300), [])
    store = HistoryStore(tmp_path)
    assert (store.max_tokens, store.num_tokens) == (4_000, 3_300)


def test_what_is_evicted_from_other_namespaces_is_told(tmp_path, recwarn):
    with History(tmp_path, namespace="alice", max_tokens=1_000, **TOKENIZER) as history:
        for number in range(5):
            history.add(request(number, 300), [])
    assert not recwarn.list  # its own
    with History(tmp_path, namespace="bob", **TOKENIZER) as history:
        history.add(request(5, 100), [])
        assert not recwarn.list
        with pytest.warns(HistoryWarning, match="at most 1000 tokens, .* evicted: 2 of 'alice'"):
            history.add(request(6, 600), [])


@pytest.mark.parametrize("damaged", ["many", "", "-5", "1e9", b"90", None])
def test_a_damaged_limit_evicts_nothing(tmp_path, damaged):
    with open_history(tmp_path) as history:
        history.add(request(0), [])
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as connection, connection:
        connection.execute("ALTER TABLE properties RENAME TO old")
        connection.execute("CREATE TABLE properties (name TEXT PRIMARY KEY, value)")
        connection.execute("INSERT INTO properties SELECT * FROM old")
        connection.execute("INSERT INTO properties VALUES ('max_tokens', ?)", (damaged,))
    with open_history(tmp_path) as history, pytest.warns(HistoryWarning, match="max_tokens"):
        history.add(request(1), [])
    assert HistoryStore(tmp_path).num_tokens == 60


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_a_limit_under_which_nothing_is_kept_is_refused(coordgen, tmp_path, max_tokens):
    with pytest.raises(OptionError, match=f"max_tokens is {max_tokens}, but must be at least 1"):
        History(tmp_path / "answers", max_tokens=max_tokens, **TOKENIZER)
    with open_history(tmp_path) as history:
        history.add(request(0), [])
    exported = tmp_path / "answers.jsonl"
    exported.write_text(coordgen("history", "export", tmp_path).out)
    command = ["history", "import", tmp_path, exported, "--max-tokens", max_tokens]
    assert "must be at least 1" in coordgen(*command, code=2).err
    assert HistoryStore(tmp_path).num_tokens == 60


def test_an_import_tells_what_it_evicted_and_from_where(coordgen, tmp_path):
    for name in ("alice", "bob"):
        with History(tmp_path / name, namespace=name, **TOKENIZER) as history:
            for number in range(3):
                history.add(request(number, 100), [])
    bob = tmp_path / "bob.jsonl"
    bob.write_text(coordgen("history", "export", tmp_path / "bob").out)
    said = coordgen("history", "import", tmp_path / "alice", bob, "--max-tokens", 400).err
    assert "3 requests imported" in said
    assert "holds at most 400 tokens" in said
    assert "evicted: 2 of 'alice'" in said


def test_a_new_history_is_its_owners_alone_also_in_an_old_directory(tmp_path):
    tmp_path.chmod(0o755)
    before = os.umask(0o022)
    try:
        with open_history(tmp_path) as history:
            for number in range(20):
                history.add(request(number, 300), [])
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
            assert set(modes.values()) == {0o600}, modes
        assert (tmp_path / index_name("default")).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_an_index_that_is_cut_off_while_it_is_used_is_rebuilt(tmp_path):
    with open_history(tmp_path) as history:
        for number in range(20):
            history.add(request(number, 300), [])
    code = f"""
import os, sys, warnings
sys.path.insert(0, {str(ROOT / "tests" / "support")!r})
from pathlib import Path
from history_writer import open_history, request
from drafts import drafted_after
import threading
threading.Thread.start = lambda self: None  # no check of the whole index beside it
warnings.simplefilter("always")
folder = Path(sys.argv[1])
text = request(7, 300)
with open_history(folder) as history:
    os.truncate(folder / {index_name("default")!r}, 8192)
    print(drafted_after(history, text[:100], 8) == [])
    history.refresh()
    print(drafted_after(history, text[:100], 8) == text[100:108].tolist())
"""
    command = [sys.executable, "-P", "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True"]
    assert "a block of the history's index is damaged" in done.stderr


@pytest.mark.parametrize("shift_s", [-20 * 365 * 86_400, 20 * 365 * 86_400])
def test_a_clock_that_jumps_changes_neither_order_nor_drafts(
    coordgen, tmp_path, monkeypatch, shift_s
):
    now = time.time
    with History(tmp_path, max_tokens=900, **TOKENIZER) as history:
        for number in range(3):
            history.add(request(number, 300), [])
        monkeypatch.setattr(time, "time", lambda: now() + shift_s)
        history.add(request(3, 300), [])
        monkeypatch.setattr(time, "time", now)
        history.add(request(4, 300), [])
        text = request(3, 300)
        assert drafted_after(history, text[:100], 8) == text[100:108].tolist()
    store = HistoryStore(tmp_path)
    found = [np.frombuffer(kept.token_ids, "<u4") for kept in store.read()]
    np.testing.assert_array_equal(found, [request(number, 300) for number in (2, 3, 4)])
    assert "default: 3 requests" in coordgen("history", "ls", tmp_path).out


def test_two_processes_with_limits_of_their_own_lose_nothing_but_the_oldest(tmp_path):
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests" / "support")!r})
from history_writer import request, VOCAB_SIZE
from coordgen_rs import History
limit, first = map(int, sys.argv[2:])
name = f"namespace {{first}}"
with History(sys.argv[1], namespace=name, vocab_size=VOCAB_SIZE, max_tokens=limit) as history:
    for number in range(first, first + 100):
        history.add(request(number), [])
"""
    command = [sys.executable, "-P", "-c", code, str(tmp_path)]
    writers = [
        subprocess.Popen([*command, str(limit), str(first)], stderr=subprocess.DEVNULL)
        for limit, first in ((3_000, 0), (6_000, 100))
    ]
    assert [writer.wait(600) for writer in writers] == [0, 0]
    store = HistoryStore(tmp_path)
    assert store.max_tokens in (3_000, 6_000)
    kept = list(store.read())
    assert store.max_tokens - 60 < 60 * len(kept) <= store.max_tokens
    numbers = [found.number for found in kept]
    assert numbers == list(range(201 - len(kept), 201))
    connection = sqlite3.connect(tmp_path / "history.sqlite")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


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
