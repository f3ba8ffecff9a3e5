"""The history under processes that are killed, that write at once, or whose disk is full."""

import os
import random
import warnings
from contextlib import closing

import numpy as np
import pytest

from coordgen_rs.errors import HistoryWarning
from coordgen_rs.store.history.store import DEFAULT_MAX_TOKENS, HistoryStore
from drafts import drafted_after
from histories import index_all_the_time, open_history, request, stored, write, write_forever
from killed import at_once, kill_at_random, limited


def assert_drafts_what_was_stored(directory, texts, numbers):
    with open_history(directory) as history:
        for index in numbers.integers(len(texts), size=5 * bool(texts)):
            at = int(numbers.integers(10, len(texts[index]) - 8))
            drafted = drafted_after(history, texts[index][:at], 8)
            assert drafted == texts[index][at : at + 8].tolist()


@pytest.mark.parametrize("num_kills", [4, pytest.param(50, marks=pytest.mark.faults)])
def test_a_killed_process_loses_at_most_the_request_in_flight(tmp_path, recwarn, num_kills):
    rng, numbers, number = random.Random(num_kills), np.random.default_rng(0), 0
    for _ in range(num_kills):
        told = kill_at_random(write_forever, tmp_path, number, rng=rng)
        least, texts = told[-1] + 1 if told else number, stored(tmp_path)
        assert least <= len(texts) <= least + 1
        np.testing.assert_array_equal(texts, [request(it) for it in range(len(texts))])
        assert_drafts_what_was_stored(tmp_path, texts, numbers)
        number = len(texts)
    assert number > num_kills
    assert len([path for path in tmp_path.iterdir() if path.suffix == ".unfinished"]) <= 1
    assert not recwarn.list  # neither a damaged index nor a damaged database


@pytest.mark.parametrize("limits", [(None, None), (3_000, 6_000)])
def test_two_processes_write_one_history_and_lose_nothing_but_the_oldest(tmp_path, limits):
    shares = [range(0, 300), range(300, 600)]
    shared = zip(shares, limits, strict=True)
    assert at_once(write, [(tmp_path, *each) for each in shared]) == [0, 0]
    with closing(HistoryStore(tmp_path)) as store:
        most, numbers = store.max_tokens, [found.number for found in store.read()]
        assert store.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    num_kept = 600 if limits == (None, None) else most // 60
    assert most in (*limits, DEFAULT_MAX_TOKENS)
    assert numbers == list(range(601 - num_kept, 601))
    texts = stored(tmp_path)
    known = {request(number).tobytes() for number in range(600)}
    assert len({text.tobytes() for text in texts} & known) == num_kept
    assert_drafts_what_was_stored(tmp_path, texts, np.random.default_rng(0))


@pytest.mark.parametrize(
    "sizes",
    [
        [50_000, 100_000, 300_000],
        pytest.param(range(48_000, 540_000, 4096), marks=pytest.mark.faults),
    ],
    ids=["some", "every"],
)
def test_a_full_disk_is_told_once_and_loses_nothing_that_was_stored(tmp_path, monkeypatch, sizes):
    index_all_the_time(monkeypatch.setattr)
    for max_bytes in sizes:
        directory = tmp_path / str(max_bytes)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            history = open_history(directory)
            with limited("FSIZE", max_bytes):
                for number in range(100):
                    history.add(request(number, 1_000), [])
                history.close()
        (told,) = caught
        assert told.category is HistoryWarning
        assert str(told.message).startswith("the history cannot be ")
        assert num_held(history) >= 100 * 1_000  # what the disk does not hold, memory does
        texts = stored(directory)
        assert len(texts) < 100
        np.testing.assert_array_equal(texts, [request(it, 1_000) for it in range(len(texts))])
        with open_history(directory) as history:
            before = num_held(history)
            history.add(request(100, 1_000), [])
            assert num_held(history) >= before + 1_000 >= 1_000 * (len(texts) + 1)
        assert_drafts_what_was_stored(directory, stored(directory), np.random.default_rng(0))
        assert not [path for path in directory.iterdir() if path.suffix == ".unfinished"]


def num_held(history):
    return history.shared.num_recent_tokens + history.shared.num_indexed_tokens


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
