"""Reruns what README and docs measure and draw, and writes it in place: `make figures`.

In: documents. A measured table stands between `<!-- figures: NAME -->` and `<!-- /figures -->`,
below the command that prints it; a picture stands below `<!-- picture: NAME; command: .. -->`.
Markers may say `needs:` (files and bundles), `packages:`, and `tables:` (words of the titles of
those that are kept). Out: the documents with what the commands print now, and below it the commit
and the machine.

Commands run in `build/figures`. What a document makes by `coordgen export` or `> FILE` is made
there again, if it can be; anything else that is needed must be there, or in `build`. What is absent
is named, and the figures that need it stay as they are.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from coordgen_rs.loading.profile import machine_facts
from documents import DOCUMENTS, ROOT, typed

WORK = ROOT / "build" / "figures"

_MARKED = re.compile(r"<!-- (?P<kind>figures|picture): (?P<options>.+?) -->\n")
_END = "<!-- /figures -->"
_MAKES = re.compile(
    r"(?:(?:coordgen export|python benches/peers/quantize\.py) (?P<source>\S+)"
    r"|python benches/qwen_shape\.py) (?P<bundle>\S+)"
    r"|[^>]+> (?P<file>\S+)$"
)
_SHOWN_DIGITS = 7
_PEER = "Peer: "


class AbsentError(Exception):
    """Something that a command needs is not here."""


class FailedError(Exception):
    """A command failed, or printed no table."""


class Block(NamedTuple):
    """One place of a document that a command fills.

    Attributes:
        name: What `make figures ONLY=..` calls it.
        document: Where it stands.
        is_picture: Whether the command writes a file, instead of printing tables.
        command: As typed.
        needs: Names of files and bundles; for a picture, paths from the root.
        packages: Python packages.
        tables: Words of the titles of tables that are kept; none for all tables.
    """

    name: str
    document: Path
    is_picture: bool
    command: str
    needs: tuple[str, ...]
    packages: tuple[str, ...]
    tables: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Rerun all, or those that are named; 1 if a command failed, 2 for an unknown name."""
    parser = argparse.ArgumentParser(description="rerun the figures of README and docs")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these, default: all")
    parser.add_argument("--list", action="store_true", help="only list them, with their commands")
    options = parser.parse_args(arguments)
    blocks = [block for document in DOCUMENTS for block in blocks_of(document)]
    if unknown := set(options.names) - {block.name for block in blocks}:
        print(f"figures: no {sorted(unknown)[0]}; --list shows all names", file=sys.stderr)
        return 2
    chosen = [block for block in blocks if not options.names or block.name in options.names]
    if options.list:
        for block in chosen:
            where, command = os.path.relpath(block.document, ROOT), _in_a_line(block.command)
            print(f"{block.name} ({where}): {command}")
        return 0
    try:
        return _rerun(chosen)
    except KeyboardInterrupt:  # what was rewritten until now is whole
        return 130


def _rerun(blocks: Sequence[Block]) -> int:
    runner, told = Runner(), []
    for block in blocks:
        print(f"{block.name} ...", file=sys.stderr, flush=True)
        try:
            printed = runner.run(block)
            if not block.is_picture:
                rewrite(block, tables_of(printed, block.tables), runner.measured)
            told.append((block.name, "drawn" if block.is_picture else "rewritten"))
        except AbsentError as error:
            told.append((block.name, f"left as it is: {error}"))
        except FailedError as error:
            told.append((block.name, f"FAILED, left as it is: {error}"))
    for name, what in told:
        print(f"{name}: {what}")
    return int(any(what.startswith("FAILED") for _, what in told))


def blocks_of(document: Path) -> Iterator[Block]:
    """The blocks of a document, in order.

    Raises:
        ValueError: A marker is not well-formed, or stands below no command.
    """
    text = document.read_text("utf-8")
    for marker in _MARKED.finditer(text):
        name, *rest = (part.strip() for part in marker["options"].split(";"))
        options = dict(part.split(": ", 1) for part in rest)
        is_picture = marker["kind"] == "picture"
        above = [one.text for one in typed(text[: marker.start()], "") if one.language == "sh"]
        command = options.pop("command", None) if is_picture else (above or [None])[-1]
        if command is None:
            raise ValueError(f"{document.name}: no command for {name}")
        if not is_picture and _END not in text[marker.end() :].partition("<!-- figures")[0]:
            raise ValueError(f"{document.name}: no {_END} for {name}")
        words = {key: _words(options.pop(key, "")) for key in ("needs", "packages", "tables")}
        if options:
            raise ValueError(f"{document.name}: {name} has an unknown option {sorted(options)[0]}")
        yield Block(name, document, is_picture, command, **words)


def _words(listed: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in listed.split(",") if word.strip())


def tables_of(printed: str, wanted: Sequence[str] = ()) -> str:
    """The Markdown tables that a command printed; where they are several, with the line above each.

    Behind them stand the lines that say what engines of others were.

    Args:
        printed: Its output.
        wanted: Words of titles; tables whose title has none of them are left out.

    Raises:
        FailedError: There is no table, or none of a title.
    """
    parts: list[tuple[str, list[str]]] = []
    title, is_within = "", False
    for line in printed.splitlines():
        if line.startswith("|"):
            if not is_within:
                parts.append((title, []))
            parts[-1][1].append(line)
        elif line.strip():
            title = line.strip()
        is_within = line.startswith("|")
        title = "" if is_within else title
    missing = [word for word in wanted or ("",) if not any(word in title for title, _ in parts)]
    if missing:
        raise FailedError(f"it printed no table {missing[0]}".rstrip())
    kept = [part for part in parts if not wanted or any(word in part[0] for word in wanted)]
    if len(kept) == 1:  # the document itself says what it is
        kept = [("", kept[0][1])]
    tables = ["\n".join([*([title, ""] if title else []), *rows]) for title, rows in kept]
    peers = dict.fromkeys(line for line in printed.splitlines() if line.startswith(_PEER))
    return "\n\n".join([*tables, *peers])


def rewrite(block: Block, tables: str, measured: str) -> None:
    """Write the tables into the block's place in its document, and below them what was measured.

    Raises:
        FailedError: Somebody has changed the block since it was read.
    """
    try:
        is_same = block in blocks_of(block.document)
    except (OSError, ValueError):
        is_same = False
    if not is_same:
        raise FailedError(f"{block.document.name} was changed there meanwhile")
    text = block.document.read_text("utf-8")
    marker = next(found for found in _MARKED.finditer(text) if _name(found) == block.name)
    end = text.index(_END, marker.end())
    new = f"\n{tables}\n\nMeasured at {measured}.\n\n"
    beside = block.document.with_name(f".{block.document.name}.new")
    beside.write_text(text[: marker.end()] + new + text[end:], "utf-8")
    beside.replace(block.document)


def _name(marker: re.Match[str]) -> str:
    return marker["options"].partition(";")[0].strip()


class Runner:
    """Runs commands, each once, in a folder that has what documents take for granted.

    Attributes:
        measured: The commit and the machine, for the line below a table.
    """

    def __init__(self) -> None:
        self.measured = f"{commit()}, on {machine()}"
        self._printed: dict[str, str] = {}
        self._made: set[str] = set()
        WORK.mkdir(parents=True, exist_ok=True)
        scripts = (ROOT / "models").glob("*.py")  # models/README.md is read in models/
        folders = (ROOT / name for name in ("models", "benches", "tests", "docs"))
        for path in (*folders, *scripts):
            link = WORK / path.name
            if not link.is_symlink():
                link.symlink_to(path)

    def run(self, block: Block) -> str:
        """What the block's command prints.

        Raises:
            AbsentError: Something that it needs is absent.
            FailedError: It failed.
        """
        for package in block.packages:
            if find_spec(package) is None:
                raise AbsentError(f"needs the package {package}, which is not installed")
        makers = {name: made for path in DOCUMENTS for name, made in recipes(path)}
        makers |= dict(recipes(block.document))
        for name in block.needs:
            if not block.is_picture:
                self._provide(name, makers)
            elif not (ROOT / name).exists():
                raise AbsentError(f"needs {name}, which is not there")
        if block.command not in self._printed:
            where = ROOT if block.is_picture else WORK
            self._printed[block.command] = _output(block.command, where)
        return self._printed[block.command]

    def _provide(self, name: str, makers: Mapping[str, "Maker"]) -> None:
        place, given, maker = WORK / name, ROOT / "build" / name, makers.get(name)
        if place.is_symlink() and (place.readlink() == given or not place.exists()):
            place.unlink()  # of an earlier run, or it leads nowhere
        if name in self._made or place.is_symlink() or (place.exists() and maker is None):
            return
        try:
            if maker is None:
                raise AbsentError(f"needs {name}: put it into {os.path.relpath(WORK, ROOT)}")
            if maker.source is not None:
                self._provide(maker.source, makers)
        except AbsentError:
            if not given.exists():
                raise
            maker = None
        if place.is_dir():  # of an earlier run, and perhaps of an earlier commit
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        if maker is None:
            place.symlink_to(given)
            return
        _output(maker.command, WORK)
        self._made.add(name)


class Maker(NamedTuple):
    """A command that makes a file or a bundle.

    Attributes:
        command: As typed.
        source: What it reads, if that is not in the repository.
    """

    command: str
    source: str | None


def recipes(document: Path) -> Iterator[tuple[str, Maker]]:
    """What the commands of a document make, by name."""
    for one in typed(document.read_text("utf-8"), ""):
        made = _MAKES.match(_in_a_line(one.text))
        if one.language == "sh" and made is not None:
            source = made["source"]
            is_ours = source is None or (ROOT / source).exists()
            yield made["bundle"] or made["file"], Maker(one.text, None if is_ours else source)


def commit() -> str:
    """The commit of the checkout, and whether files other than documents were changed since."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    head = git("rev-parse", f"--short={_SHOWN_DIGITS}", "HEAD") or "an unknown commit"
    changed = git(
        "status", "--porcelain", "--untracked-files=no", "--", ".", ":!*.md", ":!docs/*.svg"
    )
    return f"{head}, with uncommitted changes" if changed else head


def machine() -> str:
    """The processor and how many of its cores are used, as a document names them."""
    facts = machine_facts()
    return f"{facts['cpu']}, {facts['cores']} cores"


def _in_a_line(command: str) -> str:
    return " ".join(command.replace("\\\n", " ").split())


def _output(command: str, where: Path) -> str:
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=where,
        env=os.environ | {"PATH": programs},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise FailedError(f"exit code {done.returncode} of {_in_a_line(command)}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
