"""The command `coordgen`: parse, call, print. An error is one line on stderr, and an exit code."""

import sys
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from itertools import dropwhile

from coordgen_rs.cli.exit_codes import DONE, EXIT_CODES, FAILED, INTERRUPTED
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import streams, text
from coordgen_rs.errors import CoordgenError
from coordgen_rs.errors.extras import package_version

GROUPS = {
    "answer": {
        "chat": "talk with an instruct model",
        "generate": "answer a prompt, printing text as it comes",
        "serve": "serve a model to OpenAI clients and browsers",
    },
    "models": {
        "export": "convert a checkpoint to a bundle",
        "info": "describe a bundle",
        "check": "verify a bundle's files, and that it is exact here",
        "compile": "compile a bundle for its Qualcomm chip",
        "cache": "list and remove what was converted when it was opened",
        "prefixes": "list and remove prefixes of requests kept on disk",
        "history": "earlier requests and documents, and a fleet's index",
        "doctor": "what this machine can do, and what is missing",
        "completion": "print a script that completes commands in a shell",
    },
    "measure": {
        "bench": "run benchmarks with a real model",
        "verify": "ask a server whether its drafts change answers",
        "quality": "compare the kinds of weights of a checkpoint",
        "profile": "measure what each block of a bundle costs here",
        "plan": "plan when to load which graph, by every strategy",
        "replay": "measure a drafter on recorded answers",
        "papers": "set the papers' figures beside those of a model here",
        "warm-up": "save which tokens a model expects after each token",
    },
}
"""The commands by what they are for, and what each does."""

_MODULES = {
    "export": "convert.export",
    "compile": "convert.qnn.compile",
    "check": "lab.check",
    "bench": "lab.bench.command",
    "verify": "lab.verify.command",
    "quality": "lab.quality",
    "profile": "lab.loads.profile",
    "plan": "lab.loads.plans",
    "replay": "lab.replay.command",
    "papers": "lab.papers.command",
    "warm-up": "lab.warm_up",
}
"""Where a command is that is not in `cli.commands`; it is loaded when it is asked for.

The modules have `EXAMPLES`, `add_arguments` and `run`.
"""
_ABOUTS = {name: about for commands in GROUPS.values() for name, about in commands.items()}

USES = """\
Faster text generation on device, without changing a single token.
"""

FIRST_STEPS = (
    USES
    + """
  talk with a model     coordgen chat MODEL
  serve one             coordgen serve MODEL
  draft in my engine    from coordgen_rs.adapters.transformers import Drafted

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


class _Overview(Parser):
    """The parser of the whole command line, whose help shows the commands in groups."""

    def format_help(self) -> str:
        """The help, on one screen of 24 lines."""
        lines = [f"usage: {self.prog} [-h] [-v] COMMAND ...", ""]
        for title, commands in GROUPS.items():
            titles = [title, *[""] * len(commands)]
            rows = zip(titles, commands.items(), strict=False)
            lines += [f"  {first:9}{name:12}{about}" for first, (name, about) in rows]
        more = "coordgen COMMAND --help explains one; exit codes: coordgen help exit-codes"
        return "\n".join([*lines, "", more, ""])


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
        if words[0] == "exit-codes":
            print(EXIT_CODES, end="")
            return DONE
    named = next((word for word in words if word in _ABOUTS), None)
    parser = make_parser([] if named is None else [named])
    if when_loaded is not None:
        when_loaded()
    mistake = parser.mistake(words)
    if mistake is not None:
        return _fail(mistake)
    try:
        options = parser.parse_args(words)
    except SystemExit as ended:  # --help, --version, or a mistake that is told
        return FAILED if ended.code else DONE
    if arguments is None:  # this process is ours
        from coordgen_rs._core import name_bus_errors

        name_bus_errors()
    with text.warnings_told():
        code: int = options.run(options)
    return code


def _fail(message: str, code: int = FAILED) -> int:
    text.tell(f"coordgen: error: {message}")
    return code


def make_parser(loaded: Collection[str] = tuple(_ABOUTS)) -> Parser:
    """The parser for the command line; each command sets `run`.

    Args:
        loaded: The commands that get their options; of the others it knows only the names.
    """
    parser = _Overview(prog="coordgen", description=USES)
    parser.add_argument(
        "-v", "--version", action="version", version=f"coordgen {package_version()}"
    )
    parser.add_commands(_ABOUTS)
    for name in loaded:
        module = import_module(f"coordgen_rs.{_MODULES.get(name, f'cli.commands.{name}')}")
        command = parser.commands[name]
        command.epilog = module.EXAMPLES
        command.set_defaults(run=module.run)
        module.add_arguments(command)
        for each in command.with_commands():
            each.shorten_usage()
    return parser
