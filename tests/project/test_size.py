"""The project stays small: code by room beside its budgets, folders that fit a glance, no circles.

A room that is over its budget has a reason beside it, and a bound that it does not pass.
"""

import ast
import subprocess
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import code_lines
from documents import ROOT

PACKAGE = ROOT / "python" / "coordgen_rs"


class Budget(NamedTuple):
    """Most lines of code; where there are more: at most how many, and why."""

    lines: int
    bound: int = 0
    reason: str = ""


_DENSE = "what is left is mostly a behaviour a line"
BUDGETS = {
    "python": Budget(31_000, 40_960, "the sum of what is over below"),
    "python/adapters": Budget(1_000, 1_210, "seven engines, whose interfaces share little"),
    "python/bundle": Budget(800, 910, "a check of each field of the manifest"),
    "python/cli": Budget(1_900, 2_830, "the commands of histories, and the chat's line editor"),
    "python/convert": Budget(6_600, 8_180, "22 families, two containers, two exporters"),
    "python/errors": Budget(200, 550, "the checks of arguments and options, JSON from outside"),
    "python/formats": Budget(2_200, 2_280, "six forms of Genie's folders"),
    "python/generation": Budget(1_150, 1_230, "the papers' methods as published, beside ours"),
    "python/lab": Budget(4_500, 7_825, "each table and figure of three papers, a simulated device"),
    "python/loading": Budget(750, 1_260, "self-test, measured costs and conversions"),
    "python/model": Budget(1_300, 1_460, "the engine's records and the streams"),
    "python/runtime": Budget(3_000),
    "python/server": Budget(4_200, 5_740, "four dialects, eight formats of calls, the guard"),
    "python/store": Budget(1_900, 2_725, "threads that work in the background stand here, too"),
    "python/text": Budget(1_500, 1_985, "schemas are checked and rewritten for llguidance"),
    "src": Budget(24_800, 26_400, "the template engine, 980 lines; three papers as published"),
    "tests": Budget(34_000, 44_900, "as many behaviours are held as before"),
    "benches": Budget(5_000, 6_850, "a documented command each"),
}
MOST_FILES = 275
"""Of the package."""
MOST_ENTRIES = {"python": 14, "src": 16, "tests": 14}
TOPS = {"python/coordgen_rs": 20, "src": 20}
"""Folders that show more: the tops, where somebody looks first."""
LISTS = ("tests/support", "tests/exact/recorded", "tests/text/templates")
"""Folders that are searched, not looked at."""


def tracked(*folders: str) -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z", *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [Path(name) for name in done.stdout.split("\0") if name]


def test_rooms_keep_to_their_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    lines, files = code_lines.rooms(ROOT)
    with capsys.disabled():
        for room, most in BUDGETS.items():
            print(
                f"\n{room:18}{lines[room]:7} lines of {most.lines:6}{files[room]:5} files", end=""
            )
    over = {room for room, most in BUDGETS.items() if lines[room] > (most.bound or most.lines)}
    assert over == set()
    assert all(most.reason for most in BUDGETS.values() if most.bound)
    assert {room for room in lines if room.startswith("python/")} <= BUDGETS.keys() | {"python"}
    assert files["python"] <= MOST_FILES


def test_a_folder_fits_a_glance() -> None:
    entries: dict[str, set[str]] = {}
    for path in tracked(*MOST_ENTRIES):
        for one in (path, *path.parents):
            entries.setdefault(str(one.parent), set()).add(one.name)
    most = {name: TOPS.get(name, MOST_ENTRIES.get(name.split("/")[0], 99)) for name in entries}
    most |= {name: len(entries[name]) for name in entries if name.startswith(LISTS)}
    assert {name: len(found) for name, found in entries.items() if len(found) > most[name]} == {}


def test_no_files_import_each_other() -> None:
    modules = {path: _module(path) for path in PACKAGE.rglob("*.py")}
    names = {*modules.values()}
    graph = {name: set(_imports(path, names)) - {name} for path, name in modules.items()}
    graph.pop(PACKAGE.name)  # it hands all on, by name
    assert not [name for name, below in graph.items() if PACKAGE.name in below]
    try:
        assert {*TopologicalSorter(graph).static_order()} == names - {PACKAGE.name}
    except CycleError as error:
        pytest.fail(f"files import each other: {error.args[1]}")


def _module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def _imports(path: Path, names: set[str]) -> Iterator[str]:
    """Our modules that a file imports, also for types alone, or within a function."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module in names:
            for one in node.names:
                inner = f"{node.module}.{one.name}"
                yield inner if inner in names else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in names)
