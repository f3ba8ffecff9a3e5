"""A parser of a command line that remembers what was declared, and tells mistakes in one line.

In: options, and names of commands. Out: what `argparse` makes of a command line; and for whoever
completes, documents or corrects one, what there is to type.
"""

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from coordgen_rs.cli.exit_codes import FAILED
from coordgen_rs.cli.terminal import text

if TYPE_CHECKING:  # it loads NumPy, which `coordgen --version` does without
    from coordgen_rs.cli.options.option import Option


def is_option(word: str) -> bool:
    """Whether a word of a command line is meant as an option: a dash, and more."""
    return len(word) > 1 and word.startswith("-")


class Parser(argparse.ArgumentParser):
    """The parser of `coordgen`, or of one of its commands.

    Attributes:
        declared: Every option, and every word that stands alone, in order.
        commands: Name to the parser of a command; empty where there are none.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self.declared: list[argparse.Action] = []
        self.commands: dict[str, Parser] = {}
        keywords.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **keywords)

    def add_argument(self, *names: str, **keywords: Any) -> argparse.Action:
        """Declare one, such as `--help`, which every parser has."""
        action = super().add_argument(*names, **keywords)
        self.declared.append(action)
        return action

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Same as in `argparse`; words behind the first options are added to those before them."""
        found, unknown = super().parse_known_args(args, namespace)
        words = getattr(found, "words", None)
        if isinstance(words, list) and not any(is_option(each) for each in unknown):
            words += unknown
            unknown = []
        return found, unknown

    def declare(self, *options: "Option") -> None:
        """Declare options, in the order of the help."""
        for option in options:
            option.add_to(self)

    def declare_group(self, title: str, *options: "Option") -> None:
        """Declare options that help shows apart, under a title."""
        group = self.add_argument_group(title)
        self.declared += [option.add_to(group) for option in options]

    def declare_alternatives(self, *options: "Option") -> None:
        """Declare options of which only one may be given."""
        group = self.add_mutually_exclusive_group()
        self.declared += [option.add_to(group) for option in options]

    def add_commands(self, abouts: Mapping[str, str]) -> None:
        """Declare commands, of which one must be given: name to what it does."""
        subparsers = self.add_subparsers(required=True, metavar="COMMAND")
        for name, about in abouts.items():
            self.commands[name] = subparsers.add_parser(name, help=about, description=about)

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
