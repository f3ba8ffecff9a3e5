"""The docstrings of what `coordgen_rs` exports are complete: parameters and shapes.

What is raised is checked by ruff (DOC501), and the form of docstrings too (D).
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import coordgen_rs
from checkpoints import ROOT
from coordgen_rs import _core

PACKAGE = Path(coordgen_rs.__file__).parent
_SHAPE = re.compile(r"`\([a-z_0-9 ./,+]*,[^)]*\)")


class Documented(NamedTuple):
    """A function with all that is said about it, its class's docstring included."""

    name: str
    node: ast.FunctionDef
    text: str


def functions() -> Iterator[Documented]:
    """The public functions and methods of everything exported."""
    for name in coordgen_rs.__all__:
        node = definition(name)
        text = ast.get_docstring(node) or ""
        if isinstance(node, ast.FunctionDef):
            yield Documented(name, node, text)
            continue
        for method in node.body:
            if not isinstance(method, ast.FunctionDef) or is_overload(method):
                continue
            if method.name in ("__init__", "__new__"):
                yield Documented(name, method, text)
            elif not method.name.startswith("_"):
                said = ast.get_docstring(method) or ""
                yield Documented(f"{name}.{method.name}", method, said)


def definition(name: str) -> ast.FunctionDef | ast.ClassDef:
    """Where an exported name is written down: in its module, or in the stub of the core."""
    module = sys.modules[getattr(coordgen_rs, name).__module__]
    path = PACKAGE / "_core.pyi" if hasattr(_core, name) else Path(module.__file__)
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
    raise AssertionError(f"no {name} in {path}")


def is_overload(node: ast.FunctionDef) -> bool:
    """Whether it only says a type of the function that is documented behind it."""
    return any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)


def arguments(node: ast.FunctionDef) -> list[ast.arg]:
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [argument for argument in given if argument.arg not in ("self", "cls", "other")]


def is_array(annotation: ast.expr | None) -> bool:
    said = "" if annotation is None else ast.unparse(annotation)
    return bool(re.match(r"(NDArray|ArrayLike)", said))


each = pytest.mark.parametrize("documented", list(functions()), ids=lambda given: given.name)


@each
def test_every_parameter_is_told_about(documented):
    if "ame as in `" in documented.text:  # another function's, which it names
        return
    for argument in arguments(documented.node):
        assert re.search(rf"\b{argument.arg}\b", documented.text), argument.arg


@each
def test_every_array_has_its_shape(documented):
    arrays = [argument for argument in arguments(documented.node) if is_array(argument.annotation)]
    if "ame as in `" not in documented.text and (arrays or is_array(documented.node.returns)):
        assert _SHAPE.search(documented.text)


def test_no_example_decodes_step_by_step():
    texts = [PACKAGE / "__init__.py", ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for path in texts:
        assert not re.search(r"decode\((step|piece)", path.read_text("utf-8")), path
