"""What a terminal is shown: progress, warnings, sizes, and names that do not steer it."""

import subprocess
import sys
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordgen_rs.cli.commands import cache
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.cli.terminal.text import parse_bytes, printable, warnings_told
from coordgen_rs.errors import LeftoverWarning, OptionError

_ASK = """
import sys
from coordgen_rs.cli.terminal.streams import progress
with progress() as told:
    before = "rich" in sys.modules
    told("reading", 1, 2)
print(before, "rich" in sys.modules)
"""


@pytest.fixture
def coloured(monkeypatch):
    """A terminal, as far as rich can tell."""
    pytest.importorskip("rich", reason="rich is not installed")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")


def test_rich_is_loaded_when_there_is_something_to_show():
    pytest.importorskip("rich", reason="rich is not installed")
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (["False", "True"], "")


def test_nothing_is_shown_but_on_a_terminal(capsys):
    with progress() as told:
        told("reading", 1, 2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        *((f"reading {name} now",) * 2 for name in ("model[/INST]", "model[red].gguf", "model\\")),
        ("reading a\x1b]0;title\x07\nb", r"reading a\x1b]0;title\x07\nb"),
    ],
)
def test_what_is_done_is_shown_as_it_is_called_and_steers_nothing(coloured, capsys, what, shown):
    with progress() as told:
        told("begun", 1, 2)
        told(what, 2, 2)
    assert shown in capsys.readouterr().err


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


def test_control_characters_are_escaped_and_others_kept():
    assert printable("mail/Ägypten 你好") == "mail/Ägypten 你好"
    assert printable("\x1b[31m\r\n\x9b\u202e\ud800\0") == r"\x1b[31m\r\n\x9b\u202e\ud800\x00"


@given(st.text())
def test_every_text_is_printable_and_stays_so(text):
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("0", 0), ("800", 800), ("500M", 500_000_000), ("2g", 2 * 10**9), ("1.5 GiB", 3 * 2**29)],
)
def test_sizes_are_read_as_people_write_them(text, num_bytes):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "M", "-1", "1T", "1e9", "½G", "1,5G", "9" * 400])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(OptionError, match="is not a number of bytes"):
        parse_bytes(text)
