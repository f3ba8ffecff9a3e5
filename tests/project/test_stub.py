"""What `help` says of the core is what its stub says, and the package gives what its own says."""

import ast
import inspect
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest

import coordgen_rs
from coordgen_rs import _core

STUB = ast.parse(Path(coordgen_rs.__file__).with_name("_core.pyi").read_text("utf-8"))


def described(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, str | None]]:
    """Public classes, their methods and functions, with their docstrings."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            name = prefix + node.name
            if isinstance(node, ast.FunctionDef) and any(map(is_setter, node.decorator_list)):
                continue
            yield name, ast.get_docstring(node)
            if isinstance(node, ast.ClassDef):
                yield from described(node.body, f"{name}.")


def is_setter(decorator: ast.expr) -> bool:
    """Whether a method sets what another of its name, which says what it is, gets."""
    return isinstance(decorator, ast.Attribute) and decorator.attr == "setter"


DESCRIBED = dict(described(STUB.body))


def test_all_public_classes_and_functions_are_described() -> None:
    public = {name for name in _core.__all__ if callable(getattr(_core, name))}
    assert public <= DESCRIBED.keys()


def test_help_of_the_module_says_what_the_stub_says() -> None:
    assert inspect.getdoc(_core) == ast.get_docstring(STUB)


@pytest.mark.parametrize("name", DESCRIBED)
def test_help_says_what_the_stub_says(name: str) -> None:
    assert inspect.getdoc(attrgetter(name)(_core)) == DESCRIBED[name]


def test_the_package_gives_what_its_stub_says() -> None:
    stub = ast.parse(Path(coordgen_rs.__file__).with_suffix(".pyi").read_text("utf-8"))
    told = {
        name.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    given = coordgen_rs._MODULES.items()
    assert told == {name: f"coordgen_rs.{module}" for name, module in given}
    names = next(node.value for node in stub.body if isinstance(node, ast.Assign))
    assert {*ast.literal_eval(names)} == {*coordgen_rs.__all__}
