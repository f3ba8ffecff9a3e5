"""The command `coordgen`: parse, call, print. An error is one line on stderr and exit code 2."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from types import ModuleType

from coordgen_rs.cli import (
    bench,
    check,
    export,
    generate,
    history,
    info,
    plan,
    profile,
    replay,
    warm_up,
)
from coordgen_rs.cli import compile as compile_command
from coordgen_rs.errors import CoordgenError

_COMMANDS: dict[str, ModuleType] = {
    "generate": generate,
    "export": export,
    "check": check,
    "info": info,
    "compile": compile_command,
    "history": history,
    "replay": replay,
    "profile": profile,
    "bench": bench,
    "warm-up": warm_up,
    "plan": plan,
}
"""One module per command, with `ABOUT`, `EXAMPLES`, `add_arguments` and `run`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0; 1 if `check` finds that a bundle is not lossless; 2 after an error or an interruption,
        printed as one line on stderr.
    """
    options = make_parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _fail("interrupted")
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (CoordgenError, UnicodeDecodeError) as error:
        return _fail(str(error))
    return code


def _fail(message: str) -> int:
    print(f"coordgen: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def make_parser() -> argparse.ArgumentParser:
    """The parser for the whole command line; each command sets `run`."""
    parser = argparse.ArgumentParser(
        prog="coordgen",
        description="Faster text generation on device, without changing a single token.",
    )
    parser.add_argument("--version", action="version", version=version("coordgen-rs"))
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=module.ABOUT,
            description=module.ABOUT,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=module.run)
        module.add_arguments(command)
    return parser
