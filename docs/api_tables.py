"""The tables of `python-api.md`: what each name is, for readers of the page as it is.

In: the page, in which `<!-- reference` blocks hold what mkdocstrings writes out on the site, and
GitHub does not show. Out: above each of them a table of its names with the first sentence of their
docstrings. `python docs/api_tables.py` rewrites the tables.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "python-api.md"
REFERENCE = re.compile(r"^<!-- reference\n(?P<written>.*?)^-->\n", re.MULTILINE | re.DOTALL)
_WITH_TABLE = re.compile(r"(?:(?:^\|[^\n]*\n)+\n)?" + REFERENCE.pattern, re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"^::: (?P<path>\S+)\n(?P<options>(?: .*\n)*)", re.MULTILINE)
_MEMBERS = re.compile(r"members: \[(.*?)\]")


def with_tables(page: str) -> str:
    """The page with the tables that its reference blocks ask for."""

    def written(block: re.Match[str]) -> str:
        rows = "".join(f"| {name} | {about} |\n" for name, about in names(block["written"]))
        return f"| name | what it is |\n|---|---|\n{rows}\n<!-- reference\n{block['written']}-->\n"

    return _WITH_TABLE.sub(written, page)


def written_out(page: str) -> str:
    """The page as the site wants it: the reference blocks are no comments there."""
    return REFERENCE.sub(lambda block: block["written"], page)


def names(written: str) -> Iterator[tuple[str, str]]:
    """Each name that a reference block documents, as a link to its file, and what it is."""
    for directive in _DIRECTIVE.finditer(written):
        path, members = directive["path"], _MEMBERS.search(directive["options"])
        module, _, name = path.rpartition(".")
        if members:
            module, listed = path, members[1].split(", ")
        elif (_file_of(path)).exists():  # a module, with all that is public
            module, listed = path, [name for name in _definitions(path) if name[0] != "_"]
        else:
            listed = [name]
        for one in listed:
            file = _file_of(module).relative_to(ROOT)
            yield f"[`{one}`](../{file})", _about(module, one)


def _about(module: str, name: str) -> str:
    """The first sentence of a docstring; raises KeyError where there is no such name."""
    first = (ast.get_docstring(_definitions(module)[name]) or "").partition("\n\n")[0]
    return " ".join(first.split()).replace("|", "\\|")


def _file_of(module: str) -> Path:
    path = ROOT / "python" / Path(*module.split("."))
    if path.is_dir():
        return path / "__init__.py"
    return path.with_suffix(".pyi" if module.endswith("._core") else ".py")


@cache
def _definitions(module: str) -> dict[str, ast.ClassDef | ast.FunctionDef]:
    tree = ast.parse(_file_of(module).read_text("utf-8"))
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {node.name: node for node in tree.body if isinstance(node, kinds)}


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text("utf-8")), "utf-8")
