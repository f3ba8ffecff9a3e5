"""`coordgen cache`: the checkpoints that were converted when they were opened."""

import argparse
import json
from pathlib import Path

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.manifest import Manifest
from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal.text import counted, printable, show_bytes, show_time, tell
from coordgen_rs.errors import BundleError, OptionError
from coordgen_rs.loading.conversion import shown_source
from coordgen_rs.store.cache import Conversion, cache_directory, clear, conversions, made_of

EXAMPLES = """\
examples:
  coordgen cache list
  coordgen cache clear SmolLM2-135M-Instruct.Q4_0.gguf
  coordgen cache clear --older-than 30
  coordgen cache clear
  coordgen cache path
"""


def add_arguments(parser: Parser) -> None:
    """Declare the three commands; each sets `run_cache`."""
    parser.add_commands(
        {
            "list": "list what was converted: from what, size, weights, context, last use",
            "clear": "remove conversions that are not in use",
            "path": "print where conversions and results of self-tests are kept",
        }
    )
    for command, run in zip(parser.commands.values(), (_list, _clear, _path), strict=True):
        command.set_defaults(run_cache=run)
    parser.commands["list"].declare(option.JSON.help("print one JSON array instead"))
    parser.commands["clear"].declare(
        option.path("model MODEL", nargs="?").help(
            "only what was converted from this file, directory or name, or the conversion in this "
            "directory of the cache; default: all"
        ),
        option.OLDER_THAN,
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
        manifest = _manifest(conversion)
        kind = "damaged"
        if manifest is not None:
            kind = f"weights {manifest.weights}, context {manifest.context:,}"
        is_gone = " (gone)" if conversion.is_source_gone else ""
        print(
            f"{printable(conversion.source)}{is_gone}: {show_bytes(conversion.num_bytes)}, {kind}, "
            f"last used {show_time(conversion.used_at)}"
        )
    print(f"{counted(len(found), 'conversion')}, {show_bytes(sum(it.num_bytes for it in found))}")
    return 0


def _facts(conversion: Conversion) -> dict[str, object]:
    manifest = _manifest(conversion)
    return {
        "source": conversion.source,
        "is_source_gone": conversion.is_source_gone,
        "num_bytes": conversion.num_bytes,
        "weights": None if manifest is None else manifest.weights,
        "context": None if manifest is None else manifest.context,
        "used_at": conversion.used_at,
        "bundle": str(conversion.bundle),
    }


def _manifest(conversion: Conversion) -> Manifest | None:
    """What a conversion is; None if it is damaged, and is made anew when it is opened."""
    try:
        return Bundle.open(conversion.bundle).manifest
    except BundleError:
        return None


def _clear(options: argparse.Namespace, cache: Path) -> int:
    found = conversions(cache)
    chosen = None
    if options.model is not None:
        source = shown_source(options.model)
        chosen = made_of(cache, options.model, source)
        if not chosen:
            raise OptionError(f"{source} has no conversion; see coordgen cache list")
    if (since := option.unused_since(options)) is not None:
        chosen = [it for it in (found if chosen is None else chosen) if it.used_at < since]
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
