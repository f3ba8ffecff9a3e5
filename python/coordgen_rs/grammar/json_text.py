"""A JSON schema as llguidance is to follow it: checked, its objects closed, with its spelling.

In: a parsed schema. Out: one whose own key `x-guidance` says how the text is spaced and escaped; it
can be a grammar, or stand in one of Lark behind `%json`.
"""

import json
import re
from typing import Any

from coordgen_rs.bundle.json_text import parse_json
from coordgen_rs.grammar.closed_objects import with_closed_objects
from coordgen_rs.grammar.followed import as_followed
from coordgen_rs.grammar.schema_checks import check_schema, check_values

_ESCAPES = 'nrbtf\\"'
"""Letters allowed behind a backslash. With `u`, a key could be given twice in two spellings."""
_SCHEMA = re.compile(r"%json\s*(?=\{)")


def lark_text(lark: str) -> str:
    """A grammar in Lark whose schemas, behind `%json`, are said as llguidance can follow them.

    Args:
        lark: The grammar.

    Raises:
        UnsupportedGrammarError: A value would be written otherwise.
    """
    parts, at, decoder = list[str](), 0, json.JSONDecoder()
    while match := _SCHEMA.search(lark, at):
        parts.append(lark[at : match.end()])
        at = match.end()
        try:
            _, end = decoder.raw_decode(lark, at)
            schema = parse_json(lark[at:end], "the schema", long_integers=True)
        except (ValueError, RecursionError):  # llguidance says so, where it is one
            continue
        check_values(schema)
        parts.append(json.dumps(as_followed(schema)))
        at = end
    return "".join([*parts, lark[at:]])


def json_text(schema: dict[str, Any], *, any_whitespace: bool = False) -> str:
    """The schema as text for llguidance.

    Args:
        schema: A parsed JSON schema; it is not changed.
        any_whitespace: Same as in `JsonSchema`.

    Raises:
        UnsupportedGrammarError: It would be followed wrongly, or has too many parts.
    """
    followed = as_followed(schema)
    check_schema(followed)
    options: dict[str, Any] = {"lenient": False, "coerce_one_of": False}
    options |= {"json_allowed_escapes": _ESCAPES}
    if not any_whitespace:
        options |= {"whitespace_flexible": False}
        options |= {"item_separator": ", ", "key_separator": ": "}
    closed = with_closed_objects(followed)
    return json.dumps(closed | {"x-guidance": options}, ensure_ascii=False)
