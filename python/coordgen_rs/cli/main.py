"""The command `coordgen`: parse, call, print. An error is one line on stderr, and an exit code."""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import NoReturn

from coordgen_rs._core import name_bus_errors
from coordgen_rs.cli import (
    bench,
    chat,
    check,
    completion,
    doctor,
    export,
    generate,
    history,
    info,
    mistyped,
    plan,
    profile,
    quality,
    replay,
    serve,
    streams,
    text,
    warm_up,
)
from coordgen_rs.cli import compile as compile_command
from coordgen_rs.cli.entry import INTERRUPTED
from coordgen_rs.errors import CoordgenError

_COMMANDS: dict[str, ModuleType] = {
    "generate": generate,
    "chat": chat,
    "serve": serve,
    "export": export,
    "check": check,
    "quality": quality,
    "info": info,
    "compile": compile_command,
    "history": history,
    "replay": replay,
    "profile": profile,
    "bench": bench,
    "warm-up": warm_up,
    "plan": plan,
    "doctor": doctor,
    "completion": completion,
}
"""One module per command, with `ABOUT`, `EXAMPLES`, `add_arguments` and `run`."""

FIRST_STEPS = """\
coordgen: faster text generation on device, with the same tokens

what to type next:
  coordgen export MODEL bundle --weights w8a8
                                   convert a model: a Hugging Face directory or hf:OWNER/NAME; for
                                   a GGUF file leave --weights out, it keeps its own (a folder of
                                   ONNX Runtime GenAI needs no conversion)
  coordgen chat bundle             talk with it
  coordgen generate --model bundle --chat --user "..." --compare
                                   answer one message, with and without drafts
  coordgen serve bundle            a server for OpenAI clients, with a chat page
  coordgen doctor                  what this machine can do, and what is missing

coordgen --help lists all commands; coordgen COMMAND --help explains one
"""

EXIT_CODES = """\
exit codes:
  0    done
  1    `check`: not exact here; `generate --compare`: other tokens; `--table`: a cell failed
  2    wrong use, wrong input, or a failure: one line on stderr says what
  130  interrupted (Ctrl-C)
"""

_DONE, _FAILED = 0, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: What follows `coordgen` on the command line; None for those of this process.

    Returns:
        The exit code, see `EXIT_CODES`.
    """
    if arguments is None:  # this process is ours
        name_bus_errors()
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        streams.let_go_of_stdout()
        return _DONE
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except OSError as error:
        if error.filename == streams.STDOUT:
            streams.let_go_of_stdout()
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except MemoryError:
        return _fail("out of memory: free some, or raise the limit (ulimit -v)")
    except CoordgenError as error:
        return _fail(str(error))
    return code


def _run(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        print(FIRST_STEPS, end="")
        return _DONE
    if words[0] == "help":  # as in `git help log`
        words = [*words[1:], "--help"]
    parser = make_parser()
    mistake = mistyped.mistake(parser, words)
    if mistake is not None:
        return _fail(mistake)
    try:
        options, unknown = parser.parse_known_args(words)
        if unknown:
            options.fail(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as ended:  # --help, --version, or a mistake that is told
        return _FAILED if ended.code else _DONE
    code: int = options.run(options)
    return code


def _fail(message: str, code: int = _FAILED) -> int:
    text.tell(f"coordgen: error: {message}")
    return code


class _Parser(argparse.ArgumentParser):
    """A parser that tells a mistake in one line, as all other errors are told."""

    def error(self, message: str) -> NoReturn:
        """Tell the mistake, and end with exit code 2."""
        self.exit(_fail(f"{message}; see {self.prog} --help"))


def make_parser() -> argparse.ArgumentParser:
    """The parser for the whole command line; each command sets `run` and `fail`."""
    parser = _Parser(
        prog="coordgen",
        description="Faster text generation on device, without changing a single token.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"coordgen {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=module.ABOUT,
            description=module.ABOUT,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=module.run, fail=command.error)
        module.add_arguments(command)
    return parser


def _version() -> str:
    try:
        return version("coordgen-rs")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
