"""The documents and what is typed in them: commands, Python examples and names of options.

In: a Markdown file. Out: its fenced `sh` and `python` blocks in order, a command at a time, and
what is wrong with them as far as it can be told without running them: unknown commands, options.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from functools import cache
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from checkpoints import ROOT
from coordgen_rs.cli.main import make_parser

DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "models").glob("*.md")),
    *sorted((ROOT / "benches").rglob("*.md")),
]

SHELL, PYTHON = ("sh", "bash", "console"), ("python", "py")
"""What the languages of blocks are called that are commands, or examples."""

_FENCED = re.compile(r"^```(?P<language>\w*)\n(?P<content>.*?)^```$", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^ *(```|~~~).*$", re.MULTILINE)
_SPAN = re.compile(r"`(coordgen [a-z][^`]*)`")
_BETWEEN = {"|", "||", "&", "&&", ";"}
_LIMIT_S = 300
_REDIRECTION = {"<", ">", ">>"}


class Block(NamedTuple):
    """A fenced block of a document, whatever is in it; or what is to be typed of one.

    Attributes:
        place: Document and line, for messages.
        language: The first word behind the fence; empty where there is none. Of what is to be
            typed, a shell command or the lines of an example, "sh" or "python".
        text: What is between the fences.
    """

    place: str
    language: str
    text: str


def blocks(text: str, name: str) -> Iterator[Block]:
    """The fenced blocks of a document, in order.

    Raises:
        ValueError: A fence is not closed, or stands where this reader does not look for it.
    """
    for block in _FENCED.finditer(text):
        line = text.count("\n", 0, block.start()) + 2
        yield Block(f"{name}:{line}", block["language"], block["content"])
    left = _FENCE.search(_FENCED.sub("", text))
    if left:
        raise ValueError(f"{name}: what is {left[0].strip()!r}? Fences are ``` at the margin")


def typed(text: str, name: str) -> Iterator[Block]:
    """The commands and examples of a document, in order."""
    for block in blocks(text, name):
        document, _, line = block.place.rpartition(":")
        if block.language in PYTHON:
            yield Block(block.place, "python", block.text)
        elif block.language in SHELL:
            for offset, command in _commands(block.text):
                yield Block(f"{document}:{int(line) + offset}", "sh", command)


def _commands(content: str) -> Iterator[tuple[int, str]]:
    """Commands with their lines; one goes on behind a backslash and within quotes."""
    begun: list[str] = []
    for number, line in enumerate(content.splitlines()):
        begun.append(line)
        command = "\n".join(begun)
        if line.endswith("\\") or not _is_whole(command):
            continue
        if _words(command):
            yield number + 1 - len(begun), command
        begun = []
    assert not begun, f"a command that does not end: {begun}"


def _is_whole(command: str) -> bool:
    try:
        _words(command)
    except ValueError:
        return False
    return True


def _words(command: str) -> list[str]:
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def run(command: Block, folder: Path) -> str:
    """What a command prints in a shell, or an example in Python; it must succeed."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if command.language == "sh":
        words = ["bash", "-euo", "pipefail", "-c", command.text]
    else:
        words = [sys.executable, "-c", command.text]
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=_LIMIT_S
    )
    assert done.returncode == 0, f"{command.place}: {words[-1]}\n{done.stdout[-500:]}{done.stderr}"
    return done.stdout


def simple_commands(command: str) -> Iterator[list[str]]:
    """The words of each program's call in a command, redirections left out."""
    call: list[str] = []
    words = iter(_words(command))
    for word in words:
        if word in _BETWEEN:
            yield call
            call = []
        elif word in _REDIRECTION:
            next(words)
        else:
            call.append(word)
    yield call


def spans(text: str) -> Iterator[list[str]]:
    """The words of each `coordgen ..` that the running text names."""
    prose = _FENCED.sub("", text)
    return (shlex.split(span.group(1).replace("\n", " ")) for span in _SPAN.finditer(prose))


def mistakes(text: str, name: str) -> list[str]:
    """What no program would take of what a document says, a line each; nothing is run for real."""
    found = [
        f"{command.place}: {mistake}"
        for command in typed(text, name)
        if command.language == "sh"
        for call in simple_commands(command.text)
        if (mistake := _mistake(call)) is not None
    ]
    unknown = ((words, unknown_options(words)) for words in spans(text))
    return found + [f"{name}: `{' '.join(words)}`: {what}" for words, what in unknown if what]


def _mistake(call: list[str]) -> str | None:
    program, *arguments = call
    if program == "coordgen":
        return parse_error(arguments)
    if program == "make":
        return _make_error(arguments)
    if program == "cargo" and "--bench" in arguments:
        name = arguments[arguments.index("--bench") + 1]
        return None if (ROOT / "benches" / f"{name}.rs").exists() else f"no bench {name}"
    if program == "python" and arguments[0].endswith(".py"):
        return _script_mistake(*arguments)
    return (
        None
        if program in ("pip", "cargo", "python", "cat", "head", "tee", "curl", "cc")
        else f"what is {program}?"
    )


def parse_error(arguments: list[str]) -> str | None:
    """What the real parser of `coordgen` says against the arguments."""
    said = StringIO()
    try:
        with redirect_stderr(said):
            make_parser().parse_args(arguments)
    except SystemExit:
        return said.getvalue().splitlines()[-1]
    return None


def unknown_options(words: list[str]) -> str | None:
    """What a `coordgen ..` that need not be complete names and its parser does not know."""
    parser = make_parser()
    for word in words[1:]:
        if word.startswith("--"):
            option = word.partition("=")[0]
            if option not in parser.long_options():
                return f"no option {option}"
        else:
            parser = parser.commands.get(word, parser)
    if parser.prog == "coordgen":
        return f"no command {words[1]}"
    return None


@cache
def _no_rule(targets: tuple[str, ...]) -> str | None:
    command = ["make", "--dry-run", "-C", str(ROOT), *targets]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def _make_error(arguments: list[str]) -> str | None:
    """What `make` says against the targets, of which it builds none."""
    if "-C" in arguments:  # a document is read in its own folder, the Makefile is in the root
        place = arguments.index("-C")
        arguments = arguments[:place] + arguments[place + 2 :]
    return _no_rule(tuple(arguments))


def _script_mistake(script: str, *arguments: str) -> str | None:
    """Options that the help of one of our scripts does not show."""
    places = [path for folder in ("", "models") if (path := ROOT / folder / script).exists()]
    if not places:
        return f"no {script}"
    options = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    if not options:
        return None
    before = [word for word in arguments if re.fullmatch("[a-z]+", word)]
    shown = _help(places[0], *before) + _help(places[0])
    missing = sorted(option for option in options if not re.search(rf"{option}\b", shown))
    return f"{script} has no {missing[0]}" if missing else None


@cache
def _help(script: Path, *words: str) -> str:
    command = [sys.executable, script, *words, "--help"]
    return subprocess.run(command, capture_output=True, text=True, timeout=600).stdout
