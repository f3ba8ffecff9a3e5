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
    TokenOutOfRangeError,
)
from core_subjects import step_inputs

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
    (tmp_path / "cut").write_bytes(path.read_bytes()[:-4])
    os.mkfifo(tmp_path / "pipe")
    for file, vocab_size, key, error, message in (
        (path, VOCAB_SIZE, bytes(32), LookupTableError, "another tokenizer"),
        (path, VOCAB_SIZE + 1, KEY, LookupTableError, "another tokenizer"),
        (path, VOCAB_SIZE, b"abc", OptionError, "key has 3 bytes"),
        (tmp_path / "cut", VOCAB_SIZE, KEY, LookupTableError, "damaged"),
        (tmp_path / "none", VOCAB_SIZE, KEY, LookupTableError, "No such file"),
        (tmp_path / "pipe", VOCAB_SIZE, KEY, LookupTableError, "not a regular file"),
        (tmp_path, VOCAB_SIZE, KEY, LookupTableError, "not a regular file"),
        (Path("/dev/null"), VOCAB_SIZE, KEY, LookupTableError, "not a regular file"),
    ):
        with pytest.raises(error, match=message):
            LookupTable.open(file, vocab_size, key)


def drafter_over(table, rows, vocab_size, **options):
    options |= {"sources": ["lookup-table"], "lookup_table": table}
    return Drafter([step_inputs(rows, 200)], vocab_size, **options)


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
