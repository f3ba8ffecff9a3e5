"""Ctrl-C in a benchmark is one line and exit code 130."""

import re

import pytest

from checkpoints import ROOT
from support.script import run_script

SCRIPTS = [
    path
    for path in sorted((ROOT / "benches").rglob("*.py"))
    if '__name__ == "__main__"' in path.read_text()
]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_benchmark_is_run_so_that_it_can_be_interrupted(path):
    assert re.search(r'if __name__ == "__main__":\n    run_script\(main\)\n', path.read_text())


def test_an_interrupted_benchmark_says_so_in_one_line(capsys):
    def main():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        run_script(main)
    assert ended.value.code == 130
    assert re.fullmatch(r".*: interrupted\n", capsys.readouterr().err)


@pytest.mark.parametrize("code", [None, 0, 3])
def test_a_benchmark_ends_with_what_its_main_returns(code):
    with pytest.raises(SystemExit) as ended:
        run_script(lambda: code)
    assert ended.value.code == code
