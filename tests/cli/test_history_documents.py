"""`coordgen history add`, `remove` and `ls --documents`, as a user types them."""

import json

import pytest

from coordgen_rs import History
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.cli.commands import history_documents
from coordgen_rs.store.files import locked
from corpora import knows, source, write_sources


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded-draft", "fp32")


@pytest.fixture
def add(coordgen, tmp_path, bundle):
    """A function that adds paths to the history `answers`."""

    def added(*paths, **options):
        command = ("history", "add", tmp_path / "answers", *paths, "--tokenizer", bundle)
        return coordgen(*command, **options)

    return added


def test_added_documents_are_told_listed_and_drafted_from(add, coordgen, tmp_path, bundle):
    written = write_sources(tmp_path / "src", 3)
    assert "3 documents added" in add(tmp_path / "src").err
    assert "0 documents added (0 tokens), 3 unchanged" in add(tmp_path / "src").err
    lines = coordgen("history", "ls", tmp_path / "answers", "--documents").out.splitlines()
    assert [line.split(": ")[1] for line in lines] == sorted(written)
    listed = coordgen("history", "ls", tmp_path / "answers", "--documents", "--json").out
    assert [one["name"] for one in json.loads(listed)] == sorted(written)
    with History.of(tmp_path / "answers", Bundle.open(bundle)) as history:
        assert all(knows(history, Bundle.open(bundle), text) for text in written.values())


def test_documents_are_listed_by_namespace_and_apart_from_requests(add, coordgen, tmp_path):
    write_sources(tmp_path / "src", 1)
    add(tmp_path / "src", "--namespace", "mail/alice")
    answers = tmp_path / "answers"
    assert coordgen("history", "ls", answers).out == ""
    assert coordgen("history", "ls", answers, "--documents").out.startswith("mail/alice: ")
    assert coordgen("history", "ls", answers, "--documents", "--namespace", "other").out == ""
    assert coordgen("history", "export", answers).out.count("\n") == 1
    told = coordgen("history", "clear", answers).err
    assert "0 requests cleared" in told
    assert "1 document stay: `coordgen history remove` erases them" in told


def test_what_is_skipped_is_named_and_counted(add, tmp_path, monkeypatch):
    write_sources(tmp_path / "src", 2)
    for number in range(4):
        (tmp_path / "src" / f"{number}.bin").write_bytes(b"\0")
    monkeypatch.setattr(history_documents, "_MOST_NAMED", 3)
    told = add(tmp_path / "src").err
    assert told.count("it is not text: it holds a zero byte; skipped") == 3
    assert "1 more files were skipped" in told
    assert "4 skipped" in told
    figures = json.loads(add(tmp_path / "src", "--json").out)
    assert (figures["num_documents"], figures["num_unchanged"]) == (2, 2)
    assert len(figures["skipped"]) == 4


def test_files_and_directories_are_removed_by_the_names_they_were_added_by(
    add, coordgen, tmp_path, bundle, monkeypatch
):
    write_sources(tmp_path / "src", 4)
    monkeypatch.chdir(tmp_path)
    add("src")
    remove = ("history", "remove", "answers", "--tokenizer", bundle)
    assert "2 documents removed" in coordgen(*remove[:3], "src/odd", *remove[3:]).err
    first = tmp_path / "src" / "even" / "0.txt"
    assert "1 document removed" in coordgen(*remove[:3], first, *remove[3:]).err
    told = coordgen(*remove[:3], first, *remove[3:], code=1).err
    assert "0 documents removed" in told
    assert f"there is no document {first} in the namespace 'default'" in told


def test_names_that_match_nothing_are_told_and_make_no_history(add, coordgen, tmp_path):
    write_sources(tmp_path / "src", 2)
    add(tmp_path / "src")
    answers = tmp_path / "answers"
    assert "is empty" in coordgen("history", "remove", answers, "", code=2).err
    assert "2 documents: `ls --documents`" in coordgen("history", "ls", answers).err
    told = coordgen("history", "remove", answers, tmp_path / "src", "other", code=1).err
    assert "2 documents removed" in told
    assert "there is no document other" in told
    assert "holds no history" in coordgen("history", "remove", tmp_path / "no", "x", code=2).err
    assert not (tmp_path / "no").exists()


def test_what_cannot_be_added_is_refused_by_name(add, tmp_path, bundle):
    assert "no such file" in add(tmp_path / "nowhere", code=2).err
    assert not (tmp_path / "answers").exists()
    (tmp_path / "file").write_text(source(1))
    with History(tmp_path / "answers", fingerprint="another", vocab_size=50):
        pass
    assert "another tokenizer" in add(tmp_path / "file", code=2).err


def test_a_second_process_that_adds_is_told_so(add, tmp_path, monkeypatch):
    (tmp_path / "file").write_text(source(1))
    add(tmp_path / "file")
    monkeypatch.setattr(history_documents, "_WAIT_S", 0.0)
    with locked(tmp_path / "answers" / "corpus"):
        assert "others are adding or removing" in add(tmp_path / "file", code=2).err
