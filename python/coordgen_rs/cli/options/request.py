"""What a request asks for on the command line: its limits, and how tokens are chosen.

In: a parser. Out: options; from those the keywords of `Model`'s methods. `generate` and `chat`
share them.
"""

import argparse
import math

from coordgen_rs.cli.options import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.model.options import RequestOptions


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


_LIMITS = (
    option.text("--system TEXT").help("in a chat: what the model is told before everything else"),
    option.count("--max-new-tokens N", default=256).help(
        "most tokens of an answer; default %(default)s"
    ),
    option.text("--stop TEXT", may_be_empty=False, action="append", default=[]).help(
        "end the answer before this text; can be given more than once"
    ),
    option.flag("--ignore-eos").help("go on behind end tokens, to the limit"),
)
_SAMPLING = (
    option.number("--temperature T", least=0, default=0).help(
        "sample at this temperature; 0 (default) always takes the most likely token"
    ),
    option.count("--top-k K", least=0, default=0).help(
        "sample from the K most likely tokens; default: all"
    ),
    option.number("--top-p P", least=0, most=1, default=1).help(
        "sample from the fewest tokens whose probabilities add up to P; default: all"
    ),
    option.number("--min-p P", least=0, most=1, default=0).help(
        "sample from tokens at least P times as likely as the likeliest; default: all"
    ),
    option.number("--repetition-penalty X", least=0.01, most=100, default=1).help(
        "above 1: make tokens of prompt and answer less likely, at temperature 0 too; "
        "default %(default)s"
    ),
    option.number("--presence-penalty X", least=-2, most=2, default=0).help(
        "above 0: make tokens of the answer less likely, at temperature 0 too; default %(default)s"
    ),
    option.number("--frequency-penalty X", least=-2, most=2, default=0).help(
        "the same, for each time that the answer has the token; default %(default)s"
    ),
    option.Option("--logit-bias ID=BIAS", parse_bias, {"action": "append", "default": []}).help(
        "add BIAS, -100 to 100, to the logit of the token ID, at temperature 0 too; -inf never "
        "says it; can be given more than once"
    ),
    option.count("--seed N", least=0, most=2**64 - 1).help(
        "the same seed gives the same tokens; default: one at random, which is told"
    ),
)


SETTABLE = (
    *(it for it in _LIMITS if it.shown.startswith("--max-new-tokens")),
    *(it for it in _SAMPLING if not it.shown.startswith("--logit-bias")),
)
"""Those that have one value, which a dialogue may change."""


def add_arguments(parser: Parser) -> None:
    """Declare the options of a request."""
    parser.declare(*_LIMITS, *_SAMPLING)


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
    return {
        "max_new_tokens": options.max_new_tokens,
        "stop": options.stop,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "repetition_penalty": options.repetition_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "logit_bias": dict(options.logit_bias),
        "seed": options.seed,
        "ignore_eos": options.ignore_eos,
    }
