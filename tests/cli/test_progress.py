"""The progress bar: on a terminal only, and nothing is loaded for it before it has to be shown."""

import subprocess
import sys

import pytest

pytest.importorskip("rich", reason="rich is not installed")

from coordgen_rs.cli.terminal.progress import progress

_ASK = """
import sys
from coordgen_rs.cli.terminal.progress import progress
with progress() as told:
    before = "rich" in sys.modules
    told("reading", 1, 2)
print(before, "rich" in sys.modules)
"""


def test_rich_is_loaded_when_there_is_something_to_show():
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
    assert done.stderr == ""


def test_what_is_done_is_shown_on_a_terminal_alone(capsys, monkeypatch):
    with progress() as told:
        told("reading", 1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress() as told:
        told("reading", 1, 2)
        told("writing", 2, 2)
    assert "writing" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["model[/INST].gguf", "model[red].gguf", "model\\"])
def test_a_name_is_shown_as_it_is_written(capsys, monkeypatch, name):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with progress() as told:
        told(f"reading {name} now", 2, 2)
    assert f"reading {name} now" in capsys.readouterr().err


def test_what_controls_a_terminal_is_shown_escaped(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with progress() as told:
        told("reading a\x1b]0;title\x07\nb", 2, 2)
    assert r"reading a\x1b]0;title\x07\nb" in capsys.readouterr().err
