"""Indexes of a fleet: the same bytes from any files, and what devices do with them."""

import gzip
import json
import shutil
import time

import numpy as np
import pytest

from coordgen_rs import History
from coordgen_rs._core import HostDrafter
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.cli.main import main
from coordgen_rs.errors import (
    HistoryError,
    HistoryMismatchError,
    HistoryWarning,
    LeftoverWarning,
    OptionError,
)
from coordgen_rs.lab.fleet.build import build, find_sources
from coordgen_rs.lab.fleet.records import FieldNames
from coordgen_rs.store.history.fleet import index_path, read_list
from coordgen_rs.store.history.requests import fingerprint_of
from coordgen_rs.text.tokenizer import Tokenizer
from drafts import drafted_after
from fleet_records import records, write_jsonl


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return Bundle.open(bundle_of("embedded-draft", "fp32"))


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def opened(fleet, bundle):
    return History.of(None, bundle, namespace="mail", fleet=fleet, keep=False)


def build_of(directory, found, bundle):
    """A build of these records."""
    build(directory, [write_jsonl(directory.with_suffix(".jsonl"), found)], bundle)
    return directory


def knows(history, token_ids):
    text = np.asarray(token_ids, np.uint32)
    return drafted_after(history, text[:20], 8) == text[20:28].tolist()


def test_the_same_requests_give_the_same_bytes_from_any_files(tmp_path, bundle):
    found = records(60)
    one = write_jsonl(tmp_path / "all.jsonl", found)
    first = tmp_path / "first.jsonl.gz"
    first.write_bytes(gzip.compress(write_jsonl(tmp_path / "part", found[:25]).read_bytes()))
    second = write_jsonl(tmp_path / "second.ndjson", found[:19:-1])  # five of them again
    build(tmp_path / "one", [one], bundle)
    result = build(tmp_path / "two", [second, first], bundle)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert (result.num_read, result.num_requests) == (65, 60)


@pytest.mark.parametrize("max_tokens", [350, 10_000])
def test_builds_merge_to_the_build_of_all_their_requests(tmp_path, bundle, max_tokens):
    found = records(80)
    files = [write_jsonl(tmp_path / f"{at}.jsonl", found[at : at + 50]) for at in (0, 15, 30)]
    build(tmp_path / "whole", files, bundle, max_tokens=max_tokens)
    parts = []
    for file in files:
        parts.append(tmp_path / file.stem)
        build(parts[-1], [file], bundle, max_tokens=max_tokens)
    build(tmp_path / "merged", parts, bundle, max_tokens=max_tokens)
    build(parts[0], [parts[0], *files[1:]], bundle, max_tokens=max_tokens)  # one that grows
    assert contents(tmp_path / "merged") == contents(tmp_path / "whole") == contents(parts[0])
    entries = read_list(tmp_path / "whole").namespaces
    assert all(entry.num_tokens <= max_tokens for entry in entries)


def test_the_oldest_requests_are_left_out_beyond_the_limit(tmp_path, bundle):
    found = [record | {"namespace": "mail"} for record in records(20)]
    source = write_jsonl(tmp_path / "all.jsonl", found[::-1])
    build(tmp_path / "fleet", [source], bundle, max_tokens=5 * 41)
    with opened(tmp_path / "fleet", bundle) as history:
        known = [knows(history, record["token_ids"]) for record in found]
    assert known == [False] * 15 + [True] * 5


def test_text_is_read_as_the_devices_read_it(tmp_path, bundle):
    text = "Tom and Lily went to the park.", " They played with a big red ball all day long."
    record = {"input": text[0], "output": text[1], "time": "2026-11-22T10:00:00Z"}
    source = write_jsonl(tmp_path / "text.jsonl", [record])
    names = FieldNames.parse(["prompt=input", "answer=output", "finished_at=time"])
    build(tmp_path / "text", [source], bundle, names=names)
    tokenizer = Tokenizer.of(bundle)
    token_ids = [*tokenizer.encode(text[0]), *tokenizer.encode(text[1], special_tokens=False)]
    record = {"token_ids": [int(token) for token in token_ids], "finished_at": 1795341600}
    build(tmp_path / "ids", [write_jsonl(tmp_path / "ids.jsonl", [record])], bundle)
    assert contents(tmp_path / "text") == contents(tmp_path / "ids")


def test_an_exported_history_is_a_source_for_its_own_tokenizer(tmp_path, bundle, capsys):
    with History.of(tmp_path / "own", bundle, namespace="mail") as own:
        own.add(range(20), range(20, 40))
    assert main(["history", "export", str(tmp_path / "own")]) == 0
    exported = tmp_path / "own.jsonl"
    exported.write_text(capsys.readouterr().out)
    build(tmp_path / "fleet", [exported], bundle)
    with opened(tmp_path / "fleet", bundle) as history:
        assert knows(history, range(40))
    exported.write_text(exported.read_text().replace(fingerprint_of(bundle), "another"))
    with pytest.raises(HistoryMismatchError, match=r"own\.jsonl:1: .*another tokenizer"):
        build(tmp_path / "fleet", [exported], bundle)


BAD = [
    ("{", "is not valid JSON"),
    ("[1]", "not an object"),
    ("{}", "neither token_ids nor answer"),
    ('{"answer": 3}', "answer is not text"),
    ('{"token_ids": []}', "no tokens"),
    ('{"token_ids": [1, 99999]}', "outside the vocabulary"),
    ('{"token_ids": [1, -1]}', "outside the vocabulary"),
    ('{"token_ids": ["a"]}', "not integers"),
    ('{"token_ids": [[1], 2]}', "not integers"),
    ('{"token_ids": [1], "namespace": 3}', "namespace is 3"),
    ('{"token_ids": [1], "finished_at": -1}', "not seconds since 1970"),
    ('{"token_ids": [1], "finished_at": "noon"}', "not a date"),
]


def test_bad_records_are_counted_and_named_or_end_a_strict_build(tmp_path, bundle):
    good = json.dumps(records(1)[0])
    source = tmp_path / "mixed.jsonl"
    source.write_text("\n".join([good, *(line for line, _ in BAD), "", good]))
    result = build(tmp_path / "fleet", [source], bundle)
    assert (result.num_bad, result.num_requests) == (len(BAD), 1)
    for number, (named, (_, why)) in enumerate(zip(result.bad, BAD, strict=True), 2):
        assert named.startswith(f"{source}:{number}: ")
        assert why in named
    before = contents(tmp_path / "fleet")
    with pytest.raises(HistoryError, match=r"mixed\.jsonl:2: is not valid JSON"):
        build(tmp_path / "fleet", [source], bundle, is_strict=True)
    assert contents(tmp_path / "fleet") == before


def test_a_cut_compressed_file_is_named_and_what_stands_before_the_cut_is_used(tmp_path, bundle):
    whole = gzip.compress(write_jsonl(tmp_path / "all", records(400)).read_bytes())
    source = tmp_path / "cut.jsonl.gz"
    source.write_bytes(whole[: len(whole) // 2])
    result = build(tmp_path / "fleet", [source], bundle)
    assert result.num_bad == 1
    assert "damaged from here on" in result.bad[0]
    assert 0 < result.num_requests < 400


def test_what_cannot_be_built_says_why(tmp_path, bundle):
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("a")
    (tmp_path / "empty.jsonl").write_text("\n")
    for pattern, error, message in (
        ("nothing*", OptionError, "no such file"),
        ("notes.txt", OptionError, "no known kind"),
        ("folder", OptionError, "holds no built history"),
        ("empty.jsonl", HistoryError, "no finished request"),
    ):
        with pytest.raises(error, match=message):
            build(tmp_path / "fleet", find_sources([str(tmp_path / pattern)]), bundle)
        assert not (tmp_path / "fleet").exists()
    with History.of(tmp_path / "own", bundle), pytest.raises(HistoryError, match="own history"):
        build(tmp_path / "own", [write_jsonl(tmp_path / "a.jsonl", records(1))], bundle)


def test_a_relative_path_stays_where_it_was_when_the_process_goes_elsewhere(
    tmp_path, bundle, monkeypatch
):
    first, second = records(3), records(3, seed=1)
    build(tmp_path / "fleet", [write_jsonl(tmp_path / "a.jsonl", first)], bundle)
    monkeypatch.chdir(tmp_path)
    with opened("fleet", bundle) as history:
        monkeypatch.chdir("/")
        build(tmp_path / "fleet", [write_jsonl(tmp_path / "b.jsonl", second)], bundle)
        history.refresh()
        known = [knows(history, them[0]["token_ids"]) for them in (first, second)]
    assert known == [False, True]


def test_an_index_of_another_build_is_not_merged(tmp_path, bundle):
    build_of(tmp_path / "one", records(9), bundle)
    build_of(tmp_path / "other", records(19), bundle)
    shutil.copy(index_path(tmp_path / "other", "mail"), tmp_path / "one")
    with pytest.raises(HistoryError, match=r"not of the build that .* lists: build it again"):
        build(tmp_path / "merged", [tmp_path / "one"], bundle)


def test_a_fleet_drafts_beside_the_own_history_and_only_its_own_namespace(tmp_path, bundle):
    found, own = records(12), np.arange(500, 540)
    fleet = build_of(tmp_path / "fleet", found, bundle)
    options = {"fleet": fleet, "fleet_namespace": "mail"}
    for directory, keep in ((tmp_path / "own", True), (None, False)):
        with History.of(directory, bundle, namespace="mail/alice", keep=keep, **options) as history:
            history.add(own[:10], own[10:])
            assert knows(history, own) == keep
            assert history.shared.num_recent_tokens == len(own) * keep
            for record in found:
                assert knows(history, record["token_ids"]) == (record["namespace"] == "mail")


def test_an_index_that_comes_later_or_is_damaged_is_said_once(tmp_path, bundle, recwarn):
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    record = records(1)[0]
    with opened(fleet, bundle) as history:
        assert "has no index for the namespace 'mail'" in str(recwarn.pop(HistoryWarning).message)
        history.refresh()
        build(fleet, [write_jsonl(tmp_path / "all.jsonl", [record])], bundle)
        history.refresh()
        assert knows(history, record["token_ids"])
        path = index_path(fleet, "mail")
        (tmp_path / "damaged").write_bytes(path.read_bytes()[:-7])
        (tmp_path / "damaged").replace(path)
        history.refresh()
        history.refresh()
        assert "cut off" in str(recwarn.pop(HistoryWarning).message)
        assert knows(history, record["token_ids"])  # from the one before
    assert not recwarn.list


def test_what_others_built_is_read_ahead(tmp_path, bundle):
    fleet = build_of(tmp_path / "fleet", records(12), bundle)
    with opened(fleet, bundle) as history:
        while history.shared.is_shared_cold:
            time.sleep(0.01)
        assert not history.shared.is_fleet_damaged
    path = index_path(fleet, "mail")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with opened(fleet, bundle) as history:
        while not history.shared.is_fleet_damaged:  # which no request was needed for
            time.sleep(0.01)
        with pytest.warns(HistoryWarning, match="a block is damaged"):
            history.refresh()


def test_a_fleet_of_another_tokenizer_or_as_a_history_of_ones_own_is_refused(tmp_path, bundle):
    fleet = build_of(tmp_path / "fleet", records(3), bundle)
    before = contents(fleet)
    with pytest.raises(HistoryMismatchError, match="built for another tokenizer"):
        History(fleet=fleet, fingerprint="another", vocab_size=50)
    with pytest.raises(HistoryError, match="not a directory"):
        History(fleet=tmp_path / "none", vocab_size=50)
    with pytest.raises(HistoryError, match="holds a fleet's history"):
        History.of(fleet, bundle)
    assert contents(fleet) == before


def test_a_killed_build_changes_nothing_and_the_next_one_cleans_up(tmp_path, bundle):
    fleet, source = tmp_path / "fleet", write_jsonl(tmp_path / "all.jsonl", records(9))
    build(fleet, [source], bundle)
    before = contents(fleet)
    left = fleet / ".build.0123456789ab.unfinished"  # as a killed build leaves it
    left.mkdir()
    (left / "tokens.u32").write_bytes(b"half")
    with opened(fleet, bundle) as history:
        assert knows(history, records(1)[0]["token_ids"])
    with pytest.warns(LeftoverWarning):
        build(fleet, [source], bundle)
    assert contents(fleet) == before


def test_what_is_built_can_be_read_by_its_owner_alone(tmp_path, bundle):
    source = write_jsonl(tmp_path / "all.jsonl", records(9))
    for directory in (tmp_path / "new", tmp_path / "old"):
        (tmp_path / "old").mkdir(exist_ok=True)
        build(directory, [source], bundle)
        modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
        assert len(modes) >= 3
        assert {*modes.values()} == {0o600}, modes
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_device_drafts_right_while_its_index_is_replaced_a_hundred_times(tmp_path, bundle):
    for number in range(2):
        build_of(tmp_path / f"{number}", records(40, seed=number), bundle)
    index = index_path(shutil.copytree(tmp_path / "0", tmp_path / "fleet"), "mail")
    texts = [records(1, seed=number)[0]["token_ids"] for number in range(2)]
    with opened(tmp_path / "fleet", bundle) as history:
        running = HostDrafter(history.shared.vocab_size, history=history.shared)
        for number in range(100):
            older, newer = number % 2, (number + 1) % 2
            running.begin(np.array(texts[older][:20], np.uint32))
            shutil.copy(tmp_path / str(newer) / index.name, tmp_path / "next")
            (tmp_path / "next").replace(index)
            history.refresh()
            assert [knows(history, text) for text in texts] == [newer == 0, newer == 1]
            assert running.propose_chain(8).tolist() == texts[older][20:28]  # from the one before
        assert "fleet" in running.per_source


@pytest.mark.parametrize("kind", ["parquet", "jsonl.zst"])
def test_parquet_and_zst_give_the_bytes_of_json_lines(tmp_path, bundle, kind):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    found = records(30)
    plain = write_jsonl(tmp_path / "all.jsonl", found)
    source = tmp_path / f"other.{kind}"
    if kind == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        rows = [record | {"unread": "x" * 50} for record in found]
        parquet.write_table(pyarrow.Table.from_pylist(rows), source)
    else:
        with pyarrow.CompressedOutputStream(str(source), "zstd") as stream:
            stream.write(plain.read_bytes())
    build(tmp_path / "plain", [plain], bundle)
    result = build(tmp_path / "other", [source], bundle)
    assert result.num_bad == 0
    assert contents(tmp_path / "other") == contents(tmp_path / "plain")


def test_a_damaged_parquet_file_is_a_named_bad_record(tmp_path, bundle):
    pytest.importorskip("pyarrow", reason="needs the extra parquet")
    source = tmp_path / "damaged.parquet"
    source.write_bytes(b"PAR1 and no more")
    good = write_jsonl(tmp_path / "good.jsonl", records(2))
    result = build(tmp_path / "fleet", [source, good], bundle)
    assert result.num_bad == 1
    assert "damaged.parquet:1: the file is damaged" in result.bad[0]


def test_parquet_of_data_frames_is_read_and_text_that_is_none_spoils_its_own_row(tmp_path, bundle):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    parquet = pytest.importorskip("pyarrow.parquet")
    found = [record | {"finished_at": at} for at, record in enumerate(records(3), 1_700_000_000)]
    plain = write_jsonl(tmp_path / "plain.jsonl", found)
    columns = {name: [record[name] for record in found] for name in found[0]}
    nanoseconds = [at * 10**9 + 1 for at in columns["finished_at"]]
    columns["finished_at"] = pyarrow.array(nanoseconds, pyarrow.timestamp("ns"))
    source = tmp_path / "frame.parquet"
    parquet.write_table(pyarrow.table(columns), source)
    build(tmp_path / "plain", [plain], bundle)
    build(tmp_path / "frame", [source], bundle)
    assert contents(tmp_path / "frame") == contents(tmp_path / "plain")

    answers = pyarrow.array([b"Tom went home.", b"\xff\xfe", b"Lily, too."]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"answer": answers}), source)
    result = build(tmp_path / "text", [source], bundle)
    assert (result.num_requests, result.num_bad) == (2, 1)
    assert "frame.parquet:2: cannot be read" in result.bad[0]
