"""Hundreds of command lines that cannot work: each ends with a clear line and an exit code.

In this process, by `main`, so that they are cheap: every option of every command with values that
it cannot have, and every path with what cannot be there. What needs a process of its own is in
`test_streams.py`.
"""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints import CHECKPOINTS
from coordgen_rs.cli.main import GROUPS, USES, main, make_parser
from coordgen_rs.cli.terminal.text import printable

EXIT_CODES = {0, 1, 2, 130}
NOWHERE = "nowhere"
VALID, READ, WRITTEN, REFUSED = json.loads(
    Path(__file__).with_name("hostile.json").read_text()
).values()
"""Arguments of each command that parse, but name nothing that is there; commands that read what
cannot be read, where a prompt may be prose, or write where nothing can be written; and command
lines that would ignore what they say, or never end, each with words of why it is refused."""

HOSTILE = [
    "",
    " ",
    "-1",
    "0",
    "nan",
    "inf",
    "1e400",
    "9" * 30,
    "x\udcff",
    "a,,b",
    "\u202e\n\x1b[2J",
]


def options_of(words: list[str]) -> Iterator[str]:
    """The options of a command that take a value, and its positional arguments by metavar."""
    parser = make_parser()
    for word in words:
        parser = parser.commands[word]
    for action in parser.declared:
        if action.nargs != 0 and action.option_strings:
            yield action.option_strings[-1]


TYPED = [(command, option) for command in VALID for option in options_of(command.split())]


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def said(capsys):
    """A function that runs a command line and returns its exit code and the line on stderr."""

    def run(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        told = capsys.readouterr().err
        assert code in EXIT_CODES, (arguments, told)
        assert "Traceback" not in told, arguments
        if code == 2:
            assert told.startswith("coordgen: error: "), (arguments, told)
            assert told.count("\n") == 1, (arguments, told)
            assert told.isprintable() or told[:-1].isprintable(), (arguments, told)
            assert len(told) < 1_200, (arguments, told)
        return code, told

    return run


@pytest.mark.parametrize(("command", "option"), TYPED, ids=map(" ".join, TYPED))
def test_no_value_of_an_option_gets_by_unchecked(said, tmp_path, monkeypatch, command, option):
    monkeypatch.chdir(tmp_path)
    for value in HOSTILE:
        code, told = said(*command.split(), *VALID[command].split(), f"{option}={value}")
        assert code == 2
        names = {option, option[2:].replace("-", "_"), option[2:].replace("-", " "), NOWHERE}
        names |= {printable(" ".join(value.split())), repr(value)[1:-1]}
        assert any(name in told for name in names), (value, told)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", VALID)
def test_what_is_missing_unknown_or_too_much_is_told_and_help_has_examples(
    said, tmp_path, monkeypatch, capsys, command
):
    monkeypatch.chdir(tmp_path)
    words, valid = command.split(), VALID[command].split()
    assert "--no-such-option" in said(*words, *valid, "--no-such-option")[1]
    assert said(*words)[0] == (0 if command == "chat" else 2), "chat lists the models here"
    assert NOWHERE in said(*words, *valid)[1]
    assert "is empty" in said(*words, *(word.replace("nowhere", "") for word in valid))[1] or (
        "/" in VALID[command]
    )
    capsys.readouterr()
    assert main([*words, "--help"]) == 0
    assert f"coordgen {command}" in capsys.readouterr().out.split("example")[-1]


def test_without_a_command_the_first_steps_are_shown(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith(USES)
    words = [line.split()[1] for line in out.splitlines() if line.startswith("  coordgen ")]
    assert words == ["generate", "export", "doctor"]


def test_an_unknown_command_is_told(said):
    assert said("decode") == (2, "coordgen: error: no command 'decode'; see coordgen --help\n")
    assert "no command 'genrate': did you mean generate?" in said("genrate", "--model", "b")[1]
    assert "did you mean export?" in said("history", "exprot", "a")[1]
    assert said("--version")[0] == said("-v")[0] == 0


def test_an_unknown_option_is_told_before_what_is_missing_or_stands_alone(said):
    asked = ("generate", "--model", "b", "--prompt", "x", "--tokens", "5")
    told = "coordgen: error: no option --tokens: did you mean --max-new-tokens?\n"
    assert said(*asked) == (2, told)
    assert "no option --verison: did you mean --version?" in said("--verison")[1]
    assert "did you mean --max-new-tokens?" in said("generate", "--max_new_tokens", "5")[1]
    assert "no option --out; see" in said("export", "--out", "x")[1], "not the nearest of all"
    assert said("chat", "--model", "b")[1].endswith(": leave it out, as in coordgen chat BUNDLE\n")
    assert "leave it out, as in coordgen export CHECKPOINT" in said("export", "--model")[1]
    assert "no option --bundle: did you mean --model?" in said("generate", "--bundle", "b")[1]
    assert "no option --frobnicate; see coordgen plan --help" in said("plan", "--frobnicate=3")[1]
    assert "no option" not in said("generate", "--model", "b", "--", "--tokens")[1]


def test_help_shows_every_command_in_its_group_on_one_screen(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    named = [name for commands in GROUPS.values() for name in commands]
    assert sorted(named) == sorted(make_parser().commands)
    assert all(re.search(rf"  {name} ", " \n".join(lines)) for name in named)


@pytest.mark.parametrize("command", ["generate", "chat", "serve"])
def test_help_of_a_command_shows_the_usual_options_first_and_no_long_usage(capsys, command):
    assert main([command, "--help"]) == 0
    usage, _, rest = capsys.readouterr().out.partition("\n\n")
    assert usage.startswith(f"usage: coordgen {command} [options] [")
    assert "\n" not in usage
    groups = re.findall(r"^(\w[\w ]*):$", rest, re.MULTILINE)
    assert groups.index("options") < groups.index("drafts") < groups.index("device")
    usual = rest[rest.index("\noptions:") :].split("\n\n")[0]
    assert usual.count("\n  -") <= 13


def test_help_is_a_command_too(capsys):
    assert main(["help"]) == 0
    assert "COMMAND ..." in capsys.readouterr().out
    for words in (["help", "generate"], ["help", "help", "generate"]):
        assert main(words) == 0
        assert "usage: coordgen generate" in capsys.readouterr().out
    assert main(["help", "help"]) == 0
    assert "COMMAND ..." in capsys.readouterr().out


def test_a_request_without_a_prompt_is_told_how_to_give_one(said):
    assert "no prompt: give --prompt TEXT" in said("generate", "--model", "b")[1]


def test_a_word_too_many_and_a_bundle_that_is_missing_are_told(said):
    given = (["b", "Hi", "again"], ["--model", "b", "Hi", "-"], ["b", "Hi", "--prompt", "Hi"])
    for words in given:
        code, told = said("generate", *words)
        assert code == 2
        assert "is a word too many: give a bundle and a prompt" in told
    for words in (["--prompt", "Hi"], ["-"]):
        assert "no model: give --model BUNDLE, or the bundle first" in said("generate", *words)[1]


def test_threads_are_named_as_they_are_typed(said):
    for command in (["generate", "b", "Hi"], ["check", "b"], ["serve", "b"]):
        code, told = said(*command, "--threads", "100000")
        assert code == 2
        assert told.startswith("coordgen: error: --threads is 100000, but must be at most ")


def test_a_mistake_in_a_command_of_the_history_names_its_own_help(said):
    assert "see coordgen history export --help" in said("history", "export", "a", "b")[1]


@pytest.fixture(scope="module")
def place(bundle_of, tmp_path_factory):
    """A folder with things that are not what an argument wants, by what they are."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "directory").mkdir()
    (folder / "empty").write_bytes(b"")
    (folder / "binary").write_bytes(b"\xff\xfe\x00\x80" * 40)
    (folder / "null").write_text("null\n")
    (folder / "prose").write_text("This is no JSON.\n")
    (folder / "numbers").write_text('{"task": 3, "prompt": ["x"], "id": {}, "output": null}\n')
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("gone/away")
    (folder / "tokenizer.json").symlink_to(CHECKPOINTS["embedded-draft"] / "tokenizer.json")
    record = {"task": "rag", "prompt": "What?", "id": "1", "output": "That."}
    (folder / "records.jsonl").write_text(json.dumps(record) + "\n")
    (folder / "model.gguf").touch()  # looks like a model until it is opened
    (folder / "malformed.jinja").write_text("{% if %}")
    (folder / "checkpoint").symlink_to(CHECKPOINTS["embedded-draft"])
    (folder / "bundle").symlink_to(bundle_of("embedded-draft", "fp32"))
    return folder


KINDS = ["absent", "directory", "empty", "binary", "null", "prose", "loop", "dangling"]
KINDS += ["empty/below", "n" * 300, "x\udcff"]

FINE = {("--prompt-file", "null"), ("--prompt-file", "prose"), ("--prompt-file", "empty")}


@pytest.mark.parametrize("line", READ)
def test_what_cannot_be_read_is_named(said, place, monkeypatch, line):
    monkeypatch.chdir(place)
    option = line.split()[-2]
    for kind in KINDS:
        if (option, kind) in FINE:
            continue
        before = listed(place)
        code, told = said(*(word.format(kind) for word in line.split()))
        assert code == 2, (kind, told)
        shown = re.escape(kind[:40]).replace("\udcff", r"(\\udcff|\\xff)")
        assert re.search(shown, told), (kind, told)
        assert listed(place) == before


UNWRITABLE = [
    (line, kind)
    for kind in ("directory", "gone/below", "empty/below", "loop/below")
    for line in WRITTEN
    # An export uses an empty directory, and makes a missing one.
    if not (line.startswith("export") and kind in ("directory", "gone/below"))
]


@pytest.mark.parametrize(("line", "kind"), UNWRITABLE)
def test_where_nothing_can_be_written_is_named_before_anything_is_done(
    said, place, monkeypatch, line, kind
):
    monkeypatch.chdir(place)

    def never(*_, **__):
        raise AssertionError("the work has begun")

    monkeypatch.setattr("coordgen_rs.lab.bench.command.Workbench.open", never)
    monkeypatch.setattr("coordgen_rs.lab.loads.profile.measure", never)
    monkeypatch.setattr("coordgen_rs.lab.warm_up.open_session", never)
    before = listed(place)
    code, told = said(*line.format(kind).split())
    assert code == 2
    assert kind.split("/")[0] in told
    assert listed(place) == before


@pytest.mark.parametrize(("line", "named"), REFUSED, ids=[line for line, _ in REFUSED])
def test_what_would_be_ignored_or_never_end_is_refused(said, place, monkeypatch, line, named):
    monkeypatch.delenv("COORDGEN_API_KEY", raising=False)
    monkeypatch.chdir(place)
    before = listed(place)
    code, told = said(*shlex.split(line))
    assert code == 2
    assert named in told
    assert listed(place) == before


def test_a_measurement_that_cannot_be_written_is_kept_elsewhere(said, place, monkeypatch, tmp_path):
    monkeypatch.chdir(place)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    code, told = said(
        "bench", "bundle", "--sections", "draft-length", "--repeats", 1, "--json", "/dev/full"
    )
    assert code == 2
    kept = re.search(r"/dev/full: No space left on device; the result is in (\S+) instead", told)
    assert json.loads(open(kept[1]).read())["is_complete"]  # noqa: PTH123, SIM115
