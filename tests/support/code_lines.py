"""Lines of code by room, without blank lines, comments and docstrings.

In: the root of a checkout. Out: for each part of it (`python`, `src`, `tests`, `benches`), and each
folder right below one, how many lines and files it has. Tests of the crate count for none.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PARTS = {
    "python": ("python/coordgen_rs", ".py"),
    "src": ("src", ".rs"),
    "tests": ("tests", ".py"),
    "benches": ("benches", ".py"),
}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def rooms(root: Path) -> tuple[Counter[str], Counter[str]]:
    """Lines and files of each part, and of each folder below one, such as `python/server`."""
    lines, files = Counter[str](), Counter[str]()
    for part, (folder, ending) in PARTS.items():
        count = python_lines if ending == ".py" else rust_lines
        for path in sorted((root / folder).rglob(f"*{ending}")):
            inside = path.relative_to(root / folder).parts
            if ending == ".rs" and "tests" in (path.stem, *inside):
                continue
            for room in {part, "/".join((part, *inside[:-1][:1]))}:
                lines[room] += count(path.read_text("utf-8"))
                files[room] += 1
    return lines, files


def python_lines(text: str) -> int:
    """Lines of a module that hold code."""
    lines = map(str.strip, text.splitlines())
    held = {number for number, line in enumerate(lines, 1) if line and line[0] != "#"}
    nodes = [*ast.walk(ast.parse(text))]
    for node in nodes:
        if isinstance(node, ast.Constant | ast.JoinedStr):  # text has blank lines of its own
            held |= {*range(node.lineno, (node.end_lineno or 0) + 1)}
    for node in nodes:
        if isinstance(node, _DOCUMENTED):
            for statement in _docstrings(node.body):
                held -= {*range(statement.lineno, (statement.end_lineno or 0) + 1)}
    return len(held)


def _docstrings(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Strings that stand first, or below what they explain."""
    for before, statement in zip([None, *body], body, strict=False):
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if is_text and (before is None or isinstance(before, ast.Assign | ast.AnnAssign)):
            yield statement


def rust_lines(text: str) -> int:
    """Lines of a file that hold code, up to its tests."""
    count, is_comment = 0, False
    for line in map(str.strip, text.splitlines()):
        if line.startswith(("#[cfg(test)]", "#[cfg(all(test")):
            break
        is_comment = is_comment or line.startswith("/*")
        count += not is_comment and bool(line) and not line.startswith("//")
        is_comment = is_comment and "*/" not in line
    return count
