"""Warnings are told as errors are: in one line that any terminal can show."""

import warnings

from coordgen_rs.cli.commands import cache
from coordgen_rs.cli.terminal.text import warnings_told
from coordgen_rs.errors import LeftoverWarning


def test_a_warning_is_one_line_whatever_files_are_called(capsys):
    with warnings_told():
        warnings.warn(LeftoverWarning("a\nfile\x1b[31m"), stacklevel=1)
    told = capsys.readouterr().err
    assert told.startswith("coordgen: warning: a file")
    assert "\x1b" not in told
    assert told.count("\n") == 1


def test_every_command_tells_its_warnings_in_a_line(monkeypatch, coordgen):
    def warned(options):
        warnings.warn(LeftoverWarning("it was removed"), stacklevel=1)
        return 0

    monkeypatch.setattr(cache, "run", warned)
    assert coordgen("cache", "list").err == "coordgen: warning: it was removed\n"


def test_a_build_that_removes_what_a_killed_one_left_says_so_in_a_line(
    coordgen, tmp_path, bundle_of
):
    records = tmp_path / "records.jsonl"
    records.write_text('{"prompt": "Once upon", "answer": " a time"}\n')
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / ".build.0123456789ab.unfinished").mkdir()  # as a killed build leaves it
    tokenizer = ("--tokenizer", bundle_of("embedded", "fp32"))
    told = coordgen("history", "build", tmp_path / "fleet", "--from", records, *tokenizer).err
    assert told.startswith("coordgen: warning: ")
    assert "which an interrupted run had left, was removed\n" in told
    assert "LeftoverWarning" not in told
