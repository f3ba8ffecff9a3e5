"""What version 0.2.0 kept on disk (`recorded/`) opens, and is written, as then."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from coordgen_rs import History
from coordgen_rs.cli.commands.chat import dialogue_file
from coordgen_rs.lab.fleet.tables import count_tokens, read_table
from coordgen_rs.lab.replay.cells import TableFile
from coordgen_rs.store.history.corpus import Corpus
from coordgen_rs.store.history.fleet import read_list
from coordgen_rs.store.history.store import DATABASE_NAME, HistoryStore
from coordgen_rs.store.prefixes.directory import summaries
from coordgen_rs.store.prefixes.store import PrefixStore
from drafts import drafted_after
from histories import VOCAB_SIZE, request
from stored_prefixes import TARGET, ReadSession, found

OF = {"fingerprint": "a tokenizer", "vocab_size": VOCAB_SIZE}


class Words:
    """Has the tokens of a request as characters."""

    def encode(self, text, special_tokens=False):
        return np.frombuffer(text.encode(), np.uint8).astype(np.uint32) % VOCAB_SIZE


def document(number):
    return "".join(chr(32 + int(token)) for token in request(number))


@pytest.fixture
def recorded(tmp_path):
    """A copy, of its owner alone as the files were."""
    path = Path(shutil.copytree(Path(__file__).parent / "recorded", tmp_path / "recorded"))
    for entry in [path, *path.rglob("*")]:
        entry.chmod(0o700 if entry.is_dir() else 0o600)
    return path


def known(history):
    """Which requests are drafted from, of all that were stored anywhere."""
    texts = {number: request(number) for number in (*range(8), *range(30, 34))}
    texts |= {f"text {number}": Words().encode(document(20 + number)) for number in range(3)}
    return [
        name
        for name, text in texts.items()
        if drafted_after(history, text[:30], 8) == text[30:38].tolist()
    ]


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [("mail", [*range(6), "text 0", "text 2"]), ("notes", [6, 7]), ("others", [])],
)
def test_a_history_is_drafted_from(recorded, recwarn, namespace, expected):
    with History(recorded / "history", namespace=namespace, **OF) as history:
        assert known(history) == expected
        assert history.shared.num_indexed_tokens == (366 if namespace == "mail" else 0)
    with History(
        namespace=namespace, fleet=recorded / "fleet", fleet_namespace="mail", **OF
    ) as history:
        assert known(history) == [30, 31, 32, 33]
    assert not recwarn


def test_a_history_has_the_rows_and_takes_more(recorded, tmp_path):
    with closing(HistoryStore(recorded / "history", **OF)) as store:
        rows = [(it.namespace, it.prompt_len, it.number) for it in store.read()]
        assert rows == [("mail", 20, it) for it in range(1, 7)] + [
            ("notes", 20, 7),
            ("notes", 20, 8),
        ]
        assert (store.max_tokens, store.num_tokens) == (9_000, 480)
    with Corpus(recorded / "history", None, namespace="mail", tokenizer=Words()) as corpus:
        there = [(it.name, it.num_tokens, it.is_whole) for it in corpus.documents()]
        assert there == [("text 0", 60, True), ("text 2", 60, True)]
        assert corpus.add_texts({"text 0": document(20), "text 1": document(21)}).num_unchanged == 1
        assert corpus.remove(["text 2"]) == ["text 2"]
    with History(recorded / "history", namespace="mail", **OF) as history:
        history.add(request(6)[:20], request(6)[20:])
        assert known(history) == [*range(7), "text 0", "text 1"]
    fresh = tmp_path / "fresh"
    with History(fresh, **OF), Corpus(fresh, None, tokenizer=Words()) as corpus:
        corpus.add_texts({"a": "b"})
    assert schema(fresh) == schema(recorded / "history")


def schema(directory):
    with closing(sqlite3.connect(directory / DATABASE_NAME)) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        return version, sorted(
            map(str, database.execute("SELECT type, name, sql FROM sqlite_master"))
        )


def test_a_build_of_a_fleet_is_merged(recorded):
    (entry,) = read_list(recorded / "fleet").namespaces
    table = read_table(recorded / "fleet", entry)
    assert (len(table), count_tokens(table)) == (4, entry.num_tokens) == (4, 244)
    assert table["finished_at"].tolist() == [1_700_000_000 + it for it in range(30, 34)]


def test_prefixes_are_found_and_written_with_the_same_bytes(recorded, tmp_path):
    store, again = (
        PrefixStore(path, TARGET) for path in (recorded / "prefixes", tmp_path / "again")
    )
    assert found(store, np.arange(71), "a", turns=()) == 70
    assert found(store, np.arange(34), "b") == 32
    there = {it.namespace: (it.bundle, it.num_tokens) for it in summaries(store.path)}
    assert there == {"a": ("bundle", 64), "b": ("bundle", 32)}
    again.save(ReadSession(np.arange(70), (40, 70)), "a", 0, ends=True)
    again.save(ReadSession(np.arange(33)), "b", 0, ends=True)
    for each in (store, again):
        each.close()
        assert each.counts.damaged == each.counts.failures == 0
    assert contents(again.path) == contents(store.path)


def contents(path):
    return {str(it.relative_to(path)): it.read_bytes() for it in path.rglob("*") if it.is_file()}


def test_a_dialogue_and_the_cells_of_an_evaluation_are_read(recorded):
    said = [(it["role"], it["content"]) for it in dialogue_file.load(recorded / "chat.json")]
    assert said == [("system", "be kind"), ("user", "hi"), ("assistant", "hello")]
    assert TableFile(recorded / "cells.json").cells == {"a", "b"}
