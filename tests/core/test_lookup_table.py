"""The look-up table through the binding: what it learns, what a file may be, how it drafts."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

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


def drafter_over(table, rows, vocab_size, **options):
    inputs = StepInputs(
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int64),
        np.zeros((1, 1, rows, 200), np.float32),
    )
    sources = ["lookup-table"]
    return Drafter([inputs], vocab_size, sources=sources, lookup_table=table, **options)


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
