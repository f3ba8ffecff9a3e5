"""The command and its surroundings: closed and odd streams, encodings, interruptions, no home.

Most need a process of their own. Nothing here asserts on time: an interruption comes at a place in
the code, not after a while.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import command_line
from checkpoints import ROOT
from command_line import MODULE, refused
from coordgen_rs.cli.main import main

PROMPT = ROOT / "models" / "prompts" / "rag.txt"


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded-draft", "fp32")


def shell(script, *arguments, **options):
    """Run a script whose "$@" is the command `coordgen` with arguments."""
    command = ["bash", "-c", script, "bash", *MODULE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=600, **options)


def answer(bundle, *more):
    return ("generate", "--model", bundle, "--max-new-tokens", 2, *more)


def test_a_closed_stdin_is_told_only_if_it_is_read(bundle):
    done = shell('"$@" <&-', *answer(bundle, "-"))
    assert done.returncode == 2
    assert done.stderr.startswith(b"coordgen: error: stdin is closed")
    assert done.stderr.count(b"\n") == 1
    assert shell('"$@" <&-', *answer(bundle, "--prompt-file", PROMPT)).returncode == 0
    imported = shell('"$@" <&-', "history", "import", bundle / "history")
    assert imported.returncode == 2
    assert imported.stderr.startswith(b"coordgen: error: stdin is closed")


@pytest.mark.parametrize(
    "arguments", [("--help",), ("--version",), ("info", "BUNDLE"), ("generate",)], ids=str
)
@pytest.mark.parametrize(
    ("where", "why"), [(">&-", b"it is closed"), (">/dev/full", b"No space left on device")]
)
def test_stdout_that_takes_nothing_is_an_error(bundle, arguments, where, why):
    words = [bundle if word == "BUNDLE" else word for word in arguments]
    if arguments == ("generate",):
        words = answer(bundle, "--prompt", "Hello")
    done = shell(f'"$@" {where}', *words)
    assert done.returncode == 2
    assert done.stderr == b"coordgen: error: stdout: " + why + b"\n"


def test_a_closed_stderr_loses_messages_and_nothing_else(bundle):
    done = shell('"$@" 2>&-', *answer(bundle, "--prompt-file", PROMPT))
    assert done.returncode == 0
    assert b"tokens_per_step" not in done.stdout
    assert shell('"$@" <&- >&- 2>&-', "info", "nowhere").returncode == 2
    assert shell('"$@" 2>/dev/full', "info", "nowhere").returncode == 2


def test_no_file_takes_the_place_of_a_closed_stream(bundle, tmp_path):
    script = '"$@" <&- >&- 2>&-'
    done = shell(script, "warm-up", bundle, PROMPT, "--out", tmp_path / "table")
    assert done.returncode == 0
    whole = command_line.coordgen("warm-up", bundle, PROMPT, "--out", tmp_path / "same")
    assert whole.returncode == 0
    assert (tmp_path / "table").read_bytes() == (tmp_path / "same").read_bytes()


@pytest.mark.parametrize("option", ["--prompt", "--stop", "--namespace"])
def test_an_argument_that_is_not_utf_8_is_named(bundle, option):
    more = () if option == "--prompt" else ("--prompt", "x")
    done = shell(f"\"$@\" {option} $'a\\xff'", *answer(bundle, *more))
    assert done.returncode == 2
    told = f"coordgen: error: {option} is not UTF-8: byte 0xff after 1 characters\n"
    assert done.stderr == told.encode()


def test_a_file_name_that_is_not_utf_8_is_one_like_any_other(bundle, tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.txt"
    with open(path, "w") as file:  # noqa: PTH123 (a name of bytes)
        file.write("Hello")
    done = shell(f"\"$@\" --prompt-file {tmp_path}/$'\\xff.txt'", *answer(bundle))
    assert done.returncode == 0
    done = shell("\"$@\" --prompt-file $'\\xff'", *answer(bundle))
    assert done.stderr == b"coordgen: error: \\udcff: No such file or directory\n"


def test_a_prompt_without_an_end_is_refused(bundle, monkeypatch, capsys):
    monkeypatch.setattr("coordgen_rs.cli.terminal.text.MOST_BYTES", 1_000_000)
    assert main(["generate", "--model", str(bundle), "--prompt-file", "/dev/zero"]) == 2
    told = "coordgen: error: /dev/zero is longer than 1,000,000 bytes\n"
    assert capsys.readouterr().err == told
    with Path("/dev/zero").open() as zeros:
        monkeypatch.setattr("sys.stdin", zeros)
        assert main(["generate", "--model", str(bundle), "-"]) == 2
    assert capsys.readouterr().err == told.replace("/dev/zero", "stdin")


def test_names_in_lines_that_are_printed_do_not_steer_the_terminal(bundle, tmp_path, coordgen):
    history = tmp_path / "re\x1b[31md\n"
    asked = answer(bundle, "--prompt", "a", "--history", history)
    made = coordgen(*asked, "--namespace", "\x1b[1mx")
    again = coordgen(*asked, "--history-max-tokens", 5)
    assert "warning: " in again.err
    cleared = coordgen("history", "clear", history)
    for done in (made, again, cleared):
        assert done.err.count("\n") <= 3
        assert "\x1b" not in done.err
    assert cleared.err.endswith("re\\x1b[31md : 1 requests cleared\n")


def test_what_lies_in_the_working_directory_is_not_run(bundle, tmp_path):
    for name in ("numpy", "onnxruntime", "signal"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('run')")
    done = command_line.coordgen("info", bundle, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_stdin_that_is_not_utf_8_is_told(bundle):
    done = shell('printf "ab\\377" | "$@"', *answer(bundle, "-"))
    assert done.returncode == 2
    assert done.stderr == b"coordgen: error: stdin is not UTF-8: byte 0xff at offset 2\n"


def test_a_byte_order_mark_is_no_part_of_the_prompt(bundle, tmp_path, coordgen, monkeypatch):
    marked, plain = tmp_path / "marked", tmp_path / "plain"
    marked.write_text("Who reads?\r\n", "utf-8-sig")
    plain.write_text("Who reads?\n", "utf-8")
    with marked.open() as piped:
        monkeypatch.setattr("sys.stdin", piped)
        typed = ("--prompt", "\ufeffWho reads?\n")
        given = (("-",), typed, ("--prompt-file", marked), ("--prompt-file", plain))
        said = [json.loads(coordgen(*answer(bundle, "--json", *one)).out) for one in given]
    assert len({(report["prompt_tokens"], report["text"]) for report in said}) == 1


def test_a_terminal_that_knows_only_ascii_is_written_to_in_ascii(bundle, tmp_path):
    prompt = tmp_path / "prompt"
    prompt.write_text("Grüße, 日本語.", "utf-8")
    known = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = command_line.coordgen(*answer(bundle, "--prompt-file", prompt), env=known)
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "Gr" in refused("info", tmp_path / "Grüße", env=known)


def test_text_that_an_encoding_lacks_is_written_as_escapes():
    code = (
        "from coordgen_rs.cli.terminal import streams; streams.make_streams_usable();"
        "print('é日 \\udcff', end=''); import sys; sys.stdout.flush()"
    )
    known = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=known, timeout=600)
    assert done.stdout == b"\\xe9\\u65e5 \\udcff"


def test_a_user_without_a_home_can_do_all_but_keep_results(bundle):
    code = (
        "import pwd, sys\n"
        "def getpwuid(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = getpwuid\n"
        f"sys.argv[1:] = {[str(word) for word in answer(bundle, '--prompt', 'x')]!r}\n"
        "from coordgen_rs.__main__ import main\n"
        "sys.exit(main())\n"
    )
    homeless = {name: os.environ[name] for name in os.environ if name in ("PATH", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=homeless, timeout=600
    )
    assert done.returncode == 0, done.stderr


INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
        return None

signal.signal(signal.SIGINT, {handler})
sys.meta_path.insert(0, Interrupting())
sys.argv = ["coordgen", "generate", "--model", "nowhere", "--prompt", "x"]
{start}
"""

AS_MODULE = "import runpy; runpy.run_module('coordgen_rs', run_name='__main__')"
AS_SCRIPT = "from coordgen_rs.__main__ import main; sys.exit(main())"


def interrupted(module, start, handler="signal.default_int_handler"):
    code = INTERRUPTED.format(module=module, start=start, handler=handler)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)


MODULES = ("typing", "numpy", "coordgen_rs._core", "coordgen_rs.cli.main", "onnxruntime")


@pytest.mark.parametrize(
    ("module", "start"),
    [
        *((module, AS_SCRIPT) for module in (*MODULES, "coordgen_rs.cli.terminal.streams")),
        *((module, AS_MODULE) for module in ("typing", "coordgen_rs.cli.terminal.streams")),
    ],
)
def test_an_interruption_while_loading_is_one_line_and_130(module, start):
    done = interrupted(module, start)
    assert done.returncode == 130, done.stderr
    assert done.stderr == "coordgen: error: interrupted\n"
    assert done.stdout == ""


def test_a_command_that_ignores_interruptions_goes_on():
    done = interrupted("numpy", AS_MODULE, "signal.SIG_IGN")
    assert done.returncode == 2
    assert "nowhere does not exist" in done.stderr


def test_the_exit_codes_are_documented(coordgen):
    shown = coordgen("help", "exit-codes").out.splitlines()[1:]
    codes = [line.split()[0] for line in shown if not line.startswith("   ")]
    assert codes == ["0", "1", "2", "3", "4", "130"]
