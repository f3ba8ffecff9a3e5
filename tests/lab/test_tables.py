"""Figures and tables: statistics, what is printed and drawn, and the commit of a checkout."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordgen_rs.lab.bench.condition import commit_of
from coordgen_rs.lab.bench.latency import gaps_ms
from coordgen_rs.lab.plots import FORMATS, middle, plot_section, rows_by_word
from coordgen_rs.lab.tables import (
    Across,
    Chart,
    Column,
    Section,
    Summary,
    in_turns,
    markdown,
    percentile,
    ratio,
    rotated,
    show_table,
    summarize,
)

HEADS = ("method", "tokens/s", "memory")
TEXTS = [("plain", "348", "0.00 MB"), ("a|b", "1,024", "-")]
EXPECTED = r"""
| method | tokens/s |  memory |
| ------ | -------: | ------: |
| plain  |      348 | 0.00 MB |
| a\|b   |    1,024 |       - |
"""

COLUMNS = (Column("task"), Column("method"), Column("time", "ms", 1), Column("steps"))
ROWS = [
    ("rag", "plain", Summary(1234.56789, 1.0, 2000.0), 12345),
    ("rag", "ours", 0.25, None),
    ("ui", "plain", None, 3),
]

figures = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


def section(kind="bars", columns=COLUMNS, rows=ROWS, notes=("a note",), across=None, **chart):
    drawn = Chart(kind, "task", ("time", "steps"), **chart)
    return Section("made-up", "a table", "replayed", columns, rows, drawn, list(notes), across)


def cells(printed):
    """Of each line of tables, words apart."""
    lines = [line.strip("|").split("|") for line in printed.splitlines() if "|" in line]
    return [[cell.strip() for cell in line] for line in lines if "---" not in line[0]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0, 1.0, 2.0], Summary(2.0, 1.0, 3.0)),
        ([4.0, 1.0, 2.0, 9.0], Summary(3.0, 1.0, 9.0)),
        ([5.0], Summary(5.0, 5.0, 5.0)),
        ([], None),
    ],
)
def test_the_median_is_the_middle_or_the_mean_of_the_middle_two(values, expected):
    assert summarize(values) == expected


def test_nothing_measured_gives_no_figure():
    assert percentile([], 50) is None
    assert ratio(1.0, 0.0) is None


def test_percentiles_lie_linearly_between_neighbours():
    found = [percentile([40.0, 10.0, 30.0, 20.0], share) for share in (0, 50, 90, 100)]
    assert found == [10, 25, pytest.approx(37), 40]


@given(figures, st.randoms(use_true_random=False))
def test_half_of_the_values_are_on_each_side_of_the_median_whatever_their_order(values, random):
    summary = summarize(values)
    assert (summary.low, summary.high) == (min(values), max(values))
    assert sum(value <= summary.median for value in values) * 2 >= len(values)
    assert sum(value >= summary.median for value in values) * 2 >= len(values)
    assert percentile(values, 50) == pytest.approx(summary.median, rel=1e-9, abs=1e-6)
    shuffled = values[:]
    random.shuffle(shuffled)
    assert summarize(shuffled) == summary
    assert percentile(shuffled, 90) == percentile(values, 90)


@given(st.integers(1, 6), st.integers(0, 20))
def test_every_item_has_a_turn_in_every_round_and_every_place_in_as_many_rounds(num_items, rounds):
    items = list(range(num_items))
    order = list(in_turns(items, rounds))
    parts = [order[start : start + num_items] for start in range(0, len(order), num_items)]
    assert len(parts) == rounds
    assert all(sorted(part) == items for part in parts)
    for item in items:
        places = [part.index(item) for part in parts[: rounds // num_items * num_items]]
        assert all(places.count(place) == rounds // num_items for place in items)


@pytest.mark.parametrize(
    ("items", "turn", "expected"), [("abc", 0, "abc"), ("abc", 4, "bca"), ("", 3, "")]
)
def test_a_rotation_keeps_the_neighbours(items, turn, expected):
    assert rotated(items, turn) == list(expected)


def test_a_table_in_markdown_is_aligned_and_keeps_every_cell():
    assert markdown(HEADS, TEXTS) == EXPECTED.strip()
    left = markdown(HEADS, TEXTS, num_words=3).splitlines()
    assert left[1] == "| ------ | -------- | ------- |"
    assert left[2] == "| plain  | 348      | 0.00 MB |"
    assert markdown(("a", "b"), []) == "| a   |   b |\n| --- | --: |"


def test_a_pipe_gets_markdown_below_the_title(capsys):
    show_table("figures", HEADS, TEXTS)
    assert capsys.readouterr().out == f"figures\n\n{EXPECTED.strip()}\n\n"


def test_a_table_has_heads_with_units_and_cells_with_spreads(capsys):
    section().show("on some machine")
    shown = capsys.readouterr().out
    for text in ("made-up: a table (replayed)", "a note", "on some machine"):
        assert text in shown
    assert cells(shown) == [
        ["task", "method", "time, ms", "steps"],
        ["rag", "plain", "1,234.6 (1.0..2,000.0)", "12,345"],
        ["rag", "ours", "0.2", "-"],
        ["ui", "plain", "-", "3"],
    ]


def test_one_repeat_has_no_spread(capsys):
    rows = [("rag", "plain", summarize([0.5]), 1), ("rag", "ours", summarize([1.0, 3.0]), 2)]
    section(rows=rows).show("")
    assert [row[2] for row in cells(capsys.readouterr().out)[1:]] == ["0.5", "2.0 (1.0..3.0)"]


def test_a_long_table_is_printed_wide_one_figure_at_a_time(capsys):
    columns = (*COLUMNS[:2], Column("steps"), Column("gain"), Column("memory", "MB"))
    rows = [
        (task, method, steps, steps / 2, steps + 0.5)
        for task, steps in (("rag", 2), ("all", 4))
        for method in ("plain", "ours")
    ]
    section(columns=columns, rows=rows, notes=(), across=Across("task", ("steps", "gain"))).show("")
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    shown = [" ".join(line.replace("|", " ").split()) for line in lines if "---" not in line]
    assert shown == [
        "made-up: a table (replayed)",
        *("steps", "method rag all", "plain 2 4", "ours 2 4"),
        *("gain", "method rag all", "plain 1.00 2.00", "ours 1.00 2.00"),
        *("task: all", "method memory, MB", "plain 4.50", "ours 4.50"),
    ]


def test_rows_become_objects_by_column():
    document = section().to_json()
    assert document["units"] == {"task": "", "method": "", "time": "ms", "steps": ""}
    time = {"median": 1234.57, "low": 1.0, "high": 2000.0}
    assert document["rows"][0] == {"task": "rag", "method": "plain", "time": time, "steps": 12345}
    assert [row["time"] for row in document["rows"][1:]] == [0.25, None]


@pytest.mark.parametrize("kind", ["bars", "stacked", "lines"])
def test_plots_are_drawn_with_gaps_where_nothing_was_measured(kind, tmp_path):
    made = section(kind, series="method", panels="task" if kind == "bars" else None)
    if kind == "lines":
        rows = [(4, "plain", Summary(2.0, 1.0, 3.0), 1), (8, "plain", None, 2)]
        made = section(kind, rows=rows, series="method")
    files = plot_section(made, "on some machine", tmp_path / "plots")
    assert [file.name for file in files] == [f"made-up.{ending}" for ending in FORMATS]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in files[1].read_text()
    assert middle(None) != middle(None)


def test_no_rows_no_picture(tmp_path):
    empty = section(rows=[])
    assert plot_section(empty, "", tmp_path / "plots") == []
    empty.show("a table without rows can be printed")


@pytest.mark.parametrize(
    ("column", "rows", "expected"),
    [
        ("method", [0, 1, 2], {"plain": [0, 2], "ours": [1]}),
        ("task", [1, 2], {"rag": [1], "ui": [2]}),
        (None, [0, 2], {"": [0, 2]}),
    ],
)
def test_series_are_told_apart_by_their_word(column, rows, expected):
    assert rows_by_word(section(), column, rows) == expected


@pytest.mark.parametrize(
    ("arrivals", "gaps"),
    [([(0.5, 1)], []), ([(0.5, 3)], [0, 0]), ([(0.5, 1), (0.75, 2)], [250, 0]), ([], [])],
)
def test_tokens_of_one_step_come_at_once(arrivals, gaps):
    assert gaps_ms(arrivals) == gaps


def test_files_outside_a_checkout_have_no_commit(tmp_path):
    file = tmp_path / "file.py"
    file.write_text("")
    assert commit_of(file) is None
