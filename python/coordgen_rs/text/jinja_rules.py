"""What chat templates may call, and what each call may make: filters, and methods of values.

In: the name of a filter or method, and what it is given. Out: nothing, or `jinja2.TemplateError`
before anything is made. What has no rule here is not called at all, so that a filter or method that
a newer Jinja or Python brings is refused instead of unbounded.
"""

import re
from collections.abc import Callable, Sized
from typing import Any

from jinja2 import TemplateError
from jinja2.runtime import LoopContext
from jinja2.utils import Cycler

from coordgen_rs.text.jinja_budget import ITEM_CHARS, check_length, length_as_text
from coordgen_rs.text.jinja_formats import check_percent

_FEW = 100
_SLOW_CHARS = 8192
"""Longest input of slow filters; the time of some grows with its square."""

_MOST_COMPARED = 1 << 30
_MOST_LISTS = 100_000
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_ENCODINGS = re.compile(r"(utf[-_]?8|ascii|latin[-_]?1)", re.IGNORECASE)
_ERRORS = ("strict", "ignore", "replace")

Rule = Callable[[Any, list[Any]], None]
"""Checks a call, given the value and all arguments; raises TemplateError."""


def _nothing(value: Any, given: list[Any]) -> None:
    """Check nothing: such calls make no more than they get, in a time that grows with that."""


def _padded(value: Any, given: list[Any]) -> None:
    check_length(_len(value) + max(_numbers(given), default=0))


def _tabs(value: Any, given: list[Any]) -> None:
    check_length(len(value) + value.count("\t") * max(8, *_numbers(given), 0))


def _indented(value: Any, given: list[Any]) -> None:
    check_length((_len(value) + 1) * max([4, *_numbers(given), *map(len, _texts(given))]))


def _replaced(value: Any, given: list[Any]) -> None:
    if len(given) >= 2:
        text, old, new = str(value), str(given[0]), str(given[1])
        check_length(len(text) + text.count(old) * len(new))


def _translated(value: Any, given: list[Any]) -> None:
    table = given[0] if given else ()
    parts = table.values() if isinstance(table, dict) else table
    longest = max((len(part) for part in parts if isinstance(part, str)), default=1)
    check_length(len(value) * longest)


def _listed(value: Any, given: list[Any]) -> None:
    if isinstance(value, str | bytes):
        check_length(ITEM_CHARS * len(value))


def _split(value: Any, given: list[Any]) -> None:
    separators = _texts(given)
    pieces = value.count(separators[0]) if separators and separators[0] else len(value) // 2
    most = [number for number in _numbers(given) if number >= 0]
    check_length(ITEM_CHARS * min([pieces, *most]))


def _lines(value: Any, given: list[Any]) -> None:
    check_length(ITEM_CHARS * sum(map(value.count, _LINE_ENDS)))


def _backwards(value: Any, given: list[Any]) -> None:
    for text in _texts(given):
        if len(value) * len(text) > _MOST_COMPARED:
            raise TemplateError("it looks for too long a text")


def _split_backwards(value: Any, given: list[Any]) -> None:
    _backwards(value, given)
    _split(value, given)


def _stripped(value: Any, given: list[Any]) -> None:
    if max(map(len, _texts(given)), default=0) > _FEW:
        raise TemplateError("it strips too many characters")


def _some(value: Any, given: list[Any]) -> None:
    if max(_numbers(given), default=0) > _MOST_LISTS:
        raise TemplateError("it makes too many lists")
    _listed(value, given)


def _rounded(value: Any, given: list[Any]) -> None:
    if max(map(abs, _numbers(given)), default=0) > _FEW:
        raise TemplateError("it rounds to too many digits")


def _summed(value: Any, given: list[Any]) -> None:
    adds_lists = any(isinstance(item, Sized) and not isinstance(item, str) for item in given)
    if adds_lists and (not isinstance(value, list | tuple) or len(value) > _FEW):
        raise TemplateError("it adds up too many lists")


def _slow(value: Any, given: list[Any]) -> None:
    if sum(length_as_text(item) for item in (value, *given)) > _SLOW_CHARS:
        raise TemplateError(f"a filter is for texts of at most {_SLOW_CHARS:,} characters")


def _percent(value: Any, given: list[Any]) -> None:
    """The format filter: its arguments are a tuple or a dict."""
    check_percent(str(value), tuple(given))


def _shown(value: Any, given: list[Any]) -> None:
    if not isinstance(value, str):
        check_length(length_as_text(value, is_shown=True))


def _encoded(value: Any, given: list[Any]) -> None:
    for text in _texts(given):
        if not _ENCODINGS.fullmatch(text) and text not in _ERRORS:
            raise TemplateError(f"it encodes as {text!r:.60}")


def _len(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes) else length_as_text(value)


def _numbers(given: list[Any]) -> list[int]:
    return [int(item) for item in given if isinstance(item, int | float) and abs(item) < 1e300]


def _texts(given: list[Any]) -> list[Any]:
    return [item for item in given if isinstance(item, str | bytes)]


def _rules(rules: dict[Rule, str]) -> dict[str, Rule]:
    return {name: rule for rule, names in rules.items() for name in names.split()}


FILTERS = _rules(
    {
        _nothing: "abs attr capitalize count d default e escape filesizeformat first float "
        "forceescape int items last length lower max min reject rejectattr safe select selectattr "
        "truncate upper join tojson",
        _listed: "dictsort groupby list map random reverse sort unique",
        _shown: "string",
        _padded: "center",
        _indented: "indent",
        _replaced: "replace",
        _some: "batch slice",
        _rounded: "round",
        _summed: "sum",
        _stripped: "trim",
        _percent: "format",
        _slow: "pprint striptags title urlencode urlize wordcount wordwrap xmlattr",
    }
)
"""Jinja's filters. `join` and `tojson` are the sandbox's own."""

_TEXT = _rules(
    {
        _nothing: "capitalize casefold count endswith find format format_map index isalnum isalpha "
        "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle "
        "isupper join lower partition removeprefix removesuffix startswith swapcase title upper",
        _padded: "center ljust rjust zfill",
        _tabs: "expandtabs",
        _replaced: "replace",
        _translated: "translate",
        _encoded: "encode",
        _split: "split",
        _lines: "splitlines",
        _split_backwards: "rsplit",
        _backwards: "rfind rindex rpartition",
        _stripped: "lstrip rstrip strip",
    }
)

METHODS: tuple[tuple[type, dict[str, Rule]], ...] = (
    (str, _TEXT),
    (bytes, _rules({_encoded: "decode"})),
    (int, _rules({_nothing: "bit_length bit_count is_integer"})),
    (float, _rules({_nothing: "is_integer hex"})),
    (dict, _rules({_nothing: "copy get items keys values"})),
    (list, _rules({_nothing: "copy count index"})),
    (tuple, _rules({_nothing: "count index"})),
    (range, _rules({_nothing: "count index"})),
    (Cycler, _rules({_nothing: "next reset"})),
    (LoopContext, _rules({_nothing: "cycle changed"})),
)
"""Rules of methods, by the type of the value."""

LOOK_UPS = _rules(
    {
        _nothing: "attr cycle d default first get items keys last max min next random safe string "
        "values"
    }
).keys()
"""Filters and methods whose result was there before."""


def rule_of(owner: Any, name: str) -> Rule | None:
    """What a method of a value may make; None if it may not be called."""
    if isinstance(owner, type):
        return None
    return next((rules.get(name) for base, rules in METHODS if isinstance(owner, base)), None)
