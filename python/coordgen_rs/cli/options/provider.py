"""The options that choose what runs a bundle: `--provider`, and those of QNN."""

import argparse

from coordgen_rs.opening.provider import PROVIDERS, ProviderChoice
from coordgen_rs.target.qnn.options import parse_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--provider", choices=PROVIDERS, help="require a bundle made for this provider"
    )
    parser.add_argument("--soc", metavar="NAME", help="require a bundle made for this chip")
    parser.add_argument(
        "--recompile",
        action="store_true",
        help="compile again if context binaries are for another version or chip",
    )
    add_qnn_option(parser)


def add_qnn_option(parser: argparse.ArgumentParser) -> None:
    """Declare `--qnn-option`, which several commands share."""
    parser.add_argument(
        "--qnn-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the QNN provider: performance_mode, vtcm_mb, finalization_mode, "
        "context_priority, shared_memory, spill_fill, offload_io_quantization, profiling, "
        "profiling_file, or any other by the provider's own name",
    )


def chosen(options: argparse.Namespace) -> ProviderChoice:
    """What the options ask for.

    Raises:
        OptionError: An option of QNN is unknown or has a wrong value.
    """
    qnn_options = parse_options(options.qnn_option)
    return ProviderChoice(options.provider, options.soc, qnn_options, options.recompile)


def given(options: argparse.Namespace) -> list[str]:
    """The options as they were typed, to pass on to another command."""
    typed = [f"--qnn-option={option}" for option in options.qnn_option]
    typed += ["--recompile"] if options.recompile else []
    return typed + [
        f"--{name}={value}"
        for name, value in (("provider", options.provider), ("soc", options.soc))
        if value is not None
    ]
