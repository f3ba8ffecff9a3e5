"""Commands and options that do not exist, told before anything else, with what was probably meant.

In: the parser, and what was typed. Out: the mistake as one line, or None. `argparse` would name
what is missing first, or take the value of an unknown option for something else.
"""

import argparse
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

_OPTION = re.compile(r"--[a-z][a-z0-9_-]*(?==|$)", re.IGNORECASE)
_LIKE = 0.6
"""The share of letters in common from which a name may have been meant."""


def mistake(parser: argparse.ArgumentParser, words: Sequence[str]) -> str | None:
    """What is wrong with the first word that the parser does not know.

    Args:
        parser: Of the whole command line.
        words: What follows `coordgen`.
    """
    for word in words:
        if word == "--":
            return None
        commands = _commands(parser)
        option = _OPTION.match(word)
        if option is not None:
            known = [name for name in parser._option_string_actions if name.startswith("--")]
            if not any(name.startswith(option[0]) for name in known):
                return f"no option {option[0]}{_advice(option[0], known, parser)}"
        elif word in commands:
            parser = commands[word]
        elif commands and not word.startswith("-"):
            return f"no command {word!r}{_advice(word, commands, parser)}"
    return None


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _advice(typed: str, known: Iterable[str], parser: argparse.ArgumentParser) -> str:
    names = {name.strip("-"): name for name in known}
    meant = typed.strip("-").lower().replace("_", "-")
    found = [name for name in names if f"-{meant}-" in f"-{name}-"]
    found += get_close_matches(meant, names, n=1, cutoff=_LIKE)
    return f": did you mean {names[found[0]]}?" if found else f"; see {parser.prog} --help"
