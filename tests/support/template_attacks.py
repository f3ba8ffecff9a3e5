"""Every filter, test, function, method and format of Jinja with large numbers and long texts.

    python tests/support/template_attacks.py

Renders a template for each in this process, which may take little more memory than the limit of a
rendering. Prints those that ran out of it, or ended in anything but a text or a named error.
"""

import inspect
import itertools
import json
import resource
import sys
from pathlib import Path

from jinja2.defaults import DEFAULT_FILTERS, DEFAULT_NAMESPACE, DEFAULT_TESTS

from coordgen_rs.errors import ChatTemplateError
from coordgen_rs.text.chat_template import ChatTemplate

MEMORY_BYTES = 512 << 20
"""Beyond what is there before: half of it is the stack that a rendering may need."""

HUGE, LONG = "1000000000", "t"
VALUES = {
    "text": "t",
    "control": "('\\x00\\n' * 6000)",
    "wide": "('\U000e0001' * 9999)",
    "tags": "('<!-->' * 2000)",
    "texts": "(['ab'] * 500)",
    "nested": "n",
    "dict": "d",
    "generator": "(range(9000)|map('default', t, true))",
    "large": "(2 ** 120)",
    "float": "1.5",
}
GIVEN = {"t": "ab" * 5000, "z": "a" * 9999 + "b", "l": [0] * 200, "d": {"a": "ab" * 5000}}
GIVEN["n"] = ["x"]
for _ in range(5):
    GIVEN["n"] = [GIVEN["n"], GIVEN["n"]]
ENDS = ("|string|length", "|list|length", "|join|length", "")
FORMATS = ("%d", "%.5f", "%s", "%r", "%a", "%c", "%x", "%(a)s", "%%", "%*d", "%.*f", "%*.*f")
SPECS = ("", ":d", ":>{}", ":{}.{}f", "!r", "!a", "!s:>{}", ":99999999", ":.99999999f")


ARGUMENTS = (
    *(HUGE, "", f"-{HUGE}", LONG, "','", "'utf-32'", "none", f"{HUGE}, {HUGE}", f"{HUGE}, {LONG}"),
    *(f"{LONG}, {HUGE}", f"'a', {LONG}", f"{LONG}, 'x', {HUGE}", "{97: t}", "l", "true, true, t"),
)
"""What is given to a call: nothing, one, and several of everything large."""


def calls():
    """Expressions that call every filter, test, function and method."""
    for name, function in DEFAULT_FILTERS.items():
        for value, more in _pairs(VALUES.values()):
            yield f"({value})|{name}({more})"
        for named, more in itertools.product(inspect.signature(function).parameters, (HUGE, "t")):
            yield from (f"({VALUES[of]})|{name}({named}={more})" for of in ("text", "texts"))
    for name in DEFAULT_TESTS:
        for value, more in _pairs(VALUES.values()):
            yield f"({value}) is {name}" + f"({more})" * bool(more)
    for name in DEFAULT_NAMESPACE:
        yield from (f"{name}({more})" for more in ARGUMENTS)
    for owner in ("", b"", 1, 1.5, [], (), {}, range(1)):
        methods = [name for name in dir(owner) if not name.startswith("__")]
        values = _of_type[type(owner).__name__]
        for name in methods:
            yield from (f"({value}).{name}({more})" for value, more in _pairs(values))


def _pairs(values):
    """The first value with all arguments, and all values with the first few."""
    values = list(values)
    yield from itertools.product(values[:1], ARGUMENTS)
    yield from itertools.product(values[1:], ARGUMENTS[:4])


_of_type = {
    "str": ("t", "('\U000e0001' * 9999)"),
    "bytes": ("t.encode()",),
    "int": ("7", "(2 ** 120)"),
    "float": ("1.5",),
    "list": ("l", "n"),
    "tuple": ("(1, t)",),
    "dict": ("d",),
    "range": ("range(9999)",),
}


def formats():
    """Expressions that format by `%`, by the filter and by the methods."""
    values = ("1.5", LONG, "d", "(1000000000, 1)", "(4000000, 4000000, 1.5)", "n")
    for form, times, value in itertools.product(FORMATS, ("", " * 30000"), values):
        for text in (form, form.replace("%", "%99999999")):
            yield f"('{text}'{times}) % {value}"
            yield f"('{text}'{times})|format({value})"
    for spec, times, value in itertools.product(SPECS, ("", " * 20000"), ("1", "1.5", LONG, "n")):
        yield f"('{{0{spec}}}'{times}).format({value}, 1000000000, 1000000000)"
        yield f"('{{{spec}}}'{times}).format({value}, 1000000000, 999)"
        yield f"('{{a{spec}}}'{times}).format_map({{'a': {value}}})"


def operators():
    """Expressions of two large values."""
    signs = ("+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in")
    others = (LONG, "l", "4000000", "(2 ** 120)")
    for one, sign, other in itertools.product(VALUES.values(), signs, others):
        yield f"({one}) {sign} ({other})"
    for value, part in itertools.product(VALUES.values(), ("[1:]", "[::-1]", "[:4000000]")):
        yield f"({value}){part}"


NS = "{% set ns = namespace(x=[1], y=[1]) %}"
NESTED = (
    *(f"[{value}]" for value in ("ns.x", "ns.x, ns.x", "[[[[[[[[[[ns.x]]]]]]]]]]")),
    *("(ns.x,)", "{'a': ns.x}", "dict(a=ns.x)", "namespace(x=ns.x)", "ns.x[:]", "ns.x[::-1]"),
    *("ns.x + [1]", "[1] + ns.x", "ns.x + ns.x", "ns.x ~ 'x'", "ns.x|string", "ns.x|tojson"),
    *(f"ns.x|{name}" for name in (*DEFAULT_FILTERS, "chain", "zip", "lines", "split")),
    *(f"[ns.x|{name}]" for name in (*DEFAULT_FILTERS, "chain", "zip", "lines", "split")),
    *("ns.x|map('list')", "ns.x|select", "ns.x|chain([1])", "ns.x|zip([1])", "ns.x|batch(1)"),
    *("ns.x|map(attribute='a')", "ns.x|groupby('a')", "{'a': ns.x}.items()", "{1: ns.x}.values()"),
)
LOOKED_AT = (
    *("", "{{ ns.x }}", "{{ ns.x == ns.y }}", "{{ ns.x|string|length }}", "{{ ns.x|tojson }}"),
    *("{{ {ns.x: 1} }}", "{{ ns.x|list|length }}", "{{ ns.x < ns.y }}", "{{ 7 in ns.x }}"),
    *("{{ ns.x|sort }}", "{{ [ns.x, ns.y]|unique|list|length }}", "{{ '%s' % ns.x }}"),
)


def nested():
    """Templates that put values inside each other, deep and far too deep, and look at some."""
    for number, (made, looked_at) in enumerate(itertools.product(NESTED, LOOKED_AT)):
        again = "{% set ns.y = ns.x %}{% set ns.x = " + made + " %}"
        for times, is_tried in ((200, number % 5 < 2), (9999, number % 11 == 0)):
            if is_tried:  # 12 ways to look: each comes to each number in turn
                yield f"{{% for i in range({times}) %}}{again}{{% endfor %}}{looked_at}"


REPEATED = (
    "{% for i in range(9999) %}{{ t }}{% endfor %}",
    "{% for i in range(9999) %}{% set _ = d.update({i: t ~ i}) %}{% endfor %}",
    "{% for i in range(9999) %}{% set ns['k' ~ i] = t ~ i %}{% endfor %}",
    "{% for i in range(9999) %}{% set ns['k' ~ i] = t[i:] %}{% endfor %}",
    "{% for i in range(9999) %}{% set ns['k' ~ i] = t.upper() %}{% endfor %}",
    "{% for i in range(9999) %}{% set ns['k' ~ i] = t|upper %}{% endfor %}",
    "{% for i in range(9999) %}{% set ns['k' ~ i] = l + [i] %}{% endfor %}",
    "{% macro m() %}{% for i in range(9999) %}{{ t }}{% endfor %}{% endmacro %}{{ m()|length }}",
    "{% set b %}{% for i in range(9999) %}{{ t }}{% endfor %}{% endset %}",
    "{% filter upper %}{% for i in range(9999) %}{{ t }}{% endfor %}{% endfilter %}",
    "{% for i in range(9999) %}{{ d }}{% endfor %}",
    "{% autoescape true %}{{ '<' * 9000 }}{% for i in range(9999) %}{{ t }}{% endfor %}"
    "{% endautoescape %}",
    "{% set ns.x = [1] %}{% for i in range(9000) %}{% set ns.x = ns.x|map('abs') %}{% endfor %}",
    "{% set ns.x = [1] %}{% for i in range(9000) %}{% set ns.x = [ns.x|map('list')] %}{% endfor %}",
    "{% set ns.x = 1 %}{% for i in range(9000) %}{% set ns.x = namespace(x=ns.x) %}{% endfor %}",
    "{{ dict(range(50000)|map('string')|map('list')|list) }}",
    "{% for i in range(9999) %}{{ '{:>9999}'.format(i) }}{% endfor %}",
    "{{ [[t] * 2, [t] * 2]|sum(start=[]) }}{{ ([[1]] * 800)|sum(start=[]) }}",
    "{{ t|center(9000) }}" * 2000,
    "{{ ('x'|center(9000)) ~ ('y'|center(9000)) }}" * 2000,
    "{% autoescape ('x'|center(9000)) ~ ('y'|center(9000)) %}{% endautoescape %}" * 2000,
    "{{ t == z }}" * 800,
    "{{ {" + "0:0, " * 20000 + "} }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "[" * 5000 + "1" + "]" * 5000 + " }}",
    "{{ " + "9" * 200000 + " }}",
    "{{ 0x" + "f" * 200000 + " }}",
    "{% if 1 %}" * 3000,
    "x" * (1 << 19),
)


def failure(source):
    """What is wrong with how a template ends; None if it ends as it should."""
    try:
        ChatTemplate(source).render([{"role": "user", "content": "Hello"}], variables=GIVEN)
    except ChatTemplateError as error:
        return "out of memory" if "out of memory" in str(error) else None
    except BaseException as error:
        return f"{type(error).__name__}: {error!s:.80}"
    return None


def sources():
    """Every template."""
    for made in (calls(), formats(), operators()):
        for number, expression in enumerate(made):
            yield "{{ (" + expression + ")" + ENDS[number % len(ENDS)] + " }}"
    yield from (NS + source for source in (*REPEATED, *nested()))


def main():
    """Attack, and print what was found as JSON."""
    failure("{{ messages|tojson }}")  # loads what is needed
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, resource.RLIM_INFINITY))
    found, number = {}, 0
    for source in sources():
        number += 1
        if "-v" in sys.argv:
            print(source[:150], file=sys.stderr, flush=True)
        if (wrong := failure(source)) is not None:
            found[source[:200]] = wrong
    print(json.dumps({"number": number, "found": found}))


if __name__ == "__main__":
    main()
