"""Documents that are added while others draft from them: what is stored, drafted, and removed."""

import os
import pathlib
import random
import shutil
import sqlite3
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress

import numpy as np
import pytest

from coordgen_rs import Bundle, History
from coordgen_rs.errors import (
    HistoryBusyError,
    HistoryError,
    HistoryIndexError,
    HistoryMismatchError,
    HistoryWarning,
    OptionError,
)
from coordgen_rs.store.files import locked
from coordgen_rs.store.history.corpus import Corpus, _Stop
from coordgen_rs.store.history.segments import MOST_TOKENS, Segments, to_merge
from coordgen_rs.store.history.store import HistoryStore
from coordgen_rs.store.history.texts import (
    NotTextError,
    file_text,
    files_of,
    given_text,
    name_of,
    texts_of,
)
from corpora import add_forever, knows, make_small, source, write_sources
from killed import kill_at_random, limited, names, small_disk


class StoppedError(Exception):
    pass


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return Bundle.open(bundle_of("embedded-draft", "fp32"))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    make_small(monkeypatch.setattr)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "answers"


def opened(directory, bundle, namespace="default"):
    return History.of(directory, bundle, namespace=namespace)


def segments(directory):
    return [path for path in directory.iterdir() if path.suffix == ".corpus"]


def execute(directory, statement, *values):
    with closing(sqlite3.connect(directory / "history.sqlite")) as connection, connection:
        connection.execute(statement, values)


def draft_from_all(directory, bundle, written):
    with opened(directory, bundle) as history:
        for text in written.values():
            knows(history, bundle, text)
        history.refresh()


def test_what_is_stored_is_drafted_from_while_more_is_added(directory, bundle, tmp_path):
    written, known = write_sources(tmp_path / "src", 9, lines=30), []
    first = next(iter(written.values()))
    with opened(directory, bundle) as history, Corpus(directory, bundle) as corpus:
        corpus.add(
            [tmp_path / "src"],
            on_progress=lambda added: known.append(knows(history, bundle, first)),
        )
    assert len(known) > 3
    assert known[-1]
    assert known.count(True) > 1


def test_one_namespace_never_drafts_from_the_documents_of_another(directory, bundle):
    with Corpus(directory, bundle, namespace="alice") as corpus:
        corpus.add_texts({"note": source(1)})
    with opened(directory, bundle, "bob") as bob, opened(directory, bundle, "alice") as alice:
        assert not knows(bob, bundle, source(1))
        assert knows(alice, bundle, source(1))
    with Corpus(directory, bundle, namespace="bob") as corpus:
        assert corpus.documents() == []
        assert corpus.remove(["note"]) == []


def test_documents_are_neither_evicted_nor_exported_nor_cleared_as_requests(directory, bundle):
    with Corpus(directory, bundle) as corpus:
        corpus.add_texts({"note": source(1)})
    with History.of(directory, bundle, max_tokens=50) as history:
        for number in range(5):
            history.add(range(20), range(number, 20 + number))
    store = HistoryStore(directory)
    assert store.num_tokens <= 50
    assert store.clear() > 0
    assert list(store.read()) == []
    store.close()
    with opened(directory, bundle) as history:
        assert knows(history, bundle, source(1))


def test_what_is_unchanged_is_left_and_what_changed_is_replaced(directory, bundle, tmp_path):
    written = write_sources(tmp_path / "src", 6)
    changed = next(iter(written))
    with opened(directory, bundle) as history, Corpus(directory, bundle) as corpus:
        assert not any(knows(history, bundle, text) for text in written.values())
        added = corpus.add([tmp_path / "src"])
        assert (added.num_added, added.num_unchanged) == (6, 0)
        assert all(knows(history, bundle, text) for text in written.values())
        assert [document.name for document in corpus.documents()] == sorted(written)
        before = set(segments(directory))
        again = corpus.add([tmp_path / "src"])
        assert (again.num_added, again.num_unchanged, again.num_tokens) == (0, 6, 0)
        assert set(segments(directory)) == before
        with pathlib.Path(changed).open("w") as stream:
            stream.write(source(77))
        again = corpus.add([tmp_path / "src"])
        assert (again.num_added, again.num_unchanged) == (1, 5)
        assert len(corpus.documents()) == 6
        assert knows(history, bundle, source(77))
        assert not knows(history, bundle, written[changed])
        del written[changed]
        assert all(knows(history, bundle, text) for text in written.values())


def test_what_was_removed_is_in_no_file_and_in_no_draft(directory, bundle, tmp_path):
    written = write_sources(tmp_path / "src", 8)
    with opened(directory, bundle) as history, Corpus(directory, bundle) as corpus:
        corpus.add([tmp_path / "src"])
        removed = corpus.remove([str(tmp_path / "src" / "odd")])
        assert removed == sorted(name for name in written if "/odd/" in name)
        for name, text in written.items():
            assert knows(history, bundle, text) == (name not in removed)
        num_tokens = sum(document.num_tokens for document in corpus.documents())
        assert history.shared.num_corpus_tokens < 1.1 * num_tokens
        assert corpus.remove([str(tmp_path / "src")]) == sorted(set(written) - set(removed))
    assert segments(directory) == []


def test_segments_stay_few_and_hold_every_document(directory, bundle):
    with opened(directory, bundle) as history, Corpus(directory, bundle) as corpus:
        for number in range(80):
            corpus.add_texts({str(number): source(number, lines=3)})
        assert len(segments(directory)) <= 9
        assert {path.stat().st_mode & 0o777 for path in segments(directory)} == {0o600}
        assert all(knows(history, bundle, source(number, lines=3)) for number in range(80))


def test_a_long_line_and_an_empty_file_are_documents(directory, bundle, tmp_path):
    (tmp_path / "line").write_text(source(1, lines=100).replace("\n", " ") + "Ä日" * 400)
    (tmp_path / "empty").touch()
    with Corpus(directory, bundle) as corpus:
        corpus.add([tmp_path / "line", tmp_path / "empty"])
        empty, line = corpus.documents()
        assert (empty.num_bytes, empty.num_tokens, empty.is_whole) == (0, 0, True)
        assert line.is_whole
        assert line.num_tokens > 800


def test_parts_join_to_the_text_and_end_with_lines_or_characters(tmp_path):
    text = source(3, lines=40) + "日本語" * 300 + "\n" + "x" * 700
    parts = list(given_text("x", text).parts())
    assert "".join(part for part, _ in parts) == text
    assert len(parts) > 8
    for number, (_, end) in enumerate(parts[:-1]):
        rest = "".join(part for part, _ in given_text("x", text).parts(end))
        assert rest == "".join(part for part, _ in parts[number + 1 :])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.write_bytes(b"MZ\0\1"), "zero byte"),
        (lambda path: path.write_bytes(b"caf\xe9 au lait"), "UTF-8"),
        (lambda path: path.write_bytes(b"abc\xc3"), "UTF-8"),
        (os.mkfifo, "not a regular file"),
    ],
)
def test_what_is_no_text_is_named_and_not_waited_for(tmp_path, make, why):
    make(tmp_path / "file")
    with pytest.raises(NotTextError, match=why):
        file_text(tmp_path / "file")


def test_directories_are_read_without_hidden_files_and_links(tmp_path):
    write_sources(tmp_path / "src", 2)
    (tmp_path / "src" / ".git").mkdir()
    (tmp_path / "src" / ".git" / "config").write_text("x")
    (tmp_path / "src" / ".hidden").write_text("x")
    (tmp_path / "src" / "loop").symlink_to(tmp_path / "src")
    (tmp_path / "src" / "link.txt").symlink_to(tmp_path / "src" / "even" / "0.txt")
    found = [path.name for path in files_of([tmp_path / "src"])]
    assert found == ["0.txt", "1.txt"]
    linked = tmp_path / "src" / "link.txt"
    assert list(files_of([linked])) == [linked]
    assert name_of(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")).endswith("/caf\\udce9")


@pytest.mark.parametrize("after", ["short", "\udcff" * 2_000, None])
def test_a_file_that_changes_while_it_is_read_is_told(tmp_path, after):
    path = tmp_path / "file"
    path.write_text(source(1, lines=50))
    text = file_text(path)
    path.unlink()
    if after is None:
        path.mkdir()
    else:
        path.write_bytes(os.fsencode(after))
    why = "it is a directory" if after is None else "changed while it was read"
    with pytest.raises(NotTextError, match=why):
        list(text.parts())


def test_what_cannot_be_added_is_named_and_the_rest_is_added(directory, bundle, tmp_path):
    written = write_sources(tmp_path / "src", 3)
    (tmp_path / "src" / "image").write_bytes(b"\x89PNG\0")
    with Corpus(directory, bundle) as corpus:
        added = corpus.add([tmp_path / "src", next(iter(written))])
        assert (added.num_added, added.num_unchanged) == (3, 1)
        [skipped] = added.skipped
        assert skipped.startswith(f"{tmp_path / 'src' / 'image'}: it is not text")
        with pytest.raises(OptionError, match="no such file"):
            corpus.add([tmp_path / "nowhere"])


def test_an_interrupted_document_goes_on_where_it_stopped(directory, bundle, tmp_path):
    path, seen = tmp_path / "long", []
    path.write_text(source(1, lines=200))

    def stop(added):
        seen.append(added.num_tokens)
        if len(seen) == 3:
            raise StoppedError

    with opened(directory, bundle) as history, Corpus(directory, bundle) as corpus:
        with pytest.raises(StoppedError):
            corpus.add([path], on_progress=stop)
        [partly] = corpus.documents()
        assert 0 < partly.read_bytes < partly.num_bytes
        rest = corpus.add([path])
        [whole] = corpus.documents()
        assert whole.is_whole
        assert partly.num_tokens < whole.num_tokens
        assert rest.num_tokens < whole.num_tokens
        tokens = corpus._encoded(source(1, lines=200))
        assert whole.num_tokens == pytest.approx(len(tokens), rel=0.05)
        assert knows(history, bundle, source(1, lines=200))


@pytest.mark.parametrize("where", [0, -1])
def test_a_damaged_segment_is_told_and_mended_by_adding_again(directory, bundle, tmp_path, where):
    written = write_sources(tmp_path / "src", 9)
    with Corpus(directory, bundle) as corpus:
        corpus.add([tmp_path / "src"])
        path = segments(directory)[0]
        content = bytearray(path.read_bytes())
        content[where] ^= 1
        path.write_bytes(content)
        with pytest.warns(HistoryWarning, match="add its documents again"):
            draft_from_all(directory, bundle, written)
        with pytest.warns(HistoryWarning, match="a damaged segment was removed"):
            added = corpus.add([tmp_path / "src"])
        assert added.num_added == len(added.lost) > 0
    with opened(directory, bundle) as history:
        assert all(knows(history, bundle, text) for text in written.values())


def test_a_missing_segment_leaves_the_others_drafting_and_is_looked_for_again(directory, bundle):
    with Corpus(directory, bundle) as corpus:
        corpus.add_texts({"one": source(1)})
        [gone] = segments(directory)
        corpus.add_texts({"two": source(2)})
    gone.rename(directory / "away")
    with pytest.warns(HistoryWarning, match="cannot be used: .*there is none"):
        history = opened(directory, bundle)
    with history:
        assert knows(history, bundle, source(2))
        (directory / "away").rename(gone)
        assert knows(history, bundle, source(1))


def test_one_at_a_time_changes_the_documents(directory, bundle):
    with Corpus(directory, bundle) as corpus:
        with locked(directory / "corpus") as is_held:
            assert is_held
            with pytest.raises(HistoryBusyError, match="others are adding"):
                corpus.add_texts({"one": source(1)})

        def add(number):
            with Corpus(directory, bundle) as other:
                other.add_texts({str(number): source(number)}, wait_s=60)

        with ThreadPoolExecutor(6) as threads:
            [*threads.map(add, range(6))]
        assert len(corpus.documents()) == 6


@pytest.mark.parametrize("num_kills", [2, pytest.param(60, marks=pytest.mark.faults)])
def test_what_a_killed_process_leaves_is_whole_and_goes_on(directory, bundle, tmp_path, num_kills):
    rng = random.Random(num_kills)
    written = write_sources(tmp_path / "src", 12, lines=30)
    is_added = False
    for _ in range(num_kills):
        told = kill_at_random(add_forever, directory, tmp_path / "src", bundle.path, rng=rng)
        is_added = is_added or told != []
        if not (directory / "history.sqlite").exists():
            continue
        with opened(directory, bundle) as history, Corpus(directory, bundle) as corpus:
            for document in corpus.documents():
                assert document.name in written
                if document.is_whole:
                    assert knows(history, bundle, written[document.name])
            if is_added:  # those that no round removes are there from the first one on
                whole = {one.name for one in corpus.documents() if one.is_whole}
                assert whole >= {name for name in written if "/even/" in name}
    with opened(directory, bundle) as history, Corpus(directory, bundle) as corpus:
        corpus.add([tmp_path / "src"])
        assert all(document.is_whole for document in corpus.documents())
        assert [document.name for document in corpus.documents()] == sorted(written)
        assert all(knows(history, bundle, text) for text in written.values())
        kept = [path.name for path in segments(directory)]
    assert not [name for name in names(directory) if name.endswith(".unfinished")]
    store = HistoryStore(directory)
    assert sorted(kept) == sorted(Segments(store, "default").files())
    store.close()


@pytest.mark.parametrize(
    "num_pages",
    [[20, 45, 70], pytest.param(range(16, 130), marks=pytest.mark.faults)],
    ids=["some", "every"],
)
def test_a_full_disk_is_an_error_and_loses_nothing(bundle, tmp_path, num_pages):
    written = write_sources(tmp_path / "src", 8, lines=30)
    results = set()
    for pages in num_pages:
        with small_disk(tmp_path / "disk", pages * 4096) as disk:
            message = None
            try:
                with Corpus(disk / "answers", bundle) as corpus:
                    corpus.add([tmp_path / "src"])
            except (HistoryError, HistoryIndexError) as error:
                message = str(error)
            results.add(message is None)
            assert message is None or "full" in message or "No space" in message, message
            try:
                store = HistoryStore(disk / "answers")
            except (HistoryError, sqlite3.Error, OSError):
                continue  # not even an empty history fits
            whole = [one for one in Segments(store, "default").documents() if one.is_whole]
            store.close()
            with opened(disk / "answers", bundle) as history:
                assert all(knows(history, bundle, written[one.name]) for one in whole)
            assert message is not None or len(whole) == 8
    assert False in results


def test_merging_leaves_few_segments_of_any_length_and_none_too_long():
    rng = np.random.default_rng(0)
    sizes, number = {}, 0
    for _ in range(400):
        sizes[str(number)] = int(rng.integers(1, 3_000_000))
        number += 1
        while chosen := to_merge(sizes):
            merged = sum(sizes.pop(name) for name in chosen)
            assert merged <= MOST_TOKENS
            sizes[f"m{number}"] = merged
            number += 1
    total = sum(sizes.values())
    assert len(sizes) <= 10 + 2 * total / MOST_TOKENS


@pytest.fixture(scope="module")
def three(tmp_path_factory, bundle):
    """A history with three documents."""
    path = tmp_path_factory.mktemp("three")
    with Corpus(path, bundle) as corpus:
        corpus.add_texts({str(number): source(number) for number in range(3)})
    return path


COLUMNS = {
    "documents": ("name", "sha256", "num_bytes", "read_bytes", "added_at"),
    "segments": ("file", "num_tokens"),
    "pieces": ("start", "num_tokens", "segment"),
}


@pytest.mark.parametrize(
    ("table", "column"), [(table, name) for table, names in COLUMNS.items() for name in names]
)
@pytest.mark.parametrize("value", [b"\xff", -1, "a word"])
def test_damaged_tables_are_an_error_by_name_or_do_no_harm(
    directory, bundle, three, table, column, value
):
    shutil.copytree(three, directory)
    execute(directory, f"UPDATE {table} SET {column} = ? WHERE rowid = 1", value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HistoryWarning)
        with opened(directory, bundle) as history:
            knows(history, bundle, source(1))
            history.add(range(10), range(10))
            assert history.shared.num_recent_tokens >= 20
        with Corpus(directory, bundle) as corpus:
            for change, is_known in (
                (lambda: corpus.add_texts({"new": source(9), "0": source(8)}), True),
                (lambda: corpus.remove(["1", "new"]), False),
            ):
                try:
                    change()
                except (HistoryError, HistoryIndexError) as error:
                    assert str(error)  # noqa: PT017 (either it fails by name, or it is done)
                    continue
                with opened(directory, bundle) as history:
                    assert knows(history, bundle, source(9)) == is_known


def test_a_segment_that_cannot_be_read_now_loses_nothing(directory, bundle):
    with Corpus(directory, bundle) as corpus:
        corpus.add_texts({"one": source(1)})
        [path] = segments(directory)
        content = path.read_bytes()
        path.write_bytes(content[:8] + b"\x02" + content[9:])
        for change in (lambda: corpus.add_texts({"two": source(2)}), lambda: corpus.remove(["x"])):
            with pytest.raises(HistoryIndexError, match=f"{path.name}.*another version"):
                change()
        path.unlink()
        path.mkdir()
        with pytest.raises(HistoryIndexError, match="cannot be read"):
            corpus.remove(["one"])
        path.rmdir()
        path.write_bytes(content)
        assert [one.name for one in corpus.documents()] == ["one"]
    with opened(directory, bundle) as history:
        assert knows(history, bundle, source(1))


def test_too_many_open_files_lose_no_document(directory, bundle):
    with Corpus(directory, bundle) as corpus:
        corpus.add_texts({"one": source(1)})
        corpus.documents()
        with limited("NOFILE", 1024), ExitStack() as files:
            with suppress(OSError):
                while True:
                    files.enter_context(open(os.devnull))  # noqa: PTH123
            with pytest.raises((HistoryIndexError, HistoryError, OSError)):
                corpus._segments.remove_damage()
        assert [one.name for one in corpus.documents()] == ["one"]
        assert len(segments(directory)) == 1


def test_what_is_lost_to_damage_is_told_by_remove(directory, bundle):
    with Corpus(directory, bundle) as corpus:
        corpus.add_texts({"a/one": source(1), "b/two": source(2)})
        for path in segments(directory):
            path.unlink()
        with pytest.warns(HistoryWarning, match="'a/one', 'b/two'"):
            assert corpus.remove(["a"]) == ["a/one"]
        assert corpus.lost == ["a/one", "b/two"]


@pytest.mark.parametrize("names", ["/a/b.txt", b"x", [""], [1], pathlib.Path("x")])
def test_names_that_are_none_are_refused(directory, bundle, names):
    with Corpus(directory, bundle) as corpus:
        corpus.add_texts({"/a/b.txt": source(1), "//c": source(2)})
        with pytest.raises(OptionError):
            corpus.remove(names)
        assert corpus.remove(["/", "//"]) == []
        assert corpus.remove([pathlib.Path("/a")]) == ["/a/b.txt"]
        with pytest.raises(OptionError):
            corpus.add_texts([("x", "y")])
        with pytest.raises(OptionError, match="zero byte"):
            corpus.add_texts({"x": "a\0b"})
        with pytest.raises(OptionError):
            corpus.add("/tmp")


def test_remove_erases_what_an_interrupted_add_replaced(directory, bundle):
    with Corpus(directory, bundle) as corpus:
        corpus.add_texts({"one": source(1), "two": source(2)})
        corpus._segments.forget(["one"])
        corpus.remove(["two"])
        assert segments(directory) == []


def test_a_text_that_fails_half_way_is_forgotten(directory, bundle, tmp_path):
    path = tmp_path / "file"
    path.write_text(source(5))
    with opened(directory, bundle) as history, Corpus(directory, bundle) as corpus:
        corpus.add([path])
        path.write_text(source(6, lines=200))
        cut = lambda added: path.write_text(source(6, lines=100))  # noqa: E731
        added = corpus.add([path], on_progress=cut)
        assert "any earlier version, was removed" in added.skipped[0]
        assert (added.num_added, added.num_tokens) == (0, 0)
        assert corpus.documents() == []
        assert not knows(history, bundle, source(6, lines=10))


def test_damaged_tables_of_documents_leave_requests_readable(directory, bundle):
    with Corpus(directory, bundle) as corpus:
        corpus.add_texts({"one": source(1)})
    with opened(directory, bundle) as history, opened(directory, bundle) as other:
        execute(directory, "UPDATE segments SET file = ?", b"\xff")
        with pytest.warns(HistoryWarning, match="they cannot be read"):
            history.add(range(10), range(10))
        with pytest.warns(HistoryWarning, match="they cannot be read"):
            other.refresh()
        assert other.shared.num_recent_tokens == history.shared.num_recent_tokens > 0


def test_without_the_bundle_of_a_history_documents_are_removed_but_none_added(
    directory, bundle, tmp_path
):
    with Corpus(directory, bundle) as corpus:
        corpus.add_texts({"one": source(1)})
    with Corpus(directory, None) as corpus:
        with pytest.raises(OptionError, match="bundle"):
            corpus.add_texts({"two": source(2)})
        assert corpus.remove(["one"]) == ["one"]
    with pytest.raises(HistoryError):
        Corpus(tmp_path / "nowhere", None)
    assert not (tmp_path / "nowhere").exists()
    History(tmp_path / "other", fingerprint="another", vocab_size=50).close()
    with pytest.raises(HistoryMismatchError):
        Corpus(tmp_path / "other", bundle)
    with pytest.raises(OptionError):
        Corpus(directory, bundle, namespace="")


def test_whoever_gives_up_waiting_stops_a_change(directory, bundle, tmp_path):
    def stop():
        raise StoppedError

    stopped, written = _Stop(), write_sources(tmp_path / "src", 2)
    stopped.set()
    with (
        Corpus(directory, bundle) as corpus,
        locked(directory / "corpus"),
        pytest.raises(HistoryError, match="stopped"),
    ):
        corpus._changed(pytest.fail, 600, stopped)
    with pytest.raises(StoppedError):
        next(texts_of(map(pathlib.Path, written), stop))
