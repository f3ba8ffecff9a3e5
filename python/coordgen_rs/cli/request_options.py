"""What a request asks for on the command line: its limits, how tokens are chosen, a grammar.

In: a parser. Out: options; from those the keywords of `Model`'s methods. `generate` and `chat`
share them. Whether a model can follow a grammar is found out where it is opened.
"""

import argparse
import math
from typing import Any

from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import text
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.model.options import REQUEST, RequestOptions
from coordgen_rs.text.grammar.kinds import Grammar, JsonSchema, Lark, Regex


def parse_bias(name: str, typed: str) -> tuple[int, float]:
    """A token id, and what is added to its logit.

    Raises:
        OptionError: It is something else.
    """
    token, _, bias = typed.partition("=")
    try:
        found = int(token), float(bias)
    except ValueError as error:
        raise OptionError(
            f"{name} must be a token id and a number, such as 42=-100, but is "
            f"{arguments.shown(typed)}"
        ) from error
    arguments.count(f"the token of {name}", found[0], least=0, most=2**32 - 1)
    if found[1] != -math.inf:
        arguments.number(f"the bias of {name}", found[1], least=-100, most=100)
    return found


def _parse_stop(name: str, typed: str) -> str:
    return arguments.text(name, text.from_argument(name, typed), may_be_empty=False)


_SYSTEM = option.text("--system TEXT").help(
    "in a chat: what the model is told before everything else"
)
_SEVERAL = {"stop": _parse_stop, "logit_bias": parse_bias}
"""Options that can be given more than once, and how each value is read."""
_OPTIONS = {
    name: option.of(REQUEST, name, parse=_SEVERAL[name], action="append", default=[])
    if name in _SEVERAL
    else option.of(REQUEST, name)
    for name, it in REQUEST.items()
    if it.help
}

OF_SAMPLING = ("top_k", "top_p", "min_p", "seed")
"""Options that change nothing at temperature 0."""
_USUAL = ("max_new_tokens", "temperature", "seed")
_GRAMMARS = (
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

SETTABLE = [it for it in _OPTIONS.values() if "action" not in it.keywords]
"""Those that have one value, which a dialogue may change."""


def add_arguments(parser: Parser) -> None:
    """Declare the options of a request, the usual ones first."""
    parser.declare(_SYSTEM, *(_OPTIONS[name] for name in _USUAL))
    others = (it for name, it in _OPTIONS.items() if name not in _USUAL)
    parser.declare_group("sampling and stopping", *others)
    parser.declare_group("grammar", _GRAMMARS)


def request(options: argparse.Namespace) -> RequestOptions:
    """The keywords of `Model`'s methods.

    Raises:
        OptionError: An option would be ignored.
    """
    if options.temperature == 0:
        given = {name: getattr(options, name) != REQUEST[name].default for name in OF_SAMPLING}
        option.refuse(
            argparse.Namespace(**given), given, "is for sampling: give --temperature above 0, too"
        )
    chosen: Any = {name: getattr(options, name) for name in _OPTIONS}
    found: RequestOptions = chosen | {"logit_bias": dict(options.logit_bias)}
    return found


def grammar(options: argparse.Namespace) -> Grammar | None:
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
