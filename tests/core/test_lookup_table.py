"""The look-up table through the binding: what it learns, what a file may be, how it drafts."""

import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgen_rs._core import (
    Drafter,
    DynamicTree,
    LookupTable,
    LookupTableError,
    NonFiniteLogitsError,
    OptionError,
    ShapeError,
    StepInputs,
    TokenOutOfRangeError,
)

KEY = bytes(range(32))
VOCAB_SIZE = 40


def logits_of(rng, rows, vocab_size=VOCAB_SIZE):
    return rng.standard_normal((rows, vocab_size), np.float32)


def softmax(row):
    terms = np.exp(row - row.max(), dtype=np.float64)
    return terms / terms.sum()


class Twin:
    """The table on dictionaries, its rows found by numpy."""

    def __init__(self, k, keep):
        self.k, self.keep, self.rows = k, keep, {}

    def learn(self, contexts, logits):
        for context, row in zip(contexts.tolist(), logits, strict=True):
            known = self.rows.setdefault(context, {})
            for token in known:
                known[token] *= self.keep
            self.rows[context] = known = {t: p for t, p in known.items() if p > 0}
            probabilities = softmax(row)
            for token in np.argsort(-row, kind="stable")[:8].tolist():
                known[token] = probabilities[token]
                if len(known) > self.k:
                    del known[min(known, key=known.get)]


@given(st.integers(0, 1000), st.integers(1, 8), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=50, deadline=None)
def test_a_table_equals_its_twin(seed, k, keep):
    rng = np.random.default_rng(seed)
    table, twin = LookupTable(k, keep), Twin(k, keep)
    for _ in range(4):
        contexts, logits = rng.integers(0, 5, 6).astype(np.uint32), logits_of(rng, 6)
        table.learn(contexts, logits)
        twin.learn(contexts, logits)
    assert table.num_rows == len(twin.rows)
    for context, row in twin.rows.items():
        token_ids, probabilities = table.row(context)
        assert token_ids.tolist() == sorted(row, key=row.get, reverse=True)
        np.testing.assert_allclose(probabilities, sorted(row.values(), reverse=True), rtol=1e-3)
    assert len(table.row(VOCAB_SIZE - 1)[0]) == 0


def test_refused_rows_are_named():
    table, logits = LookupTable(), np.zeros((2, VOCAB_SIZE), np.float32)
    with pytest.raises(TokenOutOfRangeError, match="40"):
        table.learn(np.array([1, VOCAB_SIZE], np.uint32), logits)
    with pytest.raises(ShapeError, match="column"):
        table.learn(np.zeros(0, np.uint32), np.zeros((0, 0), np.float32))
    with pytest.raises(ShapeError, match="3 contexts for 2 rows"):
        table.learn(np.zeros(3, np.uint32), logits)
    logits[1] = np.nan
    with pytest.raises(NonFiniteLogitsError, match="row 1"):
        table.learn(np.zeros(2, np.uint32), logits)
    with pytest.raises(OptionError, match="entries"):
        LookupTable(9)
    with pytest.raises(OptionError, match="keep"):
        LookupTable(8, -0.1)


def saved(tmp_path):
    table, path = LookupTable(), tmp_path / "table"
    rng = np.random.default_rng(0)
    table.learn(np.arange(9, dtype=np.uint32), logits_of(rng, 9))
    table.save(path, VOCAB_SIZE, KEY)
    return table, path


def test_a_saved_table_is_read_again(tmp_path):
    table, path = saved(tmp_path)
    read = LookupTable.open(path, VOCAB_SIZE, KEY)
    assert read.num_rows == 9
    for context in range(VOCAB_SIZE):
        for one, other in zip(read.row(context), table.row(context), strict=True):
            np.testing.assert_array_equal(one, other)
    assert [entry.name for entry in tmp_path.iterdir()] == ["table"]


def test_damaged_and_foreign_tables_are_refused_by_name(tmp_path):
    _, path = saved(tmp_path)
    with pytest.raises(LookupTableError, match="another tokenizer"):
        LookupTable.open(path, VOCAB_SIZE, bytes(32))
    with pytest.raises(LookupTableError, match="another tokenizer"):
        LookupTable.open(path, VOCAB_SIZE + 1, KEY)
    with pytest.raises(OptionError, match="key has 3 bytes"):
        LookupTable.open(path, VOCAB_SIZE, b"abc")
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(LookupTableError):
            LookupTable.open(path, VOCAB_SIZE, KEY)
    path.write_bytes(whole[:-4])
    with pytest.raises(LookupTableError, match="damaged"):
        LookupTable.open(path, VOCAB_SIZE, KEY)
    path.unlink()
    with pytest.raises(LookupTableError, match="No such file"):
        LookupTable.open(path, VOCAB_SIZE, KEY)


def test_a_pipe_or_device_is_refused_and_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (Path("/dev/null"), tmp_path, pipe):
        with pytest.raises(LookupTableError, match="not a regular file"):
            LookupTable.open(path, VOCAB_SIZE, KEY)


def test_a_table_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(LookupTableError, match="cannot be written"):
        LookupTable().save(tmp_path / "absent" / "table", VOCAB_SIZE, KEY)


def drafter_over(table, rows, vocab_size, **options):
    inputs = StepInputs(
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int64),
        np.zeros((1, 1, rows, 200), np.float32),
    )
    sources = ["lookup-table"]
    return Drafter([inputs], vocab_size, sources=sources, lookup_table=table, **options)


@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 100_000])  # in place, and on a thread
@pytest.mark.parametrize("tree", ["best-first", "static", DynamicTree(), DynamicTree(20)])
def test_all_rows_of_a_tree_are_learned_before_the_next(vocab_size, tree):
    rng, table, twin = np.random.default_rng(1), LookupTable(), LookupTable()
    drafter = drafter_over(table, 6, vocab_size, tree=tree)
    drafter.begin(np.array([3, 1], np.uint32), 40)
    first = logits_of(rng, 1, vocab_size)
    drafter.prefilled(first)
    twin.learn(np.array([3], np.uint32), first)
    for step in range(5):
        drafter.propose(1 + step)
        token_ids, _ = drafter.draft
        logits = logits_of(rng, 6, vocab_size)
        drafter.accept(logits)
        twin.learn(token_ids, logits[: len(token_ids)])
        if drafter.finish_reason is not None:
            break
    drafter.begin(np.array([3], np.uint32), 1)  # waits for what is still learned
    for context in range(100):
        for one, other in zip(table.row(context), twin.row(context), strict=True):
            np.testing.assert_array_equal(one, other)


def test_drafters_of_several_threads_may_share_a_table():
    table, errors = LookupTable(), []

    def work(seed):
        try:
            rng, drafter = np.random.default_rng(seed), drafter_over(table, 8, VOCAB_SIZE)
            for _ in range(20):
                drafter.begin(np.array([seed], np.uint32), 30)
                while drafter.finish_reason is None:
                    drafter.propose(0)
                    drafter.accept(logits_of(rng, 8))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert 0 < table.num_rows <= VOCAB_SIZE


def test_unusable_trees_are_refused():
    for wrong in ({"depth_decay": 2.0}, {"threshold": -1.0}, {"update_interval": 0}):
        with pytest.raises(OptionError):
            DynamicTree(**wrong)
    with pytest.raises(OptionError, match="tree"):
        drafter_over(LookupTable(), 4, VOCAB_SIZE, tree="round")


def test_nothing_holds_the_logits_once_accept_has_returned():
    vocab_size = 100_000  # long enough to be read on several threads
    table, logits = LookupTable(), logits_of(np.random.default_rng(0), 16, vocab_size)
    table.learn(np.append(3, logits.argmax(1)[1:]).astype(np.uint32), logits)
    drafter = drafter_over(table, 16, vocab_size)
    before = sys.getrefcount(logits)
    drafter.begin(np.array([3], np.uint32), 9)
    drafter.propose(0)
    assert len(drafter.draft[0]) > 8
    drafter.accept(logits)
    assert sys.getrefcount(logits) == before
