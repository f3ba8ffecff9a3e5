"""The history: what is stored, what is drafted from it, and what survives."""

import os
import sqlite3
import sys
import threading
import warnings
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from answers import tokens_of
from coordgen_rs import History, Stats, Tokenizer, generate, make_drafter, plain
from coordgen_rs._core import Drafter, StepInputs
from coordgen_rs.cli.main import main
from coordgen_rs.errors import (
    HistoryError,
    HistoryMismatchError,
    HistoryWarning,
    OptionError,
    TokenOutOfRangeError,
)
from coordgen_rs.store.history.store import DATABASE_NAME, HistoryStore, StoredRequest, index_name
from corpus import HELD_OUT_SEEDS, TASKS, example
from drafts import drafted_after
from histories import LONG, VOCAB_SIZE, fill, knows, open_history, request, stored

DESCRIPTORS = Path("/proc/self/fd")


def drafter_over(history):
    """A drafter of one narrow step."""
    inputs = StepInputs(np.zeros(4, np.int64), np.zeros(4, np.int64), np.zeros((4, 99), np.float32))
    return Drafter([inputs], VOCAB_SIZE, sources=[], history=history.shared)


def deleted_files():
    """The files that this process has open although they are gone."""
    links = [str(link.readlink()) for link in DESCRIPTORS.iterdir() if link.is_symlink()]
    return [link for link in links if "(deleted)" in link and ".index" in link]


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_was_stored_is_drafted_at_once_and_after_opening_again(tmp_path, is_kept):
    directory, text = tmp_path if is_kept else None, request(0, 2_000)
    with open_history(directory) as history:
        assert not knows(history, text)
        history.add(text[:900], text[900:])
        assert knows(history, text)
        assert history.shared.num_recent_tokens == 2_000
    with open_history(directory) as again:
        assert knows(again, text) == is_kept


@pytest.mark.skipif(sys.platform != "linux", reason="names are UTF-8 here")
def test_the_name_of_the_directory_may_be_any_bytes(tmp_path):
    directory = tmp_path / "50% of? #\udcff"
    fill(directory)
    with open_history(directory) as history:
        assert knows(history, request(1, LONG))
    assert main(["history", "ls", str(directory)]) == 0


@pytest.mark.parametrize("is_lost", [False, True])
def test_closing_builds_the_index_and_opening_uses_it_or_builds_it_again(
    tmp_path, recwarn, is_lost
):
    path = fill(tmp_path)
    assert path.stat().st_size < 12 * 2 * LONG
    if is_lost:
        path.unlink()
    with open_history(tmp_path) as history:
        assert path.exists()
        assert history.shared.num_indexed_tokens == 2 * (LONG + 1)
        assert history.shared.num_recent_tokens == 0
        assert knows(history, request(1, LONG))
        history.add(request(2, 100), [])
        assert knows(history, request(2, 100), at=50)
    assert not recwarn.list


def test_an_index_is_built_while_requests_go_on(tmp_path):
    with open_history(tmp_path) as history:
        history.add(request(0, 70_000), [])
        history.add(request(1, 500), [])
        history.close()
        assert history.shared.num_indexed_tokens >= 70_000
        assert knows(history, request(0, 70_000))
        assert knows(history, request(1, 500))


def test_namespaces_do_not_draft_from_each_other(tmp_path):
    for length in (500, LONG):  # from memory, and from an index
        text = request(length, length)
        with open_history(tmp_path, f"mail/alice {length}") as alice:
            alice.add(text, [])
        with open_history(tmp_path, f"mail/alice {length}") as alice:
            assert knows(alice, text, at=200)
        for other in ("mail/bob", "mail/alice", "../mail/alice", " "):
            with open_history(tmp_path, other) as history:
                assert drafted_after(history, text[180:200], 8) == []
    index_of_another = tmp_path / index_name("mail/bob")
    (tmp_path / index_name(f"mail/alice {LONG}")).rename(index_of_another)
    bob = open_history(tmp_path, "mail/bob")
    with pytest.warns(HistoryWarning, match="belongs to another history"):
        bob.add(request(9, 30), [])
    assert drafted_after(bob, text[180:200], 8) == []


def held(history):
    """Tokens of the requests that a process may draft from."""
    shared = history.shared
    num_terminators = len(stored(history._store.path.parent, history.namespace))
    indexed = shared.num_indexed_tokens and shared.num_indexed_tokens - num_terminators
    return indexed + shared.num_recent_tokens


def test_what_is_evicted_is_neither_drafted_nor_held_any_more(tmp_path):
    with open_history(tmp_path, max_tokens=1_000) as history:
        for seed in range(10):
            history.add(request(seed, 300), [])
            assert held(history) == min(300 * (seed + 1), 900)
            assert knows(history, request(seed, 300))
            assert seed < 3 or not knows(history, request(seed - 3, 300))
        np.testing.assert_array_equal(stored(tmp_path), [request(it, 300) for it in (7, 8, 9)])
        history.add(request(10, 1_001), [])
        assert stored(tmp_path) == []


def test_an_index_is_built_again_without_what_was_evicted(tmp_path, recwarn):
    path = fill(tmp_path)
    evicted, left = request(0, LONG), request(1, LONG)
    assert evicted[1_000:1_100].tobytes() in path.read_bytes()
    with open_history(tmp_path, max_tokens=6_000) as history:
        assert knows(history, evicted)
        history.add(request(2, 300), [])
        assert not knows(history, evicted)
        assert knows(history, left)
        assert knows(history, request(2, 300))
        assert history.shared.num_indexed_tokens > LONG
    assert evicted[1_000:1_100].tobytes() not in path.read_bytes()
    assert left[1_000:1_100].tobytes() in path.read_bytes()
    assert not recwarn.list


@pytest.mark.parametrize("length", [300, LONG])
def test_other_processes_drop_what_was_evicted_with_their_next_request(tmp_path, length):
    fill(tmp_path, length=length)
    one, other = open_history(tmp_path, max_tokens=length + 1_000), open_history(tmp_path)
    elsewhere = open_history(tmp_path, "another namespace")
    assert knows(other, request(0, length), at=200)
    elsewhere.add(request(7, 1_000), [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for history in (one, other):
            history.refresh()
            assert not knows(history, request(0, length), at=200)
            assert held(history) == sum(map(len, stored(tmp_path, "default")))
    one.add(request(3, 100), [])
    other.refresh()
    assert knows(other, request(3, 100), at=50)
    for history in (one, other, elsewhere):
        history.close()


def test_of_a_large_limit_an_eighth_is_evicted_at_once(tmp_path):
    sizes = []
    with open_history(tmp_path, max_tokens=8_192) as history:
        for seed in range(30):
            history.add(request(seed, 500), [])
            sizes.append(sum(map(len, stored(tmp_path))))
            assert not knows(history, request(abs(seed - 16), 500), at=200) or seed < 16
    again = [7_000, 7_500, 8_000] * 4 + [7_000, 7_500]
    assert sizes == [500 * number for number in range(1, 17)] + again


def test_a_request_that_fits_alone_is_kept_also_where_an_eighth_is_evicted_at_once(tmp_path):
    with open_history(tmp_path, max_tokens=10_000) as history:
        for seed, length in enumerate((9_000, 10_000, 9_500)):
            history.add(request(seed, length), [])
            assert list(map(len, stored(tmp_path))) == [length]
            assert knows(history, request(seed, length))
        history.add(request(3, 10_001), [])
        assert stored(tmp_path) == []


def test_a_large_history_is_drafted_from_while_its_index_is_built_again(tmp_path):
    documents = [request(seed, 11_000) for seed in range(9)]
    with open_history(tmp_path, max_tokens=95_000) as history:
        for document in documents:
            history.add(document, [])
        assert not knows(history, documents[1])
        assert knows(history, documents[-1])
        history._background.join()
        assert all(knows(history, document) for document in documents[2:])
        assert held(history) == 77_000


def test_what_is_evicted_as_an_index_is_just_built_has_it_built_again(tmp_path, monkeypatch):
    documents = [request(seed, 11_000) for seed in range(9)]
    is_built, is_evicted, close = threading.Event(), threading.Event(), HistoryStore.close

    def close_late(store):
        if threading.current_thread() is not threading.main_thread():
            is_built.set()
            assert is_evicted.wait(600)
        close(store)

    monkeypatch.setattr(HistoryStore, "close", close_late)
    with open_history(tmp_path, max_tokens=95_000) as history:
        for document in documents[:-1]:
            history.add(document, [])
        assert is_built.wait(600)
        history.add(documents[-1], [])
        is_evicted.set()
        history._background.join()
        assert all(knows(history, document) for document in documents[2:])


def test_an_index_whose_requests_another_process_evicts_as_it_is_opened_is_no_failure(
    tmp_path, monkeypatch, recwarn
):
    name, epoch = "default", HistoryStore.epoch
    with open_history(tmp_path, max_tokens=6_000) as history:
        other = HistoryStore(tmp_path)
        for seed in (0, 1):
            history.add(request(seed, 2_500), [])

        def epoch_before_an_eviction(store, namespace):
            found = epoch(store, namespace)
            monkeypatch.setattr(HistoryStore, "epoch", epoch)
            other.add([StoredRequest(name, 1.0, 1, request(2, 2_000))])
            return found

        monkeypatch.setattr(HistoryStore, "epoch", epoch_before_an_eviction)
    assert not recwarn.list
    with open_history(tmp_path) as history:
        assert not knows(history, request(0, 2_500))
        assert knows(history, request(2, 2_000))


def test_an_index_that_outlived_an_eviction_is_removed_where_none_is_built(tmp_path, recwarn):
    path = fill(tmp_path)
    whole = path.read_bytes()
    with open_history(tmp_path, max_tokens=1_000) as history:
        history.add(request(2, 300), [])
    path.write_bytes(whole)  # as whoever evicts leaves it, killed before it is removed
    with open_history(tmp_path) as history:
        assert not knows(history, request(0, LONG))
        assert knows(history, request(2, 300))
    assert not path.exists()
    open_history(tmp_path).close()
    assert [str(warning.message).rpartition(": ")[2] for warning in recwarn] == ["it is removed"]


def test_two_histories_of_one_directory_see_each_others_requests(tmp_path):
    one, other = open_history(tmp_path), open_history(tmp_path)
    for seed, (writer, reader) in enumerate([(one, other), (other, one)]):
        writer.add(request(seed, 300), [])
        reader.refresh()
        assert knows(reader, request(seed, 300))
    assert one.shared.num_recent_tokens == 600


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="what a process has open is not listed here")
@pytest.mark.parametrize("gives_up", [False, True])
def test_a_drafter_whose_request_is_over_holds_no_file_that_was_replaced(tmp_path, gives_up):
    fill(tmp_path)
    history = open_history(tmp_path)
    drafters = [drafter_over(history) for _ in range(5)]
    for seed in range(len(drafters)):
        drafter = drafters[seed]
        drafter.begin(request(0, LONG)[:20], 1)
        if gives_up:
            drafter.end()
        while not gives_up and drafter.finish_reason is None:
            drafter.propose(19)
            drafter.accept_recorded(request(0, LONG)[20:30])
        fill(tmp_path, numbers=(seed + 5,))
        history.refresh()
        history._load(history._store, history._epoch, None)
    assert knows(history, request(9, LONG), at=1_000)
    assert deleted_files() == []
    history.close()


def test_what_was_cleared_is_not_drafted_any_more(tmp_path):
    fill(tmp_path)
    history = open_history(tmp_path)
    assert knows(history, request(0, LONG))
    path = tmp_path / index_name("default")
    index = path.read_bytes()
    assert main(["history", "clear", str(tmp_path)]) == 0
    assert not path.exists()
    history.refresh()
    assert not knows(history, request(0, LONG))
    history.add(request(5, 300), [])
    replace(path, index)
    with pytest.warns(HistoryWarning, match="belongs to another history"):
        again = open_history(tmp_path)
    assert not knows(again, request(0, LONG))
    assert knows(again, request(5, 300))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fingerprint": "another"}, HistoryMismatchError, "is a tokenizer, not another"),
        ({"vocab_size": 51}, HistoryMismatchError, "vocabulary size is 50, not 51"),
        ({"vocab_size": -1}, OptionError, "vocab_size"),
        ({"vocab_size": 2**40}, OptionError, "vocab_size"),
        ({"vocab_size": "a"}, OptionError, "vocab_size"),
        ({"fingerprint": "\ud800"}, OptionError, "fingerprint"),
    ],
)
def test_another_tokenizer_or_one_that_cannot_be_is_refused(tmp_path, options, error, message):
    fill(tmp_path, length=10)
    with pytest.raises(error, match=message):
        open_history(tmp_path, **options)
    with open_history(tmp_path) as history, pytest.raises(TokenOutOfRangeError):
        history.add([VOCAB_SIZE], [])
    assert len(stored(tmp_path)) == 2


def execute(path, statement):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    ("put", "message"),
    [
        (lambda path: None, "holds no history"),
        (os.mkfifo, "not a regular file"),
        (os.mkdir, "not a regular file"),
        (lambda path: path.write_bytes(b"no database " * 1_000), "cannot be read"),
        (lambda path: execute(path, "PRAGMA user_version = 2"), "schema version 2"),
    ],
)
def test_what_is_no_database_of_ours_is_refused_and_not_waited_for(tmp_path, put, message):
    put(tmp_path / DATABASE_NAME)
    opening = [HistoryStore, partial(HistoryStore, read_only=True), open_history]
    for open_it in opening[: 2 if "no history" in message else 3]:
        with pytest.raises(HistoryError, match=message):
            open_it(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE requests SET num_tokens = 'many'",
        "UPDATE requests SET num_tokens = x'00ff'",
        "UPDATE namespaces SET name = x'00ff'",
    ],
)
def test_a_row_that_cannot_be_evicted_is_told_and_not_raised(tmp_path, damage):
    fill(tmp_path)
    execute(tmp_path / DATABASE_NAME, damage)
    with open_history(tmp_path, "other", max_tokens=100) as history:
        with pytest.warns(HistoryWarning, match="is damaged: request 1 is not whole"):
            history.add(request(5, 300), [])
        assert knows(history, request(5, 300))


def replace(path, content):
    """Put another file in its place, as all do who write an index: the old one may be in use."""
    other = path.with_suffix(".other")
    other.write_bytes(content)
    other.replace(path)


def flip_bits(content, numbers):
    """Change a bit in every block, so that whatever is read is damaged."""
    for block in range(len(content) // 4_096):
        content[4_096 * block + int(numbers.integers(4_096))] ^= 1 << int(numbers.integers(8))


def cut_off(content, numbers):
    del content[int(numbers.integers(len(content))) :]


def other_version(content, numbers):
    content[8] += 1


@pytest.mark.parametrize("damage", [flip_bits, cut_off, other_version])
def test_a_damaged_index_is_rebuilt_with_a_warning(tmp_path, damage):
    path = fill(tmp_path)
    whole = path.read_bytes()
    for seed in range(8):
        damage(content := bytearray(whole), np.random.default_rng(seed))
        replace(path, content)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            history = open_history(tmp_path)
            drafted_after(history, request(0, LONG)[980:1_000], 8)
            history.refresh()  # as the next request begins
        assert [warning.category for warning in caught] == [HistoryWarning]
        assert "rebuilt" in str(caught[0].message)
        assert knows(history, request(0, LONG))
        assert path.read_bytes() == whole
        history.close()


def test_a_single_damaged_bit_never_gives_a_wrong_draft(tmp_path):
    path = fill(tmp_path, numbers=(0,))
    whole, text = path.read_bytes(), request(0, LONG)
    numbers = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HistoryWarning)
        for _ in range(60):
            content = bytearray(whole)
            content[numbers.integers(len(content))] ^= 1 << int(numbers.integers(8))
            replace(path, content)
            history = open_history(tmp_path)
            at = int(numbers.integers(20, LONG - 10))
            drafted = drafted_after(history, text[at - 20 : at], 8)
            assert drafted in ([], text[at : at + 8].tolist()) or history.shared.is_damaged
            history.refresh()
            assert knows(history, text, at)
            history.close()


def test_a_database_that_cannot_be_written_is_told_once_and_drafted_from(
    tmp_path, monkeypatch, recwarn
):
    fill(tmp_path)

    def refused(self, *_):
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(HistoryStore, "_use_wal", refused)  # the tests may run as root
    with pytest.warns(HistoryWarning), pytest.raises(HistoryMismatchError):
        open_history(tmp_path, fingerprint="another")
    with pytest.warns(HistoryWarning, match=r"cannot be written.*generation continues") as caught:
        history = open_history(tmp_path)
    history.add(request(7, 300), [])
    history.add(request(8, 300), [])
    history.close()
    assert len(caught) == 1
    assert knows(history, request(0, LONG))
    assert knows(history, request(7, 300))
    assert not recwarn.list
    monkeypatch.undo()
    assert len(stored(tmp_path)) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file", "file cannot be written: it is not a directory;"),
        ("file/below", "cannot be written"),
    ],
)
def test_a_directory_that_cannot_be_made_leaves_a_history_in_memory(tmp_path, name, message):
    (tmp_path / "file").write_text("")
    with pytest.warns(HistoryWarning, match=message) as caught:
        history = open_history(tmp_path / name)
    history.add(request(0, 300), [])
    assert len(caught) == 1
    assert knows(history, request(0, 300))


def near_misses(answer, numbers, vocab_size):
    """The answer with one token changed, dropped or doubled, again and again."""
    for _ in range(30):
        changed, at = list(answer), int(numbers.integers(len(answer)))
        kind = numbers.integers(3)
        changed[at : at + 1] = [[int(numbers.integers(vocab_size))], [], [answer[at]] * 2][kind]
        yield changed


@pytest.mark.parametrize(("weights", "indexed"), [("fp32", True), ("int4", False)])
def test_a_history_full_of_near_misses_changes_no_token(session_of, tmp_path, weights, indexed):
    session = session_of("embedded", weights)
    tokenizer = Tokenizer.of(session.bundle)
    numbers = np.random.default_rng(0)
    history = History.of(tmp_path, session.bundle)
    made = [example(task, HELD_OUT_SEEDS[2_000 + index]) for index, task in enumerate(TASKS)]
    prompts = [tokenizer.encode(one.prompt) for one in made]
    expected = [tokens_of(plain(session, prompt, max_new_tokens=60)) for prompt in prompts]
    for prompt, answer in zip(prompts, expected, strict=True):
        for changed in near_misses(answer, numbers, session.vocab_size):
            history.add(prompt, changed)
    if indexed:
        history.close()
        history = History.of(tmp_path, session.bundle)
        assert history.shared.num_indexed_tokens > 0
    drafter, proposed = make_drafter(session, history=history), 0
    for prompt, answer in zip(prompts, expected, strict=True):
        stats = Stats()
        got = generate(
            session, prompt, max_new_tokens=60, drafter=drafter, history=history, stats=stats
        )
        assert tokens_of(got) == answer
        proposed += stats.per_source["history" if indexed else "recent"]["proposed"]
    assert proposed > 0
    history.close()


def test_only_finished_requests_are_stored(session_of, tmp_path):
    session = session_of("embedded", "fp32")
    prompt = Tokenizer.of(session.bundle).encode(example("rag", HELD_OUT_SEEDS[7]).prompt)
    history = History.of(tmp_path, session.bundle)
    steps = generate(session, prompt, max_new_tokens=40, history=history)
    next(steps)
    steps.close()
    assert stored(tmp_path) == []
    stats = Stats()
    answer = tokens_of(generate(session, prompt, max_new_tokens=40, history=history, stats=stats))
    assert [text.tolist() for text in stored(tmp_path)] == [[*prompt.tolist(), *answer]]
    again = Stats()
    steps = generate(session, prompt, max_new_tokens=40, history=history, stats=again)
    assert tokens_of(steps) == answer
    assert again.steps < stats.steps
    assert again.per_source["recent"]["accepted"] > 0
    history.close()


def test_a_drafter_refuses_the_history_of_another_vocabulary(session_of):
    session = session_of("embedded", "fp32")
    with pytest.raises(OptionError, match="vocabulary of 50"):
        make_drafter(session, history=open_history(None))


def test_an_interrupt_as_a_transaction_begins_leaves_none_open(tmp_path):
    with open_history(tmp_path) as history:
        history.add([1], [2])
        store = HistoryStore(tmp_path)

        def interrupted(frame, event, _argument):
            if event == "line" and store.connection.in_transaction:
                sys.settrace(None)
                raise KeyboardInterrupt
            return interrupted

        sys.settrace(interrupted)
        try:
            with pytest.raises(KeyboardInterrupt) as kept:  # as a notebook does, with all frames
                store.clear()
        finally:
            sys.settrace(None)
        assert kept.tb is not None
        assert not store.connection.in_transaction
        history.add([3], [4])  # another process's change waits for none
        assert [request.number for request in HistoryStore(tmp_path).read()] == [1, 2]
        store.close()


def test_a_finished_request_is_stored_wherever_the_process_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with open_history(Path("kept")) as history:
        monkeypatch.chdir(tmp_path / "elsewhere")
        history.add_later([1], [2], lambda: None)
    assert len([*HistoryStore(tmp_path / "kept").read()]) == 1
