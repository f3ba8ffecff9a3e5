"""Prefixes on disk: what is found is bit for bit what was computed, and nobody else's."""

import errno
import os
import random
import signal
import stat
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import accumulate, chain
from operator import and_, eq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordgen_rs.errors import OptionError, PrefixStoreWarning
from coordgen_rs.store import files as files_module
from coordgen_rs.store.background import NoThreadError
from coordgen_rs.store.files import whole_file
from coordgen_rs.store.prefixes import directory as directory_module
from coordgen_rs.store.prefixes.directory import StoreDirectory, clear, summaries
from coordgen_rs.store.prefixes.prefix import BLOCK_TOKENS, Layout, MemoryBudget
from coordgen_rs.store.prefixes.store import Lookup, PrefixStore, TargetIdentity
from killed import at_once, small_disk
from stored_prefixes import (
    TARGET,
    LateQueue,
    ReadSession,
    check,
    files,
    found,
    keep,
    keep_and_die,
    stored,
    write,
    write_many,
)

BLOCK_BYTES = directory_module.HEAD_BYTES + Layout.of(ReadSession()).block_bytes(BLOCK_TOKENS)


def folders(path):
    return [it for it in path.iterdir() if it.is_dir()]


def run_of(number, length):
    return np.full(length, number, np.uint32)


def ids(*parts):
    return np.concatenate([np.asarray(part, np.uint32) for part in parts])


def test_another_process_finds_the_whole_blocks_of_a_prompt(tmp_path):
    prompt = np.arange(100)
    stored(tmp_path, prompt).close()
    store = PrefixStore(tmp_path, TARGET)
    assert found(store, [*prompt, 7]) == 96
    assert found(store, prompt[:96]) == 64  # the last token is computed
    assert found(store, [*prompt[:70], 1, 2, 3]) == 64
    assert found(store, [1, *prompt]) == 0
    assert (store.counts.lookups, store.counts.hits) == (4, 3)
    assert store.counts.read_tokens == 96 + 64 + 64


def test_what_two_dialogues_begin_with_is_stored_once_and_a_turn_adds_its_own_blocks(tmp_path):
    system = run_of(1, 64)
    store = stored(tmp_path, ids(system, run_of(2, 40)))
    before = {path: path.read_bytes() for path in files(tmp_path)}
    assert len(before) == 3
    keep(store, ids(system, run_of(3, 40)))
    keep(store, ids(system, run_of(2, 40), run_of(4, 30)), since=104)
    assert len(files(tmp_path)) == 5
    assert store.counts.stored_tokens == 5 * BLOCK_TOKENS
    assert {path: path.read_bytes() for path in before} == before
    assert found(store, ids(system, run_of(2, 40), run_of(4, 30))) == 128


tokens = st.sampled_from([[1] * 16, [2] * 16, [1] * 40, [3]])
prompts = st.lists(tokens, min_size=1, max_size=6).map(lambda parts: [*chain(*parts)])


@given(st.lists(st.tuples(prompts, st.sampled_from("ab")), max_size=8), prompts)
def test_as_much_is_found_as_the_longest_of_the_same_namespace_has(tmp_path_factory, kept, prompt):
    store = PrefixStore(tmp_path_factory.mktemp("twin"), TARGET)
    for token_ids, namespace in kept:
        keep(store, token_ids, namespace)
    for namespace in "ab":
        common = (
            sum(accumulate(map(eq, token_ids, prompt[:-1]), and_))
            for token_ids, of in kept
            if of == namespace
        )
        most = max(common, default=0)
        assert found(store, prompt, namespace) == most // BLOCK_TOKENS * BLOCK_TOKENS
    store.close()


@pytest.mark.parametrize(
    "target", [TargetIdentity(b"another"), TargetIdentity(b""), TargetIdentity(b"a target\0")]
)
def test_nothing_crosses_from_one_namespace_or_target_to_another(tmp_path, target):
    prompt = run_of(5, 70)
    store = stored(tmp_path, prompt, "alice")
    assert found(store, prompt, "alice") == 64
    assert [found(store, prompt, other) for other in ("", "bob", "alice ", "Alice")] == [0] * 4
    assert found(PrefixStore(tmp_path, target), prompt, "alice") == 0


def test_only_the_owner_may_read_and_no_name_tells_a_namespace(tmp_path):
    path = tmp_path / "made" / "here"
    stored(path, run_of(1, 64), "secret-name").close()
    for entry in [path, *path.rglob("*")]:
        assert "secret" not in entry.name
        assert stat.S_IMODE(entry.stat().st_mode) == (0o700 if entry.is_dir() else 0o600)


@pytest.mark.skipif(os.name != "posix", reason="has no such modes")
def test_a_folder_that_another_may_have_written_is_neither_read_nor_written(tmp_path, recwarn):
    store = stored(tmp_path, np.arange(64))
    (folder,) = folders(tmp_path)
    folder.chmod(0o770)
    assert found(store, np.arange(65)) == 0
    keep(store, np.arange(128))
    assert len(files(tmp_path)) == 2
    assert "not a directory of this user's own" in str(recwarn.pop(PrefixStoreWarning).message)
    folder.chmod(0o700)
    assert found(store, np.arange(65)) == 64
    moved = folder.rename(tmp_path / "moved")
    folder.symlink_to(moved)
    assert found(store, np.arange(65)) == 0


@pytest.mark.skipif(os.name != "posix", reason="has no such modes")
def test_a_directory_that_others_may_write_in_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "file").touch()
    for name, size, error, message in (
        ("open", 1 << 20, OptionError, "everybody may write"),
        ("file", 1 << 20, NotADirectoryError, None),
        ("new", 0, OptionError, "prefix_store_size"),
    ):
        with pytest.raises(error, match=message):
            PrefixStore(tmp_path / name, TARGET, size)


def test_a_relative_path_stays_where_it_was_when_the_process_goes_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = stored("prefixes", np.arange(64))
    monkeypatch.chdir("elsewhere")
    keep(store, np.arange(96))
    assert found(store, np.arange(97)) == 96
    assert (store.counts.failures, len(files(tmp_path / "prefixes"))) == (0, 3)


def test_the_limit_holds_and_what_was_used_least_recently_goes_first(tmp_path):
    store = stored(tmp_path, run_of(1, 64), most_bytes=8 * BLOCK_BYTES)
    for number in (2, 3):
        keep(store, run_of(number, 64))
    assert found(store, run_of(1, 65)) == 64  # used again
    keep(store, run_of(4, 80))
    keep(store, run_of(5, 64), "b")
    assert len(files(tmp_path)) <= 8
    assert store.counts.evicted_bytes > 0
    assert [found(store, run_of(number, 65)) for number in (1, 2)] == [64, 0]
    assert found(store, run_of(5, 65), "b") == 64


def test_of_a_dialogue_that_is_too_long_the_beginning_stays(tmp_path):
    prompt = np.arange(BLOCK_TOKENS * 20)
    store = PrefixStore(tmp_path, TARGET, most_bytes=6 * BLOCK_BYTES)
    for _ in range(4):
        keep(store, prompt)
        assert len(files(tmp_path)) <= 6
    assert found(store, prompt) >= 5 * BLOCK_TOKENS


def test_the_last_block_of_a_dialogue_goes_before_those_that_it_needs(tmp_path):
    store = stored(tmp_path, np.arange(BLOCK_TOKENS * 4), most_bytes=5 * BLOCK_BYTES)
    keep(store, run_of(9, 2 * BLOCK_TOKENS))
    kept = found(store, np.arange(BLOCK_TOKENS * 4 + 1))
    assert len(files(tmp_path)) == kept // BLOCK_TOKENS + 2
    assert kept > 0


def late(path, room=1 << 20, **options):
    """A store that writes no sooner than it is waited for."""
    store = PrefixStore(path, TARGET, **options)
    store.writer, store._memory = LateQueue(), MemoryBudget(room)
    return store


def keep_and_overwrite(store, token_ids, others=(), since=0):
    """Have tokens kept, of a session that holds others before they are written."""
    session = ReadSession(token_ids)
    store.save(session, "a", since, ends=True)
    session.overwrite(others)


def test_what_is_overwritten_while_it_is_written_is_stored_as_it_was(tmp_path):
    store, prompt = late(tmp_path), np.arange(200)
    keep_and_overwrite(store, prompt, run_of(9, 100))
    keep_and_overwrite(store, run_of(9, 100))
    store.flush()
    assert (found(store, prompt), found(store, run_of(9, 100))) == (192, 96)
    assert store.counts.skipped == 0


def test_of_what_is_kept_behind_the_limit_nothing_is_read(tmp_path):
    store = late(tmp_path, most_bytes=6 * BLOCK_BYTES)
    keep_and_overwrite(store, np.arange(640), since=512)
    store.close()
    assert not files(tmp_path)


def test_what_was_kept_earlier_is_not_copied_once_more(tmp_path):
    store, prompt = late(tmp_path), np.arange(200)
    keep_and_overwrite(store, prompt, since=128)
    store.flush()
    assert len(files(tmp_path)) == 2  # of 6: as if the others had been removed meanwhile
    assert found(store, prompt) == 0
    keep(store, prompt)
    assert found(store, prompt) == 192


def test_copies_that_find_no_room_are_dropped(tmp_path):
    store = late(tmp_path, room=5 * BLOCK_BYTES)
    for number in (1, 2):
        keep_and_overwrite(store, run_of(number, 128))
    store.flush()
    assert store.counts.skipped == 4
    assert (found(store, run_of(1, 129)), found(store, run_of(2, 129))) == (128, 0)
    keep(store, run_of(2, 128))
    assert found(store, run_of(2, 129)) == 128


def test_a_read_that_would_add_little_is_not_begun(tmp_path):
    prompt = np.arange(32 * 20)
    store = stored(tmp_path, prompt)
    assert found(store, [*prompt, 1], held=len(prompt) - 40) == 0
    assert found(store, [*prompt, 1], held=len(prompt) - 100) == len(prompt)


def test_stores_that_write_the_same_at_once_disturb_nobody(tmp_path):
    prompt, stores = np.arange(320), [PrefixStore(tmp_path, TARGET) for _ in range(4)]

    def use(store):
        for length in range(40, 321, 40):
            store.save(ReadSession(prompt[:length]), "a", 0, ends=True)
            assert found(store, prompt) % BLOCK_TOKENS == 0

    with ThreadPoolExecutor(4) as threads:
        [*threads.map(use, stores)]
    for store in stores:
        store.close()
        assert store.counts.failures == store.counts.damaged == 0
        assert found(store, [*prompt, 1]) == 320
    assert len(files(tmp_path, "*/*")) == 10 + 1


def test_files_that_another_process_removes_cost_computing(tmp_path):
    prompt, store = np.arange(320), stored(tmp_path, np.arange(320))
    other = PrefixStore(tmp_path, TARGET)
    (found_there,) = summaries(tmp_path)
    assert clear(found_there) == 10 * BLOCK_BYTES
    assert (summaries(tmp_path), list(tmp_path.iterdir())) == ([], [])
    assert found(other, prompt) == 0
    assert other.counts.damaged == 0
    keep(store, prompt)
    assert found(other, [*prompt, 1]) == 320


def test_a_full_disk_is_told_once_and_nothing_half_is_left(tmp_path):
    with small_disk(tmp_path / "disk", 8 * 4096) as disk:
        disk, prompt = disk / "store", np.arange(320)
        store = PrefixStore(disk, TARGET)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(3):
                keep(store, prompt)
        assert [it.category for it in told] == [PrefixStoreWarning]
        assert "No space left" in str(told[0].message)
        assert store.counts.failures == 3
        assert {it.suffix for it in disk.glob("*/*")} <= {".kv", ".json"}
        assert 0 < found(store, prompt) == len(files(disk)) * BLOCK_TOKENS < 320
        clear(*summaries(disk))
        keep(store, prompt[:64])
        assert found(store, prompt) == 64
        store.close()


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_directory_that_is_only_read_is_told_once_and_read(tmp_path, monkeypatch, error):
    stored(tmp_path, np.arange(64)).close()

    def refused(*_, **__):
        raise OSError(error, os.strerror(error))

    store = PrefixStore(tmp_path, TARGET)
    with warnings.catch_warnings(record=True) as told, monkeypatch.context() as patch:
        warnings.simplefilter("always")
        patch.setattr("coordgen_rs.store.files.create_unfinished_file", refused)
        patch.setattr(os, "utime", refused)
        for number in (1, 2):
            keep(store, run_of(number, 64), "b")
        assert found(store, np.arange(65)) == 64
    assert len(told) <= 1
    assert found(store, np.arange(65)) == 64


@pytest.mark.parametrize("left", [0, 1, 3, 11, 100])
def test_a_process_that_is_killed_leaves_what_it_has_written(tmp_path, left):
    [status] = at_once(keep_and_die, [(tmp_path, left)])
    assert status == (0 if left == 100 else -signal.SIGKILL)
    store = PrefixStore(tmp_path, TARGET)
    before = found(store, np.arange(201))
    assert before == len(files(tmp_path)) * BLOCK_TOKENS
    assert store.counts.damaged == 0
    keep(store, np.arange(200))
    assert found(store, np.arange(201)) == 192


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_writes_is_not(tmp_path):
    stored(tmp_path, np.arange(64)).close()
    (folder,) = folders(tmp_path)
    left, other = (folder / f".{'0' * 32}{it}.unfinished" for it in (".kv." + "a" * 12, ".mine"))
    for path in (left, other):
        path.write_bytes(b"half")
    with whole_file(folder / f"{1:032x}.kv") as stream:
        stream.write(b"whole")
        stored(tmp_path, run_of(1, 64)).close()
    assert (left.exists(), other.exists()) == (False, True)
    assert (folder / f"{1:032x}.kv").read_bytes() == b"whole"


def test_what_was_left_where_there_are_no_locks_counts_and_goes_as_all_else(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "remove_abandoned", lambda path: [])
    store = stored(tmp_path, run_of(1, 64), most_bytes=4 * BLOCK_BYTES)
    (folder,) = folders(tmp_path)
    left = folder / f".{'0' * 32}.kv.{'a' * 12}.unfinished"
    left.write_bytes(bytes(3 * BLOCK_BYTES))
    os.utime(left, (1, 1))
    (there,) = summaries(tmp_path)
    assert there.num_bytes == 5 * BLOCK_BYTES
    store = stored(tmp_path, run_of(2, 64), most_bytes=4 * BLOCK_BYTES)
    assert not left.exists()
    assert found(store, run_of(2, 65)) == 64
    clear(*summaries(tmp_path))
    assert folders(tmp_path) == []


def test_a_list_tells_of_each_namespace_and_clearing_one_leaves_the_others(tmp_path):
    assert summaries(tmp_path) == []
    (tmp_path / "mine.txt").write_text("not the store's")
    with pytest.raises(OptionError, match="is not a prefix store"):
        summaries(tmp_path)
    stored(tmp_path, np.arange(64), "alice").close()
    stored(tmp_path, np.arange(96), "bob").close()
    of_bob, of_alice = summaries(tmp_path)
    assert (of_bob.namespace, of_bob.num_tokens, of_bob.bundle) == ("bob", 96, "bundle")
    assert (of_alice.namespace, of_alice.num_bytes) == ("alice", 2 * BLOCK_BYTES)
    assert clear(of_alice, unused_since=1.0) == 0
    assert clear(of_alice) == 2 * BLOCK_BYTES
    (rest,) = summaries(tmp_path)
    assert rest.namespace == "bob"
    (rest.directory / "about.json").write_text("[")
    (damaged,) = summaries(tmp_path)
    assert (damaged.namespace, damaged.num_tokens) == (None, 96)
    clear(damaged)
    assert [it.name for it in tmp_path.iterdir()] == ["mine.txt"]


def test_integers_of_an_npu_lie_as_its_layout_has_them():
    random = np.random.default_rng(3)
    keys = random.integers(0, 65536, (3, 1, 8, 70), np.uint16).transpose(1, 0, 3, 2)
    values = random.integers(0, 255, (1, 3, 70, 8), np.uint8)
    layout = Layout(((3, 8, keys.dtype), (3, 8, values.dtype)))
    blocks = layout.packed(np.arange(70, dtype=np.uint32), [(keys, values)], 3, 32, 2)
    ((again, and_again),) = room = layout.room(64)
    for number, block in enumerate(blocks):
        layout.unpack(block, room, 32 * number, 32)
    assert np.array_equal(again, keys[:, :, 3:67])
    assert np.array_equal(and_again, values[:, :, 3:67])


@pytest.mark.parametrize("turns", [(50, 90), (64, 99), (10,), ()])
def test_of_recurrent_layers_the_longest_states_lead_back(tmp_path, turns):
    prompt = np.arange(100, dtype=np.uint32)
    store = stored(tmp_path, prompt, turns=turns)
    assert len(files(tmp_path, "*/*.states")) == len(turns)
    longest = max(turns, default=0)
    if longest:
        prefix = store.find(ReadSession(turns=()), ids(prompt, [1]), "a", 0)
        check(prefix, prompt)
        assert prefix.reachable(100) == len(prefix.token_ids) == longest
    assert found(store, [*prompt[:60], 1, 2], turns=()) == max(
        (it for it in turns if it <= 60), default=0
    )
    for path in files(tmp_path, "*/*.states"):
        path.write_bytes(path.read_bytes()[:-1])
    assert found(store, [*prompt, 1], turns=()) == 0
    assert store.counts.damaged == len(turns)


def test_states_that_are_there_are_used_by_each_request_that_ends(tmp_path):
    prompt = np.arange(100, dtype=np.uint32)
    store = stored(tmp_path, prompt, turns=(50, 90))
    there = files(tmp_path, "*/*.states")
    for path in there:
        os.utime(path, ns=(0, 0))
    keep(store, prompt, since=100, turns=(50, 90, 99))
    assert len(files(tmp_path, "*/*.states")) == 3
    assert all(path.stat().st_mtime_ns > 0 for path in there)


def test_lengths_are_tried_once_and_none_where_no_states_are(tmp_path, monkeypatch):
    tried, states_of = [], Lookup._states

    def counted(self, length):
        tried.append(length)
        return states_of(self, length)

    monkeypatch.setattr(Lookup, "_states", counted)
    prompt = np.arange(4000, dtype=np.uint32)
    store = stored(tmp_path, prompt, turns=())
    tried.clear()
    assert found(store, [*prompt, 1], turns=()) == 0
    assert not tried
    keep(store, prompt, turns=(64, 3000))
    for path in files(tmp_path, "*/*.states"):
        path.write_bytes(path.read_bytes()[:-1])
    tried.clear()
    assert found(store, [*prompt, 1], turns=()) == 0
    assert len(tried) < 4000 + 10


def by_chance(num_writers):
    chosen = random.Random(3)
    return [chosen.randrange(num_writers) for _ in range(150)]


@pytest.mark.parametrize(
    ("most", "writers"),
    [
        (1000, [0] * 40),
        (30_000, by_chance(3)),
        (30_000, by_chance(16)),
        (30_000, [0, 1, *[2] * 150, *[0] * 9, *[1] * 9]),  # who has looked before others filled it
    ],
)
def test_no_more_than_the_limit_is_there_after_any_write(tmp_path, most, writers):
    directories = [StoreDirectory(tmp_path, most) for _ in range(max(writers) + 1)]
    folder = directories[0].make_folder(bytes(16), {})
    for number, writer in enumerate(writers):
        num_bytes = directory_module.HEAD_BYTES + 37 * (1 + number % 5)
        assert write(directories[writer], folder, number, num_bytes).exists()
        assert sum(it.stat().st_size for it in files(tmp_path)) <= most


def test_processes_that_write_at_once_stay_within_the_limit_together(tmp_path):
    assert at_once(write_many, [(tmp_path, it) for it in range(3)]) == [0, 0, 0]
    assert 22_000 < sum(it.stat().st_size for it in files(tmp_path)) <= 30_000


def test_a_writer_that_does_not_come_to_an_end_costs_others_their_writing_alone(
    tmp_path, monkeypatch, recwarn
):
    monkeypatch.setattr(directory_module, "_MOST_WAIT_S", 0)
    store = stored(tmp_path, run_of(1, 64))
    with StoreDirectory(tmp_path).room_for(1):
        keep(store, run_of(2, 64))
        assert found(store, run_of(1, 65)) == 64
    assert "writing there for too long" in str(recwarn.pop(PrefixStoreWarning).message)
    assert (store.counts.failures, found(store, run_of(2, 65))) == (1, 0)
    keep(store, run_of(2, 64))
    assert found(store, run_of(2, 65)) == 64


@pytest.mark.parametrize("total", [b"", b"-", b"1" * 30, b"\xff", None])
def test_what_is_there_is_measured_where_nothing_of_use_tells(tmp_path, total):
    directory = StoreDirectory(tmp_path, 3000)
    folder = directory.make_folder(bytes(16), {})
    for number in range(6):
        if number >= 2:
            (tmp_path / ".total").unlink()
        if number >= 2 and total is not None:
            (tmp_path / ".total").write_bytes(total)
        write(directory, folder, number, 1000)
    assert len(files(tmp_path)) == 2


def test_where_nothing_can_be_removed_nothing_is_written(tmp_path, monkeypatch):
    directory = StoreDirectory(tmp_path, 1500)
    folder = directory.make_folder(bytes(16), {})
    write(directory, folder, 0, 1000)

    unlink = type(tmp_path).unlink

    def refused(path, **options):
        if path.suffix == ".kv":
            raise PermissionError
        unlink(path, **options)

    monkeypatch.setattr(type(tmp_path), "unlink", refused)
    with pytest.raises(OSError, match="nothing can be removed"), directory.room_for(1000):
        pytest.fail("there is no room")


def test_states_that_are_larger_than_the_store_are_left_out(tmp_path):
    store = stored(tmp_path, np.arange(100), turns=(31, 90), most_bytes=BLOCK_BYTES)
    kept = [it for it in tmp_path.glob("*/*") if it.suffix in (".kv", ".states")]
    assert sum(it.stat().st_size for it in kept) <= BLOCK_BYTES
    assert store.counts.failures == 0


def no_memory(*_):
    raise MemoryError


def test_states_for_which_there_is_no_memory_are_left_out_and_leave_room(tmp_path, monkeypatch):
    store, prompt = PrefixStore(tmp_path, TARGET), np.arange(100, dtype=np.uint32)
    monkeypatch.setattr(store, "_memory", MemoryBudget(1))  # all is taken by what is alone
    with monkeypatch.context() as patched:
        patched.setattr(Layout, "packed", no_memory)
        keep(store, prompt, since=64, turns=(50, 90))
    assert store.counts.failures >= 2
    assert not files(tmp_path, "*/*.states")
    keep(store, prompt, since=64, turns=(90,))
    assert len(files(tmp_path, "*/*.states")) == 1


def test_copies_for_which_there_is_no_memory_are_dropped_and_leave_room(tmp_path, monkeypatch):
    store = late(tmp_path, room=1)  # all is taken by what is alone
    with monkeypatch.context() as patched:
        patched.setattr(Layout, "packed", no_memory)
        keep_and_overwrite(store, run_of(1, 128))
    store.flush()
    assert store.counts.skipped == 4
    assert store._memory.take("another", 2)


@pytest.mark.parametrize("error", [MemoryError, NoThreadError, KeyError])
def test_what_is_not_going_to_be_written_leaves_its_room(tmp_path, monkeypatch, error):
    def refused(job):
        raise error

    store, session = PrefixStore(tmp_path, TARGET), ReadSession(np.arange(100), (90,))
    monkeypatch.setattr(store, "_memory", MemoryBudget(1))
    monkeypatch.setattr(store.writer, "try_add", refused)
    with pytest.raises(KeyError) if error is KeyError else nullcontext():
        store.save(session, "a", 0, ends=True)
    assert all(reader.is_over for reader in session.readers)
    assert store.counts.failures == (error is not KeyError)
    assert store._memory.take("another", 2)
