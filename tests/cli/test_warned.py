"""Warnings are told as errors are: in one line that any terminal can show."""

import warnings

from coordgen_rs.cli.terminal.warned import warnings_told
from coordgen_rs.errors import LeftoverWarning


def test_a_warning_is_one_line_whatever_files_are_called(capsys):
    with warnings_told():
        warnings.warn(LeftoverWarning("a\nfile\x1b[31m"), stacklevel=1)
    told = capsys.readouterr().err
    assert told.startswith("coordgen: warning: a file")
    assert "\x1b" not in told
    assert told.count("\n") == 1
