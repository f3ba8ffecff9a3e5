"""The command `coordgen`: parse, call, print. An error is one line on stderr, and an exit code."""

import sys
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from itertools import dropwhile

from coordgen_rs.cli import mistyped
from coordgen_rs.cli.exit_codes import DONE, EXIT_CODES, FAILED, INTERRUPTED
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import streams, text
from coordgen_rs.cli.terminal.warned import warnings_told
from coordgen_rs.errors import CoordgenError
from coordgen_rs.errors.version import package_version

_COMMANDS = {
    "generate": ("cli.commands.generate", "answer a prompt, printing text as it comes"),
    "chat": ("cli.commands.chat", "talk with an instruct model"),
    "serve": ("cli.commands.serve", "serve a model to OpenAI clients and browsers on this machine"),
    "export": ("convert.commands.export", "convert a checkpoint to a bundle"),
    "check": ("lab.check", "verify a bundle's files, and that it is exact on this machine"),
    "verify": (
        "lab.verify.command",
        "ask any OpenAI-compatible server whether its drafts change answers",
    ),
    "quality": (
        "lab.quality.command",
        "compare the kinds of weights that a checkpoint can be exported with",
    ),
    "info": ("cli.commands.info", "describe a bundle"),
    "compile": (
        "convert.commands.compile",
        "compile a bundle for its Qualcomm chip, so that it loads quickly",
    ),
    "history": (
        "cli.commands.history",
        "list, export, import and clear finished requests, add documents, build a fleet's index",
    ),
    "replay": ("lab.replay.command", "measure a drafter on recorded answers, without a model"),
    "profile": ("lab.profile.command", "measure what each block of a bundle costs on this machine"),
    "bench": ("lab.bench.command", "run benchmarks with a real model, as tables, JSON and plots"),
    "warm-up": (
        "cli.commands.warm_up",
        "let a model read texts, and save which tokens it expects after each token",
    ),
    "plan": (
        "lab.plans.command",
        "plan when to load which graph during a prefill, by every strategy",
    ),
    "cache": ("cli.commands.cache", "list and remove what was converted when it was opened"),
    "prefixes": (
        "cli.commands.prefixes",
        "list and remove prefixes of requests that are kept on disk",
    ),
    "doctor": (
        "cli.commands.doctor",
        "what this installation and machine can do, and what is missing",
    ),
    "completion": ("cli.commands.completion", "print a script that completes commands in a shell"),
}
"""The module of each command, and what it does; it is loaded when it is asked for.

The modules have `EXAMPLES`, `add_arguments` and `run`.
"""

USES = """\
Faster text generation on device, without changing a single token.

  talk with a model     coordgen chat MODEL
  serve one             coordgen serve MODEL
  draft in my engine    from coordgen_rs.adapters.transformers import Drafted
"""

FIRST_STEPS = (
    USES
    + """
MODEL is a GGUF file, a Hugging Face directory or hf:OWNER/NAME, which is converted when it is
first opened, or a folder of ONNX Runtime GenAI. `coordgen chat` alone lists those that are here.
`coordgen serve` is for clients of OpenAI's, Anthropic's and Ollama's interfaces, and has a page to
chat at. There are adapters for seven engines: see docs/engines.md.

what to type next:
  coordgen generate --model MODEL --chat --user "..." --compare
                                   answer one message, with and without drafts
  coordgen export MODEL bundle --weights int8
                                   convert a model to a folder of your own, with other weights
  coordgen doctor                  what this machine can do, and what is missing

coordgen --help lists all commands; coordgen COMMAND --help explains one
"""
)


def main(
    arguments: Sequence[str] | None = None, *, when_loaded: Callable[[], object] | None = None
) -> int:
    """Run one command.

    Args:
        arguments: What follows `coordgen` on the command line; None for those of this process.
        when_loaded: Called when the command's modules are there, before it begins.

    Returns:
        The exit code, see `EXIT_CODES`.
    """
    try:
        code = _run(arguments, when_loaded)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        streams.let_go_of_stdout()
        return DONE
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


def _run(arguments: Sequence[str] | None, when_loaded: Callable[[], object] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        print(FIRST_STEPS, end="")
        return DONE
    if words[0] == "help":  # as in `git help log`; help of help is that of all
        words = [*dropwhile(lambda word: word == "help", words), "--help"]
    named = next((word for word in words if word in _COMMANDS), None)
    parser = make_parser([] if named is None else [named])
    if when_loaded is not None:
        when_loaded()
    mistake = mistyped.mistake(parser, words)
    if mistake is not None:
        return _fail(mistake)
    try:
        options, unknown = parser.parse_known_args(words)
        if unknown:
            options.fail(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as ended:  # --help, --version, or a mistake that is told
        return FAILED if ended.code else DONE
    if arguments is None:  # this process is ours
        from coordgen_rs._core import name_bus_errors

        name_bus_errors()
    with warnings_told():
        code: int = options.run(options)
    return code


def _fail(message: str, code: int = FAILED) -> int:
    text.tell(f"coordgen: error: {message}")
    return code


def make_parser(loaded: Collection[str] = tuple(_COMMANDS)) -> Parser:
    """The parser for the command line; each command sets `run` and `fail`.

    Args:
        loaded: The commands that get their options; of the others it knows only the names.
    """
    parser = Parser(
        prog="coordgen",
        description=USES,
        epilog=EXIT_CODES,
    )
    parser.add_argument(
        "-v", "--version", action="version", version=f"coordgen {package_version()}"
    )
    parser.add_commands({name: about for name, (_, about) in _COMMANDS.items()})
    for name in loaded:
        place, _ = _COMMANDS[name]
        module = import_module(f"coordgen_rs.{place}")
        command = parser.commands[name]
        command.epilog = module.EXAMPLES
        command.set_defaults(run=module.run, fail=command.error)
        module.add_arguments(command)
    return parser
