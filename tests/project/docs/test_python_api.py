"""The page of the Python API says what there is, also where nothing writes it out: on GitHub."""

import re

import api_tables
import coordgen_rs
from coordgen_rs import errors

TEXT = api_tables.PAGE.read_text("utf-8")


def test_the_page_shows_no_directives_to_who_reads_it_as_it_is():
    shown = re.sub(r"<!--.*?-->", "", TEXT, flags=re.DOTALL)
    assert ":::" not in shown
    assert ":::" in api_tables.written_out(TEXT)
    assert "<!-- reference" not in api_tables.written_out(TEXT)


def test_its_tables_are_those_of_the_docstrings():
    assert api_tables.with_tables(TEXT) == TEXT, "run python docs/api_tables.py"
    assert re.findall(r"^\| .* \|  \|$", TEXT, re.MULTILINE) == []  # a name without a docstring


def test_each_name_is_imported_from_where_the_page_says():
    others, _, of_errors = TEXT.partition("\n## Errors\n")
    for text, module in ((others, coordgen_rs), (of_errors, errors)):
        for name in re.findall(r"^\| \[`(\w+)`\]", text, re.MULTILINE):
            assert name in module.__all__
            assert getattr(module, name).__name__ == name


def test_everything_that_is_exported_is_in_a_table():
    named = set(re.findall(r"^\| \[`(\w+)`\]", TEXT, re.MULTILINE))
    public = {name for name in vars(errors) if name.endswith(("Error", "Warning"))}
    assert public == {*errors.__all__}
    assert {*coordgen_rs.__all__, *public} - named == set()
