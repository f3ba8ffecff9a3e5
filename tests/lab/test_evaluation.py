"""Evaluations of many cells: one table, gone on with, the same from Ray."""

import json
from itertools import product

import pytest

from checkpoints import ROOT
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.fleet.tasks import Sequential
from coordgen_rs.lab.replay.cells import TableError, TableFile, evaluate, key_of, open_table
from coordgen_rs.lab.replay.command import ReplayCell
from coordgen_rs.lab.replay.records import Source
from coordgen_rs.lab.replay.run import HISTORIES
from fleet_tasks import FakeCell

TOKENIZER = ROOT / "models" / "embedded-draft"
ANSWER = "The lamp is green. The lamp is green. The lamp is old."


@pytest.fixture
def logs(tmp_path):
    """Two files of records, of different answers."""
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for number, path in enumerate(paths):
        record = {"id": "1", "task": "rag", "prompt": ANSWER, "output": ANSWER * (number + 1)}
        path.write_text(f"{json.dumps(record)}\n" * 3)
    return paths


def replaying(*logs, table):
    return ("replay", *logs, "--tokenizer", TOKENIZER, "--template", "none", "--table", table)


def counted(rows):
    """Rows without the times."""
    return [{name: row[name] for name in row if "_us_" not in name} for row in rows]


def test_a_table_holds_every_combination_and_is_gone_on_with(coordgen, logs, tmp_path):
    table = tmp_path / "results.json"
    lists = ("--drafter", "sam,coordgen-ours", "--budget", "4,8")
    assert "8 cells measured, 0 were there, 0 failed" in (
        coordgen(*replaying(*logs, table=table), *lists).err
    )
    rows = json.loads(table.read_text())
    found = {(row["data"], row["drafter"], row["budget"], row["task"]) for row in rows}
    assert len(found) == len(rows) == 16  # a row for the task, and one for all
    assert "0 cells measured, 8 were there" in (
        coordgen(*replaying(*logs, table=table), *lists).err
    )
    assert json.loads(table.read_text()) == rows
    with logs[0].open("a") as stream:
        stream.write(logs[1].read_text())
    assert "4 cells measured, 4 were there" in (
        coordgen(*replaying(*logs, table=table), *lists).err
    )


def test_figures_are_those_of_a_replay_alone(coordgen, logs, tmp_path):
    table = tmp_path / "results.json"
    coordgen(*replaying(logs[0], table=table))
    row = json.loads(table.read_text())[-1]
    alone = coordgen(*replaying(logs[0], table=table)[:-2], "--json")
    figures = json.loads(alone.out)
    for name in ("tokens", "steps", "tokens_per_step", "records"):
        assert row[name] == figures[name]


def test_each_setting_is_a_cell_of_its_own(logs):
    """The settings of a replay have a `commit`, as the software has."""
    source = Source(logs[0], TOKENIZER, "none")
    settings = product(("auto", "sam"), (4, 8), HISTORIES, ("compact", "canonical"))
    cells = [ReplayCell(source, *chosen) for chosen in settings]
    assert len({key_of(cell) for cell in cells}) == len(cells) == 32


def test_a_cell_that_fails_is_named_and_tried_again(coordgen, logs, tmp_path):
    table = tmp_path / "results.json"
    logs[1].write_text("{}\n")
    said = coordgen(*replaying(*logs, table=table), code=1).err
    assert "1 cells measured, 0 were there, 1 failed" in said
    assert "data two.jsonl" in said
    assert "line 1: no 'prompt'" in said
    logs[1].write_text(logs[0].read_text().replace("old", "new"))
    assert "1 cells measured, 1 were there, 0 failed" in (
        coordgen(*replaying(*logs, table=table)).err
    )


def test_what_ended_before_a_kill_is_there(tmp_path):
    table = TableFile(tmp_path / "results.json")
    cells = [FakeCell(1), FakeCell(2), FakeCell(3, interrupts=True), FakeCell(4)]
    with pytest.raises(KeyboardInterrupt):
        evaluate(cells, table, Sequential())
    again = TableFile(tmp_path / "results.json")
    assert [row["number"] for row in again.rows] == [1, 2]
    done = evaluate([FakeCell(number) for number in (1, 2, 3, 4)], again, Sequential())
    assert (done.num_run, done.num_kept) == (2, 2)
    assert [row["square"] for row in again.rows] == [1, 4, 9, 16]


def test_two_commands_do_not_fill_one_table(coordgen, logs, tmp_path):
    table = tmp_path / "results.json"
    with open_table(table):
        found = coordgen(*replaying(logs[0], table=table), code=2)
        assert "another command is filling" in found.err
        coordgen(*replaying(logs[0], table=tmp_path / "others.json"))
    assert not table.exists()
    coordgen(*replaying(logs[0], table=table))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


class Backwards:
    """Tasks that end in the other order than they began."""

    def run(self, call, arguments):
        yield from reversed([*Sequential().run(call, arguments)])


def test_rows_belong_to_their_cells_in_whatever_order_these_end(tmp_path):
    table = TableFile(tmp_path / "results.json")
    evaluate([FakeCell(number) for number in range(4)], table, Backwards())
    assert [(row["number"], row["square"]) for row in table.rows] == [
        (3, 9),
        (2, 4),
        (1, 1),
        (0, 0),
    ]


def test_parquet_holds_the_rows_of_json(coordgen, logs, tmp_path):
    pytest.importorskip("pyarrow", reason="needs the extra parquet")
    for kind in ("json", "parquet"):
        coordgen(*replaying(*logs, table=tmp_path / f"results.{kind}"), "--budget", "4,8")
    found = [TableFile(tmp_path / f"results.{kind}").rows for kind in ("json", "parquet")]
    columns = {name for row in found[0] for name in row}
    whole = [{name: row.get(name) for name in columns} for row in found[0]]
    assert counted(found[1]) == counted(whole)


def test_bench_fills_a_table_of_bundles_and_prompts(coordgen, bundle_of, logs, tmp_path):
    table = tmp_path / "results.json"
    bench = ("bench", bundle_of("embedded-draft", "fp32"), logs[0], "--sections", "methods")
    small = ("--methods", "sam", "--limit", 1, "--max-new-tokens", 4, "--repeats", 1)
    command = (*bench, *small, "--table", table, "--and-data", logs[1])
    assert "2 cells measured" in coordgen(*command).err
    rows = json.loads(table.read_text())
    assert {(row["data"], row["method"], row["task"]) for row in rows} == {
        (data, method, task)
        for data in ("one.jsonl", "two.jsonl")
        for method in ("plain", "sam")
        for task in ("rag", "all")
    }
    assert "0 cells measured, 2 were there" in coordgen(*command).err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--budget", "4,8"), "need --table"),
        (("--ray", "local"), "needs --table"),
        (("--table", "results.csv"), "must end in .json or .parquet"),
        (("--table", "results.json", "--json"), "not for --table"),
        (("--drafter", "guess"), "guess"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    coordgen, logs, tmp_path, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    command = ("replay", logs[0], "--tokenizer", TOKENIZER, "--template", "none", *options)
    assert message in coordgen(*command, code=2).err


@pytest.mark.parametrize("content", ["{}", "[1]", '[{"a": 1}]', "no"])
def test_a_file_that_is_no_table_is_not_replaced(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(TableError, match=r"results\.json is no table of an evaluation"):
        TableFile(path)
    assert path.read_text() == content
    with pytest.raises(OptionError, match="must end in"):
        TableFile(tmp_path / "results.txt")
