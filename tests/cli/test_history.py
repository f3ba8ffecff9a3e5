"""`coordgen history`, and `coordgen generate --history`, as a user types them."""

import io
import json
import os
import sqlite3

import pytest

from checkpoints import ROOT
from coordgen_rs import History
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.cli.commands import history as history_command
from coordgen_rs.errors import HistoryWarning
from coordgen_rs.store.files import locked
from coordgen_rs.store.history.store import DATABASE_NAME, HistoryStore
from corpora import knows, source, write_sources

PROMPT = ROOT / "models" / "prompts" / "rag.txt"
FINGERPRINT = {"fingerprint": "a tokenizer", "vocab_size": 50}


@pytest.fixture
def answers(tmp_path):
    """A history of two namespaces."""
    directory = tmp_path / "answers"
    for namespace in ("mail/alice", "ui"):
        with History(directory, namespace=namespace, **FINGERPRINT) as history:
            for number in range(3):
                history.add([number, 1, 2], [3, 4])
    return directory


def requests(directory, namespace=None):
    return [
        (request.namespace, request.finished_at, request.prompt_len, request.token_ids.tobytes())
        for request in HistoryStore(directory).read(namespace)
    ]


def test_ls_tells_what_each_namespace_holds(coordgen, answers):
    lines = coordgen("history", "ls", answers).out.splitlines()
    assert [line.partition(", last ")[0] for line in lines] == [
        "mail/alice: 3 requests, 15 tokens",
        "ui: 3 requests, 15 tokens",
    ]
    first, _ = json.loads(coordgen("history", "ls", answers, "--json").out)
    assert first["namespace"] == "mail/alice"
    assert (first["num_requests"], first["num_tokens"]) == (3, 15)
    assert first["first_finished_at"] <= first["last_finished_at"]


def test_what_was_exported_can_be_imported(coordgen, answers, tmp_path, monkeypatch):
    lines = coordgen("history", "export", answers).out
    assert json.loads(lines.splitlines()[0])["fingerprint"] == "a tokenizer"
    exported = tmp_path / "answers.jsonl"
    exported.write_text(lines)
    assert "6 requests imported" in coordgen("history", "import", tmp_path / "x", exported).err
    assert requests(tmp_path / "x") == requests(answers)

    alice = coordgen("history", "export", answers, "--namespace", "mail/alice").out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(alice.encode())))
    coordgen("history", "import", tmp_path / "y", "--max-tokens", 12)
    assert requests(tmp_path / "y") == requests(answers, "mail/alice")[1:]


def test_clear_erases_a_namespace_or_all(coordgen, answers):
    done = coordgen("history", "clear", answers, "--namespace", "ui")
    assert "3 requests cleared" in done.err
    assert {request[0] for request in requests(answers)} == {"mail/alice"}
    coordgen("history", "clear", answers)
    assert requests(answers) == []
    assert coordgen("history", "ls", answers).out == ""
    assert not list(answers.glob("*.index"))


GOOD = '{"namespace": "a", "finished_at": 1, "prompt_len": 1, "token_ids": [1]}'


@pytest.mark.parametrize(
    ("was", "becomes", "named"),
    [
        (GOOD, "[" * 200_000, "line 3 has more than 100 lists and objects"),
        *((GOOD, "{", "line 3 is not valid JSON"), (GOOD, "[]", "line 3 is not a request")),
        ('len": 1', 'len": 1' + "0" * 30, "line 3 holds the integer 10"),
        ('len": 1', 'len": 2', "line 3 is not a request: prompt_len is 2"),
        ('len": 1', 'len": -1', "line 3 is not a request: prompt_len is -1"),
        ('at": 1', 'at": 1e300', "line 3 is not a request: finished_at is 1e+300"),
        ('at": 1', 'at": 1e400', "line 3 holds the number 1e400"),
        ('at": 1', 'at": NaN', "line 3 holds NaN"),
        *(("[1]", "[1.5]", "token_ids[0] is float 1.5"), ("[1]", "[[1]]", "is list [1]")),
        *(("[1]", f"[{wrong}]", "token ids outside the vocabulary") for wrong in (50, -1)),
        ('"a"', r'"\ud800"', "line 3 holds half of a surrogate pair"),
        *(('"a"', "5", "namespace is int 5"), ("namespace", "name", "line 3 is not a request")),
    ],
)
def test_lines_that_cannot_be_imported_change_nothing(
    coordgen, answers, tmp_path, was, becomes, named
):
    header = coordgen("history", "export", answers).out.splitlines()[0]
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("\n".join([header, GOOD, GOOD.replace(was, becomes)]))
    before = requests(answers)
    done = coordgen("history", "import", answers, wrong, code=2)
    assert done.err.startswith("coordgen: error: ")
    assert named in done.err
    assert requests(answers) == before


HEADER = {"format": "coordgen-history-1", "fingerprint": "x", "vocab_size": 5}


@pytest.mark.parametrize(
    "header",
    [
        *("", "[]"),
        *(json.dumps(HEADER | {"vocab_size": size}) for size in (float("inf"), 1e30, 0)),
        *(json.dumps(HEADER | {"fingerprint": wrong}) for wrong in ("", 5)),
        json.dumps(HEADER | {"format": "coordgen-history-2"}),
    ],
)
def test_a_wrong_header_is_refused_and_makes_no_history(coordgen, tmp_path, header):
    (tmp_path / "lines.jsonl").write_text(header)
    error = coordgen("history", "import", tmp_path / "x", tmp_path / "lines.jsonl", code=2).err
    assert "lines.jsonl" in error
    assert not (tmp_path / "x").exists()


def test_an_exported_history_may_begin_with_a_byte_order_mark(coordgen, answers, tmp_path):
    lines = coordgen("history", "export", answers).out
    (tmp_path / "lines.jsonl").write_text("\ufeff" + lines, "utf-8")
    coordgen("history", "import", tmp_path / "x", tmp_path / "lines.jsonl")
    assert requests(tmp_path / "x") == requests(answers)


def test_a_pipe_to_import_is_refused_not_waited_for(coordgen, answers, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "is a pipe" in coordgen("history", "import", answers, tmp_path / "pipe", code=2).err


def test_ls_survives_a_date_that_no_calendar_has(coordgen, answers):
    change_rows(answers, "finished_at = 1e300 WHERE number = 6")
    first, second = coordgen("history", "ls", answers).out.splitlines()
    assert first.startswith("mail/alice: 3 requests, 15 tokens, last 20")
    assert second == "ui: 3 requests, 15 tokens, last unknown"


def change_rows(directory, change):
    connection = sqlite3.connect(directory / DATABASE_NAME)
    with connection:
        connection.execute(f"UPDATE requests SET {change}")
    connection.close()


@pytest.mark.parametrize(
    "change",
    [
        *("token_ids = x'01020304050607'", "token_ids = 'text'", "prompt_len = 6"),
        *("prompt_len = 'many'", "finished_at = 'late'", "finished_at = 9e999"),
    ],
)
def test_rows_that_are_not_whole_are_told_in_one_line(coordgen, answers, change):
    change_rows(answers, change)
    assert "is damaged: request 1 is not whole" in coordgen(
        "history", "export", answers, code=2
    ).err.replace("\n", " ")
    with pytest.warns(HistoryWarning, match="request 1 is not whole"):
        history = History(answers, namespace="mail/alice", **FINGERPRINT)
    history.close()
    coordgen("history", "clear", answers)
    assert requests(answers) == []


def test_names_from_a_file_do_not_steer_the_terminal(coordgen, tmp_path):
    namespace = "red \x1b[31m\n\u202e"
    with History(tmp_path / "x", namespace=namespace, **FINGERPRINT) as history:
        history.add([1], [2])
    (line,) = coordgen("history", "ls", tmp_path / "x").out.splitlines()
    assert line.startswith(r"red \x1b[31m\n\u202e: 1 requests")
    assert (
        json.loads(coordgen("history", "ls", tmp_path / "x", "--json").out)[0]["namespace"]
        == namespace
    )


def test_a_history_of_another_tokenizer_is_not_imported(coordgen, answers, tmp_path):
    lines = coordgen("history", "export", answers).out.replace("a tokenizer", "another")
    exported = tmp_path / "other.jsonl"
    exported.write_text(lines)
    error = coordgen("history", "import", answers, exported, code=2).err
    assert "was written with another tokenizer" in error
    exported.write_text("")
    error = coordgen("history", "import", answers, exported, code=2).err
    assert f"{exported} is no exported history: it begins with no header" in error


@pytest.mark.parametrize("command", ["ls", "export", "clear"])
def test_a_directory_without_a_history_is_an_error(coordgen, tmp_path, command):
    assert "holds no history" in coordgen("history", command, tmp_path / "x", code=2).err
    assert not (tmp_path / "x").exists()


def test_generate_keeps_requests_and_drafts_from_them(coordgen, bundle_of, tmp_path):
    command = ["generate", "--model", bundle_of("embedded", "fp32"), "--prompt-file", PROMPT]
    command += ["--json", "--history", tmp_path / "answers", "--namespace", "rag"]
    first, second = (json.loads(coordgen(*command).out) for _ in range(2))
    assert second["token_ids"] == first["token_ids"]
    assert first["per_source"]["recent"]["accepted"] == 0
    assert second["per_source"]["recent"]["accepted"] > 0
    command[-1] = "another"
    other = json.loads(coordgen(*command).out)["per_source"]
    assert other["recent"] == other["history"] == {"proposed": 0, "accepted": 0}
    names = [request[0] for request in requests(tmp_path / "answers")]
    assert names == ["rag", "rag", "another"]


def test_generate_goes_on_without_a_place_for_the_history(coordgen, bundle_of, tmp_path):
    (tmp_path / "file").write_text("")
    command = ["generate", "--model", bundle_of("embedded", "fp32"), "--prompt-file", PROMPT]
    done = coordgen(*command, "--json", "--history", tmp_path / "file")
    assert json.loads(done.out)["new_tokens"] > 0
    assert done.err.startswith("coordgen: warning: the history in ")
    assert done.err.count("\n") == 1


def test_build_tells_what_it_built_and_generate_drafts_from_it(coordgen, bundle_of, tmp_path):
    bundle = bundle_of("embedded-draft", "fp32")
    generate = ("generate", "--model", bundle, "--prompt-file", PROMPT, "--max-new-tokens", 20)
    plain = json.loads(coordgen(*generate, "--draft", "plain", "--json").out)
    record = {"prompt": PROMPT.read_text(), "answer": plain["text"], "namespace": "rag"}
    log = tmp_path / "log.jsonl"
    log.write_text(f"{json.dumps(record)}\n{json.dumps(record)}\n{{}}\n")
    build = ("history", "build", tmp_path / "fleet", "--from", log, "--tokenizer", bundle)
    told = coordgen(*build)
    assert f"{log}:3: it has neither token_ids nor answer" in told.err
    assert "1 records are no requests and were left out" in told.err
    assert "fleet: 1 requests, " in told.err
    assert json.loads(coordgen(*build, "--json").out)["left_out"] == 1
    fleet = ("--fleet-history", tmp_path / "fleet", "--fleet-namespace", "rag")
    drafted = json.loads(coordgen(*generate, *fleet, "--json").out)
    assert drafted["text"] == plain["text"]
    assert drafted["per_source"]["fleet"]["accepted"] > 0
    assert "log.jsonl:3: " in coordgen(*build, "--strict", code=2).err
    assert "needs --fleet-history" in coordgen(*generate, *fleet[2:], code=2).err


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
    monkeypatch.setattr(history_command, "_MOST_NAMED", 3)
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
    monkeypatch.setattr(history_command, "_WAIT_S", 0.0)
    with locked(tmp_path / "answers" / "corpus"):
        assert "others are adding or removing" in add(tmp_path / "file", code=2).err
