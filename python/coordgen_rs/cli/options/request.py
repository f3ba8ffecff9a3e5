"""What a request asks for on the command line: its limits, and how tokens are chosen.

In: a parser. Out: options; from those the keywords of `Model`'s methods. `generate` and `chat`
share them.
"""

import argparse

from coordgen_rs.cli.options import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.model.options import RequestOptions

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
    option.count("--seed N", least=0, most=2**64 - 1).help(
        "the same seed gives the same tokens; default: one at random, which is told"
    ),
)


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
        "seed": options.seed,
        "ignore_eos": options.ignore_eos,
    }
