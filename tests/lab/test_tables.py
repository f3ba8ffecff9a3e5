"""Tables: what a pipe gets is Markdown that reads as it was given."""

from coordgen_rs.lab.tables import markdown, show_table

COLUMNS = ("method", "tokens/s", "memory")
ROWS = [("plain", "348", "0.00 MB"), ("a|b", "1,024", "-")]

EXPECTED = r"""
| method | tokens/s |  memory |
| ------ | -------: | ------: |
| plain  |      348 | 0.00 MB |
| a\|b   |    1,024 |       - |
"""


def test_a_table_in_markdown_is_aligned_and_keeps_every_cell():
    assert markdown(COLUMNS, ROWS) == EXPECTED.strip()
    left = markdown(COLUMNS, ROWS, num_words=3).splitlines()
    assert left[1] == "| ------ | -------- | ------- |"
    assert left[2] == "| plain  | 348      | 0.00 MB |"


def test_a_table_without_rows_is_its_head():
    assert markdown(("a", "b"), []) == "| a   |   b |\n| --- | --: |"


def test_a_pipe_gets_markdown_below_the_title(capsys):
    show_table("figures", COLUMNS, ROWS)
    assert capsys.readouterr().out == f"figures\n\n{EXPECTED.strip()}\n\n"
