"""`coordgen completion`: a script that lets a shell complete commands, options and files.

In: the name of a shell. Out: the script on stdout, made from the parser that the command uses
itself. It installs nothing.
"""

import argparse

from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.errors import OptionError
from coordgen_rs.errors.extras import how_to_install

EXAMPLES = """\
examples:
  coordgen completion bash > ~/.local/share/bash-completion/completions/coordgen
  coordgen completion zsh > ~/.zsh/completions/_coordgen      # a directory of $fpath
  coordgen completion fish > ~/.config/fish/completions/coordgen.fish
"""

SHELLS = ("bash", "zsh", "fish")

_FILES = {"BUNDLE", "CHECKPOINT", "DATA", "DIR", "FILE", "OUT", "PNG", "TEXT"}
"""Names of values that are paths."""


def add_arguments(parser: Parser) -> None:
    """The options of the command."""
    parser.declare(option.choice("shell SHELL", SHELLS).help(", ".join(SHELLS)))


def run(options: argparse.Namespace) -> int:
    """Print the script.

    Raises:
        OptionError: The package shtab is not installed.
    """
    try:
        import shtab
    except ImportError as error:
        raise OptionError(
            f"completion needs the package shtab: {how_to_install('completion')}"
        ) from error
    from coordgen_rs.cli.main import make_parser

    parser = make_parser()
    for command in parser.with_commands():
        for action in command.declared:
            if action.metavar in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=options.shell))
    return 0
