"""The history under processes that are killed, that write at once, or whose disk is full."""

import multiprocessing
import os
import time

import numpy as np
import pytest

from coordgen_rs.store.history.store import HistoryStore
from drafts import drafted_after
from history_writer import open_history, request, write, write_beyond_the_disk, write_forever


@pytest.fixture(scope="module")
def processes():
    """A context whose processes start fast, from a server that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["coordgen_rs.store.history.requests", "history_writer"])
    return context


def stored(directory):
    store = HistoryStore(directory)
    texts = [np.frombuffer(found.token_ids, "<u4") for found in store.read()]
    store.close()
    return texts


def assert_drafts_what_was_stored(directory, texts, numbers):
    with open_history(directory) as history:
        for index in numbers.integers(len(texts), size=5):
            at = int(numbers.integers(10, len(texts[index]) - 8))
            drafted = drafted_after(history, texts[index][:at], 8)
            assert drafted == texts[index][at : at + 8].tolist()


@pytest.mark.parametrize("num_kills", [15, pytest.param(50, marks=pytest.mark.faults)])
def test_a_killed_process_loses_at_most_the_request_in_flight(
    processes, tmp_path, recwarn, num_kills
):
    numbers = np.random.default_rng(0)
    next_number = 0
    for _ in range(num_kills):
        receiving, sending = processes.Pipe(duplex=False)
        writer = processes.Process(target=write_forever, args=(tmp_path, next_number, sending))
        writer.start()
        sending.close()
        assert receiving.poll(600)
        time.sleep(numbers.random() * 0.04)
        writer.kill()
        writer.join()
        told = []
        try:
            while True:
                told.append(receiving.recv())
        except EOFError:
            pass
        texts = stored(tmp_path)
        assert told[-1] + 1 <= len(texts) <= told[-1] + 2
        for number, text in enumerate(texts):
            np.testing.assert_array_equal(text, request(number))
        assert_drafts_what_was_stored(tmp_path, texts, numbers)
        next_number = len(texts)
    assert len([path for path in tmp_path.iterdir() if path.suffix == ".unfinished"]) <= 1
    assert not recwarn.list  # neither a damaged index nor a damaged database


def test_two_processes_write_one_history(processes, tmp_path):
    shares = [range(0, 300), range(300, 600)]
    writers = [processes.Process(target=write, args=(tmp_path, share)) for share in shares]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    found = {text.tobytes() for text in stored(tmp_path)}
    assert found == {request(number).astype("<u4").tobytes() for number in range(600)}
    texts = stored(tmp_path)
    assert_drafts_what_was_stored(tmp_path, texts, np.random.default_rng(0))


@pytest.mark.parametrize("max_bytes", [100_000, 200_000, 300_000])
def test_a_full_disk_is_told_once_and_nothing_breaks(processes, tmp_path, max_bytes):
    receiving, sending = processes.Pipe(duplex=False)
    writer = processes.Process(target=write_beyond_the_disk, args=(tmp_path, max_bytes, sending))
    writer.start()
    writer.join()
    assert writer.exitcode == 0
    told = receiving.recv()
    assert len(told) == 1
    assert told[0].startswith("HistoryWarning: the history cannot be ")
    assert receiving.recv() >= 100 * 1_000  # what the disk does not hold, memory does
    texts = stored(tmp_path)
    assert 0 < len(texts) < 100
    for number, text in enumerate(texts):
        np.testing.assert_array_equal(text, request(number, 1_000))
    assert_drafts_what_was_stored(tmp_path, texts, np.random.default_rng(0))


def test_a_directory_without_write_permission_is_told_once_and_drafted_from(tmp_path):
    with open_history(tmp_path) as history:
        history.add(request(0), [])
    try:
        for path in tmp_path.iterdir():
            path.chmod(0o400)
        tmp_path.chmod(0o500)
        if os.access(tmp_path, os.W_OK):
            pytest.skip("permissions do not bind this user")
        with pytest.warns(match="cannot be written") as caught:
            assert_drafts_what_was_stored(tmp_path, [request(0)], np.random.default_rng(0))
        assert len(caught) == 1
    finally:
        tmp_path.chmod(0o700)
