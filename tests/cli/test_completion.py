"""`coordgen completion`: the scripts, in the shells that are for them."""

import shutil
import subprocess

import pytest

pytest.importorskip("shtab", reason="the extra completion is not installed")

from coordgen_rs.cli.commands.completion import SHELLS
from coordgen_rs.cli.main import main


@pytest.fixture
def script(capsys, tmp_path):
    """Writes the script for a shell."""

    def written(shell):
        assert main(["completion", shell]) == 0
        path = tmp_path / f"coordgen.{shell}"
        path.write_text(capsys.readouterr().out)
        return path

    return written


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_each_command(script, shell):
    text = script(shell).read_text()
    named = ("generate", "warm-up", "max-new-tokens", "json", "no-input-history")
    assert all(name in text for name in named)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_reads_the_script(script, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n", script(shell)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_fish_completes_commands_options_and_files(script, tmp_path):
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    path = script("fish")
    (tmp_path / "question.txt").write_text("Why?")

    def completed(line):
        command = ("fish", "--no-config", "-c", f"source {path}; complete -C '{line}'")
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
        return [line.split("\t")[0] for line in done.stdout.splitlines()]

    assert completed("coordgen wa") == ["warm-up"]
    assert completed("coordgen chat --no-in") == ["--no-input-history"]
    assert completed("coordgen generate --prompt-file ques") == ["question.txt"]
