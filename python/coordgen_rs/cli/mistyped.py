"""Commands and options that do not exist, told before anything else, with what was probably meant.

In: the parser, and what was typed. Out: the mistake as one line, or None. `argparse` would name
what is missing first, or take the value of an unknown option for something else.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from coordgen_rs.cli.parser import Parser

_OPTION = re.compile(r"--[a-z][a-z0-9_-]*(?==|$)", re.IGNORECASE)
_MODEL = ("--model", "--bundle", "--checkpoint")
"""What a command may call the model that it opens; to some it is given without an option."""
_LIKE = 0.6
"""The share of letters in common from which a name may have been meant."""


def mistake(parser: Parser, words: Sequence[str]) -> str | None:
    """What is wrong with the first word that the parser does not know.

    Args:
        parser: The parser of the whole command line.
        words: What follows `coordgen`.
    """
    for word in words:
        if word == "--":
            return None
        option = _OPTION.match(word)
        if option is not None:
            known = parser.long_options()
            if not any(name.startswith(option[0]) for name in known):
                advice = _model_advice(option[0], known, parser)
                return f"no option {option[0]}{advice or _advice(option[0], known, parser)}"
        elif word in parser.commands:
            parser = parser.commands[word]
        elif parser.commands and not word.startswith("-"):
            return f"no command {word!r}{_advice(word, parser.commands, parser)}"
    return None


def _model_advice(typed: str, known: Iterable[str], parser: Parser) -> str | None:
    """How the command takes its model, if that is what was typed, and it takes one."""
    if typed not in _MODEL:
        return None
    for name in _MODEL:
        if name in known:
            return f": did you mean {name}?"
    alone = (it for it in parser.declared if f"--{it.dest}" in _MODEL)
    return next((f": leave it out, as in {parser.prog} {it.metavar}" for it in alone), None)


def _advice(typed: str, known: Iterable[str], parser: Parser) -> str:
    names = {name.strip("-"): name for name in known}
    meant = typed.strip("-").lower().replace("_", "-")
    found = [name for name in names if f"-{meant}-" in f"-{name}-"]
    found += get_close_matches(meant, names, n=1, cutoff=_LIKE)
    return f": did you mean {names[found[0]]}?" if found else f"; see {parser.prog} --help"
