"""The environment of chat templates: Jinja as Hugging Face runs it, in a sandbox with limits.

In: the source of a template, which strangers wrote. Out: a compiled template whose rendering ends,
and takes no more memory than its budget (`jinja_budget.py`); what would go further raises
`jinja2.TemplateError`. It calls only what has a rule (`jinja_rules.py`), and counts what is
made. Needs the extra `chat`. It knows neither messages nor bundles.

The same names, tags and filters as `transformers.utils.chat_template_utils` (5.23).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import TemplateError, Undefined, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Joiner, Namespace

from coordgen_rs.text.jinja_budget import (
    ITEM_CHARS,
    Budget,
    check_length,
    checked,
    length_as_text,
    own_size,
)
from coordgen_rs.text.jinja_formats import check_percent, safe_format
from coordgen_rs.text.jinja_rules import FILTERS, LOOK_UPS, Rule, rule_of

MOST_SOURCE_CHARS = 1 << 18
"""Longest source of a template: the longest that is known has a tenth of it."""

_FEW = 100
_MOST_ODD_KEYS = 10_000
"""Keys of a dict that are not text: there are numbers that all go to the same place in it."""


class ChatSandbox(ImmutableSandboxedEnvironment):
    """Jinja for chat templates; one rendering at a time in a thread.

    Attributes:
        budget: The rendering's budget; to be restarted before each rendering and compilation.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            optimized=False,  # what is computed while compiling stays for good
            finalize=self.shown,
        )
        self.budget = Budget()
        self.concat = self.joined  # type: ignore[method-assign]
        known = self.filters | {"tojson": _to_json, "join": self._join}
        self.filters = {
            name: self._limited(name, known[name], rule) for name, rule in FILTERS.items()
        }
        self.filters["_counted"] = self._counted
        tests: Any = self.tests
        self.tests = {name: self._timed(function) for name, function in tests.items()}
        del self.globals["lipsum"]  # pages of nonsense, in a time of its own
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _Dict(),
            "namespace": _Namespace,
        }

    def joined(self, parts: Iterable[Any]) -> str:
        """The parts as one text.

        Raises:
            TemplateError: It would be too long.
        """
        return self._joined("", parts)

    def held(self, value: Any) -> Any:
        """A list, tuple, dict or part that the template has made.

        Raises:
            TemplateError: It would be too long as a text.
        """
        self.budget.make(own_size(value))
        return checked(value)

    def shown(self, value: Any) -> Any:
        """A value that is about to become text.

        Raises:
            TemplateError: It would be too long.
        """
        length = len(value) if isinstance(value, str) else length_as_text(value, is_shown=True)
        self.budget.make(length)
        return value

    def compared(self, value: Any) -> Any:
        """What a comparison says; raises TemplateError when time is up."""
        self.budget.spend()
        return value

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call what the template calls; its result is not too long.

        Raises:
            TemplateError: It does too much.
            SecurityError: It may not be called.
        """
        self.budget.spend()
        if isinstance(obj, Undefined | Macro | BlockReference | LoopContext):
            return super().call(context, obj, *args, **kwargs)
        # `format` of a text comes wrapped by Jinja's sandbox.
        method = getattr(obj, "__wrapped__", obj)
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        rule = rule_of(owner, name)
        if rule is not None:
            rule(owner, [*args, *kwargs.values()])
            if name == "join":
                return self._joined(owner, *args)
        elif not self._is_own(obj, owner):
            raise SecurityError(f"{name or type(obj).__name__!r:.60} cannot be called")
        made = super().call(context, obj, *args, **kwargs)
        return checked(made) if name in LOOK_UPS else self._made(made)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute what an operator says; numbers and texts stay within bounds.

        Raises:
            TemplateError: They do not.
        """
        self.budget.spend()
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, Sized) and isinstance(other, int):
                    check_length(own_size(one) * max(other, 0))
        elif operator == "+":
            check_length(own_size(left) + own_size(right))
        elif operator == "%" and isinstance(left, str):
            check_percent(left, right)
        elif isinstance(left, Sized) and not isinstance(left, Undefined):
            raise TemplateError(f"{operator} is for numbers")
        checked(left), checked(right)
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            checked(1 << min(left.bit_length() * max(right, 0), 1 << 20))
        return self._made(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`format` or `format_map` of a text as what counts what it makes; None for all else."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        return safe_format(self, self.budget, value, is_map=value.__name__ == "format_map")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse, and let each loop count its rounds."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            counted = nodes.Filter(loop.iter, "_counted", [], [], None, None)
            loop.iter = counted.set_lineno(loop.lineno).set_environment(self)
        for written in tree.find_all(nodes.Dict):
            _check_keys([0] * len(written.items))
        return tree

    def _is_own(self, obj: Any, owner: Any) -> bool:
        """Whether it is one of the functions that are offered here."""
        if isinstance(owner, _Dict | Extension):
            return True
        return isinstance(obj, Joiner) or any(obj is own for own in self.globals.values())

    def _made(self, value: Any) -> Any:
        if isinstance(value, Iterator) and not isinstance(value, _Counted):
            return _Counted(value, self.budget)
        self.budget.make(own_size(value))
        return checked(value)

    def _counted(self, items: Any) -> Any:
        if isinstance(items, Sized):
            self.budget.spend(len(items))
            return items
        return _Counted(items, self.budget)

    def _joined(self, separator: Any, parts: Iterable[Any]) -> str:
        texts, length = [], 0
        for part in parts:
            if not isinstance(part, str):
                check_length(length_as_text(part, is_shown=True))
                part = str(part)
            texts.append(part)
            length += len(part) + len(separator)
            check_length(length)
        self.budget.make(length)
        made: str = separator.join(texts)
        return made

    def _join(self, value: Any, d: Any = "", attribute: str | int | None = None) -> str:
        """Jinja's filter `join`, which checks what it joins."""
        parts = value
        if attribute is not None:
            parts = _Counted(map(make_attrgetter(self, attribute), value), self.budget)
        return self._joined(str(d), parts)

    def _limited(self, name: str, function: Callable[..., Any], rule: Rule) -> Callable[..., Any]:
        @wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            self.budget.spend()
            given = args[1:] if hasattr(function, "jinja_pass_arg") else args
            if given:
                rule(given[0], [*given[1:], *kwargs.values()])
            made = function(*args, **kwargs)
            return checked(made) if name in LOOK_UPS else self._made(made)

        return limited

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.budget.spend()
            return function(*args, **kwargs)

        return timed


class _Counted(Iterator[Any]):
    """The items of a generator, each of them counted; only so many inside each other."""

    def __init__(self, items: Iterable[Any], budget: Budget) -> None:
        self._items, self._budget = iter(items), budget

    def __next__(self) -> Any:
        item = next(self._items)
        self._budget.make(ITEM_CHARS)
        return item


class _Code(CodeGenerator):
    """Writes `~`, comparisons, parts, lists, tuples and dicts so that they have a limit."""

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802 (Jinja's)
        self._write("held", super().visit_List, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802 (Jinja's)
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
        else:
            self._write("held", super().visit_Tuple, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802 (Jinja's)
        self._write("held", super().visit_Dict, node, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802 (Jinja's)
        self._write("compared", super().visit_Compare, node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802 (Jinja's)
        if isinstance(node.arg, nodes.Slice):
            self._write("held", super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 (Jinja's)
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _write(
        self, check: str, visit: Callable[..., None], node: nodes.Node, frame: Frame
    ) -> None:
        self.write(f"environment.{check}(")
        visit(node, frame)
        self.write(")")

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        """Take only text of the source as constant: nothing is computed before the rendering.

        Raises:
            Impossible: It is something else.
        """
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


ChatSandbox.code_generator_class = _Code


class _Generation(Extension):
    """`{% generation %}`: marks what the model says, for training; it renders as what it holds."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja has it)

    def parse(self, parser: Parser) -> nodes.Node:
        """The marked part, called in place."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_as_it_is"), [], [], body).set_lineno(line)

    def _as_it_is(self, caller: Callable[[], str]) -> str:
        return caller()


class _Namespace(Namespace):
    """Jinja's namespace, without names that Python keeps for itself."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        values = dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        """A text without its contents: they may be other namespaces, each many times."""
        return "<Namespace>"


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r:.60}")


def _check_keys(keys: Iterable[Any]) -> None:
    if sum(not isinstance(key, str) for key in keys) > _MOST_ODD_KEYS:
        raise TemplateError("a dict of it has too many keys that are no text")


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    if len(form) > _FEW:
        raise TemplateError("a format of the time is too long")
    return _now().strftime(form)


def _now() -> datetime:
    return datetime.now()


class _Dict:
    """`dict` of templates: makes one, and leads to nothing else."""

    def __call__(self, *args: Any, **kwargs: Any) -> Mapping[Any, Any]:
        pairs: list[Any] = list(*args) if args and not isinstance(args[0], Mapping) else []
        _check_keys(pair[0] for pair in pairs)
        return dict(pairs or dict(*args), **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> Mapping[Any, Any]:
        """A dict with these keys, all of one value."""
        keys = list(keys)
        _check_keys(keys)
        return dict.fromkeys(keys, value)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's filter writes it: without escapes for HTML.

    Raises:
        TemplateError: The indent is too wide, or it is too long.
    """
    width = 0
    if indent is not None:
        width = indent if isinstance(indent, int) else len(indent)
        if width > _FEW:
            raise TemplateError("an indent is too wide")
    between = 4 if separators is None else sum(map(len, separators))
    if between > _FEW:
        raise TemplateError("a separator is too long")
    check_length(length_as_text(value, is_shown=True))
    num_lines, depth = _lines_and_depth(value, {})
    check_length(num_lines * (between + 1 + depth * max(width, 0)))
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _lines_and_depth(value: Any, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """How many lines indented JSON has, and how many lists and dicts stand inside each other."""
    if not isinstance(value, list | tuple | dict):
        return 1, 0
    if id(value) not in known:
        items = value.values() if isinstance(value, dict) else value
        inside = [_lines_and_depth(item, known) for item in items]
        num_lines = 2 + sum(lines for lines, _ in inside)
        known[id(value)] = num_lines, 1 + max((depth for _, depth in inside), default=0)
    return known[id(value)]
