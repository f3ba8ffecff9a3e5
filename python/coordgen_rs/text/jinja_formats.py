"""Formats of chat templates, `%` and `format`: refused before what is too wide is made.

In: a format and what goes into it. Out: nothing, or text; or `jinja2.TemplateError`.
"""

import re
from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import SandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from markupsafe import Markup

from coordgen_rs.text.jinja_budget import Budget, check_length, length_as_text

_MOST_WIDTH = 9999
_NUMBER = re.compile(r"\d+")


def check_percent(form: str, values: Any) -> None:
    """Check what `form % values` makes; every number in the text is taken for a width.

    Raises:
        TemplateError: It may be too long.
    """
    if isinstance(values, Mapping):
        items = list(values.values())
    else:
        items = list(values) if isinstance(values, tuple) else [values]
    fields, widths = form.count("%"), _widths(form)
    widest = max((abs(item) for item in items if isinstance(item, int)), default=0)
    if "*" in form:
        _check_width(widest)
        widths += form.count("*") * widest
    longest = max((length_as_text(item, is_shown=True) for item in items), default=0)
    whole = length_as_text(values) if isinstance(values, Mapping) else 0
    check_length(len(form) + widths + fields * max(longest, whole))


def safe_format(
    environment: SandboxedEnvironment, budget: Budget, method: Any, *, is_map: bool
) -> Callable[..., str]:
    """`format` or `format_map` of a text, which counts what each field makes."""
    form = method.__self__

    class Counting(SandboxedFormatter):
        def format_field(self, value: Any, format_spec: str) -> Any:
            _widths(format_spec)
            if not isinstance(value, str):
                check_length(length_as_text(value, is_shown=True))
            text = super().format_field(value, format_spec)
            budget.make(len(text))
            return text

        def convert_field(self, value: Any, conversion: Any) -> Any:
            if conversion is not None:
                budget.make(length_as_text(value, is_shown=True))
            return super().convert_field(value, conversion)

    class CountingMarkup(Counting, SandboxedEscapeFormatter):
        pass

    formatter: SandboxedFormatter = Counting(environment)
    if isinstance(form, Markup):
        formatter = CountingMarkup(environment, escape=form.escape)

    def format_text(*args: Any, **kwargs: Any) -> str:
        if is_map:
            (kwargs,), args = args, ()
        made: str = type(form)(formatter.vformat(form, args, kwargs))
        return made

    return update_wrapper(format_text, method)


def _widths(form: str) -> int:
    """All numbers in a format together.

    Raises:
        TemplateError: One of them is too large for a width.
    """
    numbers = _NUMBER.findall(form)
    for digits in numbers:
        _check_width(int(digits[:9]))
    return sum(map(int, numbers))


def _check_width(width: int) -> None:
    if width > _MOST_WIDTH:
        raise TemplateError("a field of a format is too wide")
