"""A benchmark as a script: its options, how it ends, the processes that it begins, and its JSON.

In: its main function. Out: the process' exit code. What cannot be measured is one line and exit
code 2; an interrupted one says so in one line, as the command `coordgen` does; what it had begun is
cleared up by its own `with` blocks before.
"""

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from signal import SIG_DFL, SIGINT, signal
from typing import Any, NoReturn

from coordgen_rs.cli import option
from coordgen_rs.errors import CoordgenError

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = ROOT / "benches" / "prompts"
LLAMA_CPP = ROOT / "build" / "peers" / "llama.cpp" / "build" / "bin"
"""Where `make peers` puts llama.cpp's programs."""
_INTERRUPTED = 130
"""128 + SIGINT: the exit code that shells give to a program that was interrupted."""
_NOT_READ = 141
"""128 + SIGPIPE."""
_Main = Callable[..., int | None]


def run_script(main: Callable[[], int | None]) -> NoReturn:
    """Run a script's main function, and end the process with what it returns."""
    try:
        code = main()
    except KeyboardInterrupt:
        print(f"{sys.argv[0]}: interrupted", file=sys.stderr)
        code = _INTERRUPTED
    except BrokenPipeError:  # who read has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = _NOT_READ
    sys.exit(code)


def reports_errors(main: _Main) -> _Main:
    """A main function that tells what it cannot do in one line, and returns 2."""

    @functools.wraps(main)
    def reporting(arguments: list[str] | None = None) -> int:
        try:
            return main(arguments) or 0
        except BrokenPipeError:  # for `run_script`
            raise
        except ModuleNotFoundError as error:
            why = f"no module named {error.name}: pip install --group peers"
        except (CoordgenError, OSError) as error:
            why = str(error)
        print(f"{Path(main.__code__.co_filename).name}: {why}", file=sys.stderr)
        return 2

    return reporting


def own_processes() -> ProcessPoolExecutor:
    """Runs each call in a new process, which an interrupt ends without a word."""
    return ProcessPoolExecutor(
        1, max_tasks_per_child=1, initializer=signal, initargs=(SIGINT, SIG_DFL)
    )


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser with a script's first line as its description."""
    return argparse.ArgumentParser(description=(doc or "").partition("\n")[0])


def add_counts(parser: argparse.ArgumentParser, least: int = 1, **counts: tuple[Any, str]) -> None:
    """Declare numbers from `least` on, by their names: what they are unless said, and the help.

    Several may be given where the default is a list.
    """
    for name, (default, text) in counts.items():
        several = {"nargs": "*"} if isinstance(default, list) else {}
        shown = " ".join(map(str, default)) if several else default
        told = text if default is None else f"{text}, default {shown}".removeprefix(", ")
        typed = f"--{name.replace('_', '-')} N"
        option.count(typed, least=least, default=default, **several).help(told).add_to(parser)


def add_json(parser: argparse.ArgumentParser, *, to_file: bool = False) -> None:
    """Declare `--json`: in place of tables, or of a file beside them."""
    if to_file:
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, too")
    else:
        parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def add_llama_cpp(parser: argparse.ArgumentParser, programs: str = "llama-server") -> None:
    """Declare where llama.cpp's programs are, and where files are made."""
    told = f"{programs}, default what `make peers` builds"
    parser.add_argument("--llama-cpp", type=Path, default=LLAMA_CPP, metavar="DIR", help=told)
    add_work(parser)


def add_work(parser: argparse.ArgumentParser) -> None:
    """Declare where files are made."""
    told = "for files that are made, default %(default)s"
    parser.add_argument("--work", type=Path, default=Path("build/peers"), metavar="DIR", help=told)


def tell(document: Any, to_json: bool | Path | None, show: Callable[[Any], None]) -> None:
    """Print a document's tables, or its JSON; or write that to a file beside them."""
    if to_json is True:
        print(json.dumps(document))
        return
    if to_json:
        to_json.write_text(json.dumps(document), encoding="utf-8")
    show(document)
