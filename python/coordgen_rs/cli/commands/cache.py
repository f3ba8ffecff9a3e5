"""`coordgen cache`: the checkpoints that were converted when they were opened."""

import argparse
import json
import time
from pathlib import Path

from coordgen_rs.cli.options import option, shared
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal.byte_size import show_bytes
from coordgen_rs.cli.terminal.counted import counted
from coordgen_rs.cli.terminal.printable import printable
from coordgen_rs.cli.terminal.text import tell
from coordgen_rs.errors import OptionError
from coordgen_rs.opening.cache import Conversion, cache_directory, clear, conversions, made_of
from coordgen_rs.opening.source import shown_source

EXAMPLES = """\
examples:
  coordgen cache list
  coordgen cache clear SmolLM2-135M-Instruct.Q4_0.gguf
  coordgen cache clear
  coordgen cache path
"""


def add_arguments(parser: Parser) -> None:
    """Declare the three commands; each sets `run_cache`."""
    parser.add_commands({name: about for name, (about, _) in _COMMANDS.items()})
    for name, command in parser.commands.items():
        command.set_defaults(run_cache=_COMMANDS[name][1], fail=command.error)
    parser.commands["list"].declare(shared.JSON.help("print one JSON array instead"))
    parser.commands["clear"].declare(
        option.path("model MODEL", nargs="?").help(
            "only what was converted from this file, directory or name; default: all"
        )
    )


def run(options: argparse.Namespace) -> int:
    """Run the chosen command.

    Raises:
        OptionError: There is no home directory, or what is to be removed was not converted.
        OSError: The cache cannot be read or changed.
    """
    cache = cache_directory()
    if cache is None:
        raise OptionError("there is no home directory for a cache: set XDG_CACHE_HOME")
    code: int = options.run_cache(options, cache)
    return code


def _list(options: argparse.Namespace, cache: Path) -> int:
    found = conversions(cache)
    if options.json:
        print(json.dumps([_facts(conversion) for conversion in found]))
        return 0
    for conversion in found:
        print(
            f"{printable(conversion.source)}: {show_bytes(conversion.num_bytes)}, "
            f"last used {time.strftime('%Y-%m-%d %H:%M', time.localtime(conversion.used_at))}"
        )
    return 0


def _facts(conversion: Conversion) -> dict[str, object]:
    return {
        "source": conversion.source,
        "num_bytes": conversion.num_bytes,
        "used_at": conversion.used_at,
        "bundle": str(conversion.bundle),
    }


def _clear(options: argparse.Namespace, cache: Path) -> int:
    found = conversions(cache)
    chosen = None
    if options.model is not None:
        source = shown_source(options.model)
        chosen = made_of(cache, options.model, source)
        if not chosen:
            raise OptionError(f"{source} has no conversion; see coordgen cache list")
    num_bytes = {it.directory: it.num_bytes for it in (found if chosen is None else chosen)}
    stay = clear(cache, chosen)
    for directory in stay:
        tell(f"coordgen: {directory} is in use, or its disk has no locks: it stays")
    removed = num_bytes.keys() - set(stay)
    freed = show_bytes(sum(num_bytes[directory] for directory in removed))
    tell(f"{cache}: {counted(len(removed), 'conversion')} removed, {freed}")
    return 0


def _path(options: argparse.Namespace, cache: Path) -> int:
    print(cache)
    return 0


_COMMANDS = {
    "list": ("list what was converted: from what, its size, when it was last used", _list),
    "clear": ("remove conversions that are not in use", _clear),
    "path": ("print where conversions and results of self-tests are kept", _path),
}
"""What each command does, and how."""
