"""Patterns of a JSON schema: as llguidance can follow them, and the names that one stands for.

In: a regular expression as it stands in a schema. Out: one without characters that no answer has;
or, where it matches whole names and these are few, the names.
"""

import re
from collections.abc import Iterable
from typing import Any

try:  # Python's own, of which it promises nothing
    from re import _constants as codes  # type: ignore[attr-defined]
    from re import _parser  # type: ignore[attr-defined]
except ImportError:
    _parser = None

_PLAIN_CLASS = re.compile(r"\[[ -Z_-~]*\]")
_HEX_DIGITS = r"(\{[^}]{0,99}\}|(?<=x)[0-9a-fA-F]{2}|(?<=u)[0-9a-fA-F]{4}|(?<=U)[0-9a-fA-F]{8})"
_ONE_CHARACTER = re.compile(
    rf"\\[pP](\{{[^}}]{{0,99}}\}}|.)|\\[xuU]{_HEX_DIGITS}|\\[av]|[\x00-\x08\x0b\x0e-\x1f\x7f]"
)
"""Of a pattern, beside classes: what stands for one character, and may be a control character."""
_WITHOUT_CONTROL = r"[^\x00-\x07\x0b\x0e-\x1f\x7f]"
_IS_SPACED = re.compile(r"\(\?[a-zA-Z-]*x")
_MOST_NAMES = 100
_LONGEST = 200
_START, _END = "\2", "\3"
"""What stands for the anchors while names are put together."""
_SETS = re.compile(r"\[\[|--|&&|~~|\|\|")
"""What Rust reads as operators of classes."""


def written(pattern: str) -> str:
    """A pattern without the control characters that no answer has.

    With all of them in a class, llguidance 1.9.1 takes quotes and backslashes to be in it, too;
    where one stands alone, it leaves it out of the text.
    """
    if _IS_SPACED.search(pattern):  # brackets may stand in remarks
        return pattern
    parts, at = list[str](), 0
    while at < len(pattern):
        one = _ONE_CHARACTER.match(pattern, at)
        end = one and one.end()
        if pattern[at] == "[" and not (end := _class_end(pattern, at)):
            return pattern  # no pattern: llguidance says so
        if end and not _PLAIN_CLASS.fullmatch(pattern, at, end):
            parts.append(f"[{pattern[at:end]}&&{_WITHOUT_CONTROL}]")
        else:
            end = end or at + 1 + (pattern[at] == "\\")
            parts.append(pattern[at:end])
        at = end
    return "".join(parts)


def _class_end(pattern: str, at: int) -> int:
    """Where a class in brackets ends, with those in it; 0 where it does not."""
    depth = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1 + (character == "\\")
        if character == "[":
            depth += 1
            at += pattern.startswith("^", at)
            at += pattern.startswith("]", at)  # the first one is a character
        elif character == "]":
            depth -= 1
            if not depth:
                return at
    return 0


def names_of(pattern: str) -> set[str] | None:
    """All names that a pattern matches; None where they are not few."""
    if _parser is None or len(pattern) > _MOST_NAMES * _LONGEST or _SETS.search(pattern):
        return None
    try:
        parsed = _parser.parse(pattern)
        found = _texts(parsed) if parsed.state.flags == re.UNICODE.value else None
    except (re.error, ValueError, RecursionError, OverflowError):
        return None
    if found is None or not all(one[:1] == _START and one[-1:] == _END for one in found):
        return None
    names = {one[1:-1] for one in found}
    return None if any(_START in name or _END in name for name in names) else names


def _texts(parsed: Iterable[Any]) -> set[str]:
    """What a parsed expression matches.

    Raises:
        ValueError: It is too much.
    """
    found = {""}
    for kind, value in parsed:
        found = _joined(found, _one(kind, value))
    return found


def _joined(before: set[str], behind: set[str]) -> set[str]:
    """Each text with each that may stand behind it.

    Raises:
        ValueError: They are too many, or too long.
    """
    found = {text + more for text in before for more in behind}
    if len(found) > _MOST_NAMES or any(len(text) > _LONGEST for text in found):
        raise ValueError("too many names")
    return found


def _one(kind: Any, value: Any) -> set[str]:
    """What a part of an expression matches.

    Raises:
        ValueError: It is too much, or not known.
    """
    match kind:
        case codes.LITERAL:
            return {chr(value)}
        case codes.AT if value in (codes.AT_BEGINNING, codes.AT_END):
            return {_START if value == codes.AT_BEGINNING else _END}
        case codes.IN if all(inside in (codes.LITERAL, codes.RANGE) for inside, _ in value):
            spans = [one if inside == codes.RANGE else (one, one) for inside, one in value]
            if sum(last - first + 1 for first, last in spans) <= _MOST_NAMES:
                return {chr(code) for first, last in spans for code in range(first, last + 1)}
        case codes.BRANCH:
            return set[str]().union(*map(_texts, value[1]))
        case codes.SUBPATTERN if not (value[1] or value[2]):
            return _texts(value[3])
        case codes.MAX_REPEAT | codes.MIN_REPEAT if value[1] <= _MOST_NAMES:
            least, most, repeated = value
            times, inner = {""}, _texts(repeated)
            found = set[str]() if least else times
            for number in range(1, most + 1):
                times = _joined(times, inner)
                found = found | times if number >= least else found
            return found
    raise ValueError("not a few names")
