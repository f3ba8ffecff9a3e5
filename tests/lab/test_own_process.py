"""Calls in a process of their own return, raise or die by name."""

import os
import signal

import pytest

from coordgen_rs.cli.terminal.byte_size import parse_bytes
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.own_process import OwnProcessError, in_own_process


def test_another_process_returns_and_raises_what_the_call_does():
    assert in_own_process(os.getpid) != os.getpid()
    assert in_own_process(parse_bytes, "2K") == parse_bytes("2K")
    with pytest.raises(OptionError, match="much"):
        in_own_process(parse_bytes, "much")


def test_a_process_that_dies_is_named():
    with pytest.raises(OwnProcessError, match="raise_signal ended with -9"):
        in_own_process(signal.raise_signal, signal.SIGKILL)


def test_no_code_of_the_working_directory_is_run(tmp_path, monkeypatch):
    for name in ("numpy", "pickle", "json", "onnxruntime", "coordgen_rs"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    assert in_own_process(parse_bytes, "2K") == parse_bytes("2K")
    assert not (tmp_path / "executed").exists()
