"""The options by which commands say what shall run a bundle: `--provider` and those of QNN."""

import argparse

from coordgen_rs.cli import compile as compile_command
from coordgen_rs.target.provider import PROVIDERS, ProviderChoice
from coordgen_rs.target.qnn.options import parse_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--provider", choices=PROVIDERS, help="refuse a bundle that was made for another"
    )
    parser.add_argument("--soc", metavar="NAME", help="refuse a bundle for another chip")
    parser.add_argument(
        "--recompile",
        action="store_true",
        help="compile again where context binaries are of another version or chip",
    )
    compile_command.add_option_argument(parser)


def chosen(options: argparse.Namespace) -> ProviderChoice:
    """What was asked for; raises OptionError where an option of QNN is none."""
    qnn_options = parse_options(options.qnn_option)
    return ProviderChoice(options.provider, options.soc, qnn_options, options.recompile)


def given(options: argparse.Namespace) -> list[str]:
    """The options as they were typed, for another command that has them."""
    typed = [f"--qnn-option={option}" for option in options.qnn_option]
    typed += ["--recompile"] if options.recompile else []
    return typed + [
        f"--{name}={value}"
        for name, value in (("provider", options.provider), ("soc", options.soc))
        if value is not None
    ]
