"""What a request asks for on the command line: its limits, and how tokens are chosen.

In: a parser. Out: options; from those the keywords of `Model`'s methods. `generate` and `chat`
share them.
"""

import argparse
import math
from typing import Any

from coordgen_rs.cli.options import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal.text import from_argument
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.model.options import REQUEST, RequestOptions


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
    return arguments.text(name, from_argument(name, typed), may_be_empty=False)


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

SETTABLE = [it for it in _OPTIONS.values() if "action" not in it.keywords]
"""Those that have one value, which a dialogue may change."""


def add_arguments(parser: Parser) -> None:
    """Declare the options of a request."""
    parser.declare(_SYSTEM, *_OPTIONS.values())


def request(options: argparse.Namespace) -> RequestOptions:
    """The keywords of `Model`'s methods.

    Raises:
        OptionError: An option would be ignored.
    """
    if options.temperature == 0:
        given = {"top_k": options.top_k != 0, "top_p": options.top_p != 1}
        given |= {"min_p": options.min_p != 0, "seed": options.seed is not None}
        option.refuse(
            argparse.Namespace(**given), given, "is for sampling: give --temperature above 0, too"
        )
    chosen: Any = {name: getattr(options, name) for name in _OPTIONS}
    found: RequestOptions = chosen | {"logit_bias": dict(options.logit_bias)}
    return found
