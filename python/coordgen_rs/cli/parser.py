"""A parser of a command line whose help is in groups, and that tells a mistake in one line.

In: options in groups, and names of commands. Out: what `argparse` makes of a command line. What
does not exist is told before anything else, with what was probably meant: `argparse` would name
what is missing first, or take the value of an unknown option for something else.
"""

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from coordgen_rs.cli.exit_codes import FAILED
from coordgen_rs.cli.terminal import text

if TYPE_CHECKING:  # it loads NumPy, which `coordgen --version` does without
    from coordgen_rs.cli.option import Option

_FORMATTER: Any = partial(argparse.RawDescriptionHelpFormatter, max_help_position=27)
_OPTION = re.compile(r"--[a-z][a-z0-9_-]*(?==|$)", re.IGNORECASE)
_MODEL = ("--model", "--bundle", "--checkpoint")
"""What a command may call the model that it opens; to some it is given without an option."""
_LIKE = 0.6
"""The share of letters in common from which a name may have been meant."""


class Parser(argparse.ArgumentParser):
    """The parser of `coordgen`, or of one of its commands.

    Attributes:
        commands: Name to the parser of a command; empty where there are none.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self.commands: dict[str, Parser] = {}
        keywords.setdefault("formatter_class", _FORMATTER)
        super().__init__(*args, **keywords)

    @property
    def declared(self) -> list[argparse.Action]:
        """Every option, and every word that stands alone, in order."""
        return self._actions

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Same as in `argparse`; words behind the first options are added to those before them."""
        found, unknown = super().parse_known_args(args, namespace)
        words = getattr(found, "words", None)
        if isinstance(words, list) and not any(len(it) > 1 and it[0] == "-" for it in unknown):
            words += unknown
            unknown = []
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def declare(self, *options: "Option | Sequence[Option]") -> None:
        """Declare options, in the order of the help; of a sequence only one may be given."""
        self._declare(self, options)

    def declare_group(self, title: str, *options: "Option | Sequence[Option]") -> None:
        """Declare options that help shows behind the others, under a title."""
        self._declare(self.add_argument_group(title), options)

    def _declare(self, group: Any, options: Iterable["Option | Sequence[Option]"]) -> None:
        for given in options:
            if isinstance(given, Sequence):
                self._declare(group.add_mutually_exclusive_group(), given)
            else:
                given.add_to(group)

    def add_commands(self, abouts: Mapping[str, str]) -> None:
        """Declare commands, of which one must be given: name to what it does."""
        subparsers = self.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
        for name, about in abouts.items():
            self.commands[name] = subparsers.add_parser(name, help=about, description=about)

    def shorten_usage(self) -> None:
        """Show in the first line of help what has to be given, and not each option."""
        needed = [it for it in self._actions if it.required or not it.option_strings]
        formatter = self._get_formatter()
        formatter.add_usage(None, needed, [], prefix="")
        self.usage = formatter.format_help().strip().replace(self.prog, f"{self.prog} [options]", 1)

    def long_options(self) -> list[str]:
        """The names of options that begin with two dashes."""
        names = (name for action in self.declared for name in action.option_strings)
        return [name for name in names if name.startswith("--")]

    def with_commands(self) -> Iterator["Parser"]:
        """This parser, and those of its commands and of theirs, in the order of the help."""
        yield self
        for command in self.commands.values():
            yield from command.with_commands()

    def error(self, message: str) -> NoReturn:
        """Tell the mistake, and end with exit code 2."""
        text.tell(f"coordgen: error: {message}; see {self.prog} --help")
        self.exit(FAILED)

    def mistake(self, words: Sequence[str]) -> str | None:
        """What is wrong with the first of some words that does not exist here; None if all do."""
        parser = self
        for word in words:
            if word == "--":
                return None
            option = _OPTION.match(word)
            if option is not None:
                known = parser.long_options()
                if not any(name.startswith(option[0]) for name in known):
                    advice = parser._model_advice(option[0]) or parser._advice(option[0], known)
                    return f"no option {option[0]}{advice}"
            elif word in parser.commands:
                parser = parser.commands[word]
            elif parser.commands and not word.startswith("-"):
                return f"no command {word!r}{parser._advice(word, parser.commands)}"
        return None

    def _model_advice(self, typed: str) -> str | None:
        """How the command takes its model, if that is what was typed, and it takes one."""
        if typed not in _MODEL:
            return None
        for name in _MODEL:
            if name in self.long_options():
                return f": did you mean {name}?"
        alone = (it for it in self.declared if f"--{it.dest}" in _MODEL)
        return next((f": leave it out, as in {self.prog} {it.metavar}" for it in alone), None)

    def _advice(self, typed: str, known: Iterable[str]) -> str:
        names = {name.strip("-"): name for name in known}
        meant = typed.strip("-").lower().replace("_", "-")
        found = [name for name in names if f"-{meant}-" in f"-{name}-"]
        found += get_close_matches(meant, names, n=1, cutoff=_LIKE)
        return f": did you mean {names[found[0]]}?" if found else f"; see {self.prog} --help"
