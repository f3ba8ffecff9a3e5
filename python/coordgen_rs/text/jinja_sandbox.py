"""The environment of chat templates: Jinja as Hugging Face runs it, in a sandbox with limits.

In: the source of a template, which strangers wrote. Out: a compiled template whose rendering ends,
and takes no more memory than some times `MOST_CHARS`; what would go further raises
`jinja2.TemplateError`. Needs the extra `chat`. It knows neither messages nor bundles.

The same names, tags and filters as `transformers.utils.chat_template_utils` (5.23).
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from functools import wraps
from threading import local
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MOST_CHARS = 8 << 20
"""Of any text that a template makes: more than any model reads."""

_MOST_WORK = 4_000_000
"""Rounds of loops, and calls."""

_MOST_SECONDS = 20.0
_MOST_BITS = 4096
_FEW = 100
_NOT_GROWING = frozenset({"truncate", "wordwrap", "range", "round", "batch", "slice", "int"})
_CONTAINERS = (list, tuple, dict, set, frozenset)
_WIDE_FIELD = re.compile(r"\d{5}")
"""In a format: a width or precision of so many digits."""


class ChatSandbox(ImmutableSandboxedEnvironment):
    """Jinja for chat templates; one rendering at a time in a thread."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        self.concat = self.joined  # type: ignore[method-assign]
        self._spent = local()
        self.restart()
        self.filters = {name: self._limited(name, func) for name, func in self.filters.items()}
        self.filters |= {"tojson": _to_json, "_counted": self._counted}
        del self.globals["lipsum"]  # pages of nonsense, in a time of its own
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _Dict(),
            "namespace": _Namespace,
        }

    def restart(self) -> None:
        """Begin a rendering: nothing is spent yet."""
        self._spent.work, self._spent.until = 0, time.monotonic() + _MOST_SECONDS

    def spend(self, work: int = 1) -> None:
        """Count work.

        Raises:
            TemplateError: It is too much.
        """
        spent = self._spent
        if not hasattr(spent, "work"):
            self.restart()
        spent.work += work
        if spent.work > _MOST_WORK or time.monotonic() > spent.until:
            raise TemplateError("it does not end: too many loops and calls")

    def joined(self, parts: Iterable[Any]) -> str:
        """The parts as one text.

        Raises:
            TemplateError: It would be too long.
        """
        texts = [str(part) for part in parts]
        _check_length(sum(map(len, texts)))
        return "".join(texts)

    def held(self, value: Any) -> Any:
        """A list, tuple or dict that the template has made.

        Raises:
            TemplateError: It would be too long as a text.
        """
        self.spend()
        return _checked(value)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call what the template calls; its result is not too long.

        Raises:
            TemplateError: It may not be called, or does too much.
        """
        self.spend()
        # `format` of a text comes wrapped by Jinja's sandbox.
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        if isinstance(owner, str | list | tuple | bytes):
            _check_growth(getattr(obj, "__name__", ""), owner, [*args, *kwargs.values()])
        return _checked(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute what an operator says; numbers and texts stay within bounds.

        Raises:
            TemplateError: They do not.
        """
        self.spend()
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, Sized) and isinstance(other, int):
                    _check_length(len(one) * max(other, 0))
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length()
            if max(bits, right.bit_length()) > _MOST_BITS:
                raise TemplateError("its numbers are too large")
        if operator == "%" and isinstance(left, str):
            _check_growth("format", left, [])
        return _checked(super().call_binop(context, operator, left, right))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse, and let each loop count its rounds."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            counted = nodes.Filter(loop.iter, "_counted", [], [], None, None)
            loop.iter = counted.set_lineno(loop.lineno).set_environment(self)
        return tree

    def _counted(self, items: Any) -> Any:
        if isinstance(items, Sized):
            self.spend(len(items))
            return items
        return self._counting(items)

    def _counting(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.spend()
            yield item

    def _limited(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            self.spend()
            given = args[1:] if hasattr(function, "jinja_pass_arg") else args
            if given:
                _check_growth(name, given[0], [*given[1:], *kwargs.values()])
            return _checked(function(*args, **kwargs))

        return limited


class _Code(CodeGenerator):
    """Writes `~`, lists, tuples and dicts so that they have a limit."""

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802 (Jinja's)
        self.write("environment.held(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802 (Jinja's)
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
            return
        self.write("environment.held(")
        super().visit_Tuple(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802 (Jinja's)
        self.write("environment.held(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 (Jinja's)
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


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
    """Jinja's, without names that Python keeps for itself."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        values = dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        """Without what it holds: that may be other namespaces, each many times."""
        return "<Namespace>"


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r:.60}")


def _check_length(length: int) -> None:
    if length > MOST_CHARS:
        raise TemplateError(f"a text of it is longer than {MOST_CHARS:,} characters")


def _checked(value: Any) -> Any:
    if isinstance(value, str | bytes):
        _check_length(len(value))
    elif isinstance(value, _CONTAINERS):
        _check_length(_length_as_text(value, {}))
    return value


def _length_as_text(value: Any, known: dict[int, int]) -> int:
    """About the length of `str(value)`, which no text is made for.

    A list may hold another one many times over, and that again: each is looked at once.
    """
    if not isinstance(value, _CONTAINERS):
        return 1 + (len(value) if isinstance(value, str | bytes) else 0)
    if id(value) not in known:
        items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_length_as_text(item, known) for item in items)
    return known[id(value)]


def _check_growth(name: str, value: Any, args: list[Any]) -> None:
    """Refuse to make a text that is too long, before it is made.

    Raises:
        TemplateError: It may be.
    """
    if name in ("format", "format_map") and isinstance(value, str) and _WIDE_FIELD.search(value):
        raise TemplateError("a field of a format is too wide")
    if name == "replace" and isinstance(value, str) and len(args) >= 2:
        old, new = str(args[0]), str(args[1])
        _check_length(len(value) + (value.count(old) * len(new)))
    if name == "join":
        separator, items = (value, args[:1]) if isinstance(value, str) else ("", [value])
        texts = items[0] if items and isinstance(items[0], list | tuple) else ()
        longest = len(separator) + sum(len(arg) for arg in args if isinstance(arg, str))
        _check_length(sum(len(text) for text in texts if isinstance(text, str)))
        _check_length(longest * len(texts))
    numbers = [arg for arg in args if isinstance(arg, int)]
    if name not in _NOT_GROWING and max(numbers, default=0) > _FEW and isinstance(value, str):
        _check_length((value.count("\n") + 1) * max(numbers))


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return _now().strftime(form)


def _now() -> datetime:
    return datetime.now()


class _Dict:
    """`dict` of templates: makes one, and leads to nothing else."""

    def __call__(self, *args: Any, **kwargs: Any) -> Mapping[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> Mapping[Any, Any]:
        """A dict with these keys, all of one value."""
        return dict.fromkeys(keys, value)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's filter writes it: without escapes for HTML.

    Raises:
        TemplateError: The indent is too wide.
    """
    if isinstance(indent, int) and indent > _FEW:
        raise TemplateError("an indent is too wide")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
