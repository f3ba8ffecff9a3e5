"""Arguments as Qwen3-Coder and Qwen3.5 write them: `<parameter=NAME>`, the value, `</parameter>`.

In: text behind `<function=NAME>`. Out: an object in JSON. A text stands as it is, without quotes,
and is given piece by piece; any other value is JSON, also where it stands beside texts that are
listed. Nothing holds the pattern or the length of a text: what is between the marks is the text.
"""

import json
from collections.abc import Collection, Generator

from coordgen_rs.server.tools import syntax
from coordgen_rs.server.tools.calls import TextBuffer, begun_len
from coordgen_rs.server.tools.syntax import ArgumentSyntax, Lexicon, Rules, Schema, Tell, regex

_OPEN, _CLOSE, _END = "<parameter=", "</parameter>", "</function>"
_ANY_TEXT = rf"/(.|\n)*{regex(chr(10) + _CLOSE)}/"
_LINE = r'"\n"'
_OTHER_KINDS = ["object", "array", "number", "boolean", "null"]


def _read(buffer: TextBuffer, schema: Schema, tell: Tell) -> Generator[None]:
    named, before = syntax.properties_of(schema), "{"
    while (mark := (yield from buffer.which(_OPEN, _END))) == _OPEN:
        name = yield from _name(buffer, named)
        tell(f"{before}{syntax.as_json(name)}: ")
        before = ", "
        one = named.get(name, {})
        yield from _value(buffer, one, tell) if _may_be_json(one) else _text(buffer, tell)
    if not mark:
        raise ValueError("no parameter")
    tell("{}" if before == "{" else "}")


def _name(buffer: TextBuffer, names: Collection[str]) -> Generator[None, None, str]:
    """Read a name with its mark, which ends at the first `>` unless it is known to have one."""
    while (end := buffer.ahead.find(">")) < 0:
        yield
    for known in sorted((name for name in names if ">" in name), key=len, reverse=True):
        mark = f"{_OPEN}{known}>"
        while len(buffer.ahead) < len(mark) and mark.startswith(buffer.ahead):
            yield
        if buffer.ahead.startswith(mark):
            end = len(mark) - 1
            break
    return buffer.take(end + 1)[len(_OPEN) : -1]


def _text(buffer: TextBuffer, tell: Tell) -> Generator[None]:
    """Read text up to the closing mark; a line feed on each side of it belongs to the marks."""
    while not buffer.ahead:
        yield
    buffer.take(buffer.ahead.startswith("\n"))
    tell('"')
    while (end := buffer.ahead.find(_CLOSE)) < 0:
        kept = max(begun_len(buffer.ahead, mark) for mark in ("\n" + _CLOSE, _CLOSE))
        tell(_escaped(buffer.take(len(buffer.ahead) - kept)))
        yield
    tell(_escaped(buffer.take(end).removesuffix("\n")) + '"')
    buffer.take(len(_CLOSE))


def _escaped(text: str) -> str:
    return syntax.as_json(text)[1:-1]


def _value(buffer: TextBuffer, schema: Schema, tell: Tell) -> Generator[None]:
    """Read JSON, or a text that the schema lists, up to the closing mark."""
    while (end := buffer.ahead.find(_CLOSE)) < 0:
        yield
    said = buffer.take(end)
    buffer.take(len(_CLOSE))
    text = said.strip()
    try:
        if (one := said.removeprefix("\n").removesuffix("\n")) in (_texts_of(schema) or ()):
            text = syntax.as_json(one)
        json.loads(text)
    except (ValueError, RecursionError):
        text = syntax.PYTHON_WORDS.get(text, syntax.as_json(text))
    tell(text)


def _texts_of(schema: Schema) -> list[str] | None:
    """The texts that a schema lists, which stand without quotes; None where any may stand."""
    found = list[str]()
    for one in syntax.choices_of(schema, schema):
        if syntax.kind_of(one) == "string":
            if (values := syntax.values_of(one)) is None:
                return None
            found += [value for value in values if isinstance(value, str)]
    return found


def _may_be_json(schema: Schema) -> bool:
    """Whether an argument may be written as JSON: it could not be told from any text."""
    is_other = any(syntax.kind_of(one) != "string" for one in syntax.choices_of(schema, schema))
    return is_other and _texts_of(schema) is not None


def _lark(schema: Schema, place: str, lexicon: Lexicon) -> tuple[str, Rules]:
    if syntax.is_open(schema):
        any_one = rf"/{regex(_OPEN)}[^>\n]+>\n{_ANY_TEXT[1:]}"
        return f"{_LINE} ({place}x {_LINE})*", {f"{place}x[lazy]": any_one}
    rules, parts, required = Rules(), [_LINE], syntax.required_of(schema)
    for number, (name, one) in enumerate(syntax.properties_of(schema).items()):
        rule = f"{place}-{number}"
        value = _value_lark(one, rule, lexicon, rules)
        rules[rule] = f"{lexicon.literal(f'{_OPEN}{name}>')} {value} {_LINE}"
        parts.append(rule if name in required else f"{rule}?")
    return " ".join(parts), rules


def _value_lark(schema: Schema, rule: str, lexicon: Lexicon, rules: Rules) -> str:
    """A value with its closing mark; `rules` gets the rule that it refers to."""
    closing = lexicon.literal("\n" + _CLOSE)
    texts = _texts_of(schema)
    if texts is None:
        rules[f"{rule}x[lazy]"] = _ANY_TEXT
        return f"{_LINE} {rule}x"
    if not _may_be_json(schema):
        listed = " | ".join(lexicon.literal(f"\n{value}") for value in texts)
        return f"({listed}) {closing}"
    if texts:
        kinds = schema.get("type", _OTHER_KINDS)
        kinds = [kind for kind in kinds if kind != "string"] if isinstance(kinds, list) else kinds
        schema = schema | {"type": kinds}
    values = " | ".join([*map(lexicon.literal, texts), lexicon.json(schema)])
    return f"{_LINE} ({values}) {closing}"


XML = ArgumentSyntax(_lark, _read)
