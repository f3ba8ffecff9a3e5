"""The options that say which earlier requests are drafted from."""

import argparse

from coordgen_rs.cli.terminal import values
from coordgen_rs.errors.arguments import DEFAULT_NAMESPACE
from coordgen_rs.history.store import DEFAULT_MAX_TOKENS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of commands that answer."""
    parser.add_argument(
        "--history",
        type=values.path("--history"),
        metavar="DIR",
        help="also draft from earlier requests kept here, and keep this one; created if missing",
    )
    parser.add_argument(
        "--namespace",
        type=values.text("--namespace", may_be_empty=False),
        metavar="NAME",
        help="e.g. task and user; requests of other namespaces are not drafted from; "
        f"default: {DEFAULT_NAMESPACE}",
    )
    add_max_tokens(parser, "--history-max-tokens")
    parser.add_argument(
        "--fleet-history",
        type=values.path("--fleet-history"),
        metavar="DIR",
        help="also draft from a directory written by `coordgen history build`; only read",
    )
    parser.add_argument(
        "--fleet-namespace",
        type=values.text("--fleet-namespace", may_be_empty=False),
        metavar="NAME",
        help="the namespace of --fleet-history; default: that of --namespace",
    )


def add_max_tokens(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the option that caps a history, under a name."""
    parser.add_argument(
        name,
        type=values.count(name),
        metavar="N",
        help="evict the oldest requests of all namespaces beyond this; the history keeps the "
        f"number; at first {DEFAULT_MAX_TOKENS}",
    )
