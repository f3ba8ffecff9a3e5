"""Sections without a model: tables, plots, gaps between tokens, the commit of a checkout."""

import pytest

from coordgen_rs.lab.bench.times import gaps_ms
from coordgen_rs.lab.condition import commit_of
from coordgen_rs.lab.plots import FORMATS, middle, plot_section, rows_by_word
from coordgen_rs.lab.tables import Across, Chart, Column, Section, Summary, summarize

COLUMNS = (Column("task"), Column("method"), Column("time", "ms", 1), Column("steps"))
ROWS = [
    ("rag", "plain", Summary(1234.56789, 1.0, 2000.0), 12345),
    ("rag", "ours", 0.25, None),
    ("ui", "plain", None, 3),
]


def section(kind="bars", **chart):
    return Section(
        "made-up",
        "a table",
        "replayed",
        COLUMNS,
        ROWS,
        Chart(kind, "task", ("time", "steps"), **chart),
        ["a note"],
    )


def test_a_table_has_heads_with_units_and_cells_with_spreads(capsys):
    section().show("on some machine")
    shown = capsys.readouterr().out
    for text in ("made-up: a table (replayed)", "time, ms", "a note", "on some machine"):
        assert text in shown
    line = next(line for line in shown.splitlines() if "1,234.6" in line)
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "rag",
        "plain",
        "1,234.6 (1.0..2,000.0)",
        "12,345",
    ]
    assert next(line for line in shown.splitlines() if "ours" in line).count("-") == 1


def test_one_repeat_has_no_spread(capsys):
    rows = [("rag", "plain", summarize([0.5]), 1), ("rag", "ours", summarize([1.0, 3.0]), 2)]
    Section("made-up", "a table", "measured", COLUMNS, rows, section().chart).show("")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| rag")]
    assert [line.split("|")[3].strip() for line in lines] == ["0.5", "2.0 (1.0..3.0)"]


def test_a_long_table_is_printed_wide_one_figure_at_a_time(capsys):
    columns = (*COLUMNS[:2], Column("steps"), Column("gain"), Column("memory", "MB"))
    rows = [
        (task, method, steps, steps / 2, steps + 0.5)
        for task, steps in (("rag", 2), ("all", 4))
        for method in ("plain", "ours")
    ]
    chart, across = section().chart, Across("task", ("steps", "gain"))
    Section("made-up", "a table", "measured", columns, rows, chart, across=across).show("")
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    shown = [" ".join(line.replace("|", " ").split()) for line in lines if "---" not in line]
    assert shown == [
        "made-up: a table (measured)",
        *("steps", "method rag all", "plain 2 4", "ours 2 4"),
        *("gain", "method rag all", "plain 1.00 2.00", "ours 1.00 2.00"),
        *("task: all", "method memory, MB", "plain 4.50", "ours 4.50"),
    ]


def test_rows_become_objects_by_column():
    document = section().to_json()
    assert document["units"] == {"task": "", "method": "", "time": "ms", "steps": ""}
    assert document["rows"][0] == {
        "task": "rag",
        "method": "plain",
        "time": {"median": 1234.57, "low": 1.0, "high": 2000.0},
        "steps": 12345,
    }
    assert document["rows"][1]["time"] == 0.25
    assert document["rows"][2]["time"] is None


@pytest.mark.parametrize("kind", ["bars", "stacked", "lines"])
def test_plots_are_drawn_with_gaps_where_nothing_was_measured(kind, tmp_path):
    made = section(kind, series="method", panels="task" if kind == "bars" else None)
    if kind == "lines":
        rows = [(4, "plain", Summary(2.0, 1.0, 3.0), 1), (8, "plain", None, 2)]
        made = Section("made-up", "", "measured", COLUMNS, rows, made.chart)
    files = plot_section(made, "on some machine", tmp_path / "plots")
    assert [file.name for file in files] == [f"made-up.{ending}" for ending in FORMATS]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in files[1].read_text()
    assert middle(None) != middle(None)


def test_no_rows_no_picture(tmp_path):
    empty = Section("made-up", "", "measured", COLUMNS, [], section().chart)
    assert plot_section(empty, "", tmp_path / "plots") == []
    empty.show("a table without rows can be printed")


def test_series_are_told_apart_by_their_word():
    assert rows_by_word(section(), "method", [0, 1, 2]) == {"plain": [0, 2], "ours": [1]}
    assert rows_by_word(section(), "task", [1, 2]) == {"rag": [1], "ui": [2]}
    assert rows_by_word(section(), None, [0, 2]) == {"": [0, 2]}


def test_tokens_of_one_step_come_at_once():
    assert gaps_ms([(0.5, 1)]) == []
    assert gaps_ms([(0.5, 3)]) == [0, 0]
    assert gaps_ms([(0.5, 1), (0.75, 2)]) == [250, 0]
    assert gaps_ms([]) == []


def test_files_outside_a_checkout_have_no_commit(tmp_path):
    file = tmp_path / "file.py"
    file.write_text("")
    assert commit_of(file) is None
