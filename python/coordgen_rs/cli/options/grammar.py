"""The options that restrict an answer: `--json-schema`, `--regex`, `--lark`.

In: what was typed, and files. Out: a grammar for a request. Whether a model can follow it is found
out where it is opened.
"""

import argparse

from coordgen_rs.cli.options import option
from coordgen_rs.cli.terminal import text
from coordgen_rs.errors import OptionError
from coordgen_rs.grammar.kinds import Grammar, JsonSchema, Lark, Regex

ALTERNATIVES = (
    option.path("--json-schema FILE").help(
        "answer with JSON that this schema accepts, on one line; see docs/grammar.md"
    ),
    option.text("--regex PATTERN").help(
        "answer with a text that this regular expression matches from start to end"
    ),
    option.path("--lark FILE").help(
        "answer with a text of this grammar, in llguidance's dialect of Lark"
    ),
)
"""Only one of them may be given."""


def chosen(options: argparse.Namespace) -> Grammar | None:
    """The grammar that the options ask for.

    Raises:
        OptionError: A file is no schema, or not UTF-8; the message names it.
        OSError: A file cannot be read.
    """
    if options.json_schema is not None:
        content = text.read_file(options.json_schema)
        try:
            return JsonSchema(content)
        except OptionError as error:
            raise OptionError(f"{options.json_schema}: {error}") from error
    if options.regex is not None:
        return Regex(options.regex)
    return None if options.lark is None else Lark(text.read_file(options.lark))
