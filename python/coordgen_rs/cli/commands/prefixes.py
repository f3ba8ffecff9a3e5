"""`coordgen prefixes`: the prefixes of requests that are kept on disk."""

import argparse
import json

from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal.text import counted, printable, show_bytes, show_time, tell
from coordgen_rs.loading.options import OPEN_OPTIONS
from coordgen_rs.store.prefixes.directory import ScopeSummary, clear, summaries

EXAMPLES = """\
A store is a directory that was given as --prefix-store to serve, chat or generate. Clearing it
while a server runs is safe: prompts are computed again. What the server itself still holds in
memory is stored again when it is next used.

examples:
  coordgen prefixes list --prefix-store prefixes
  coordgen prefixes clear --prefix-store prefixes --namespace alice
  coordgen prefixes clear --prefix-store prefixes --older-than 30
  coordgen prefixes clear --prefix-store prefixes
"""


def add_arguments(parser: Parser) -> None:
    """Declare the two commands; each sets `run_prefixes`."""
    parser.add_commands(
        {
            "list": "list what is kept: bundle, namespace, tokens, size, when it was last used",
            "clear": "remove what is kept, all of it or a part",
        }
    )
    for command, run_it in zip(parser.commands.values(), (_list, _clear), strict=True):
        command.set_defaults(run_prefixes=run_it)
        command.declare(
            option.of(OPEN_OPTIONS, "prefix_store", required=True).help(
                "the directory that was given to serve, or another"
            )
        )
    parser.commands["list"].declare(option.JSON.help("print one JSON array instead"))
    parser.commands["clear"].declare(
        option.text("--namespace NAME", may_be_empty=False).help("only those of this namespace"),
        option.OLDER_THAN,
    )


def run(options: argparse.Namespace) -> int:
    """Run the chosen command.

    Raises:
        OptionError: The directory is no store.
        OSError: The directory cannot be read, or a file not removed.
    """
    code: int = options.run_prefixes(options)
    return code


def _list(options: argparse.Namespace) -> int:
    found = summaries(options.prefix_store)
    if options.json:
        print(json.dumps([_facts(it) for it in found]))
        return 0
    for it in found:
        when = "nothing left" if it.used_at is None else f"last used {show_time(it.used_at)}"
        namespace = "unknown" if it.namespace is None else repr(printable(it.namespace))
        print(
            f"{printable(it.bundle) or 'unknown bundle'}, namespace {namespace}: "
            f"{it.num_tokens:,} tokens, {show_bytes(it.num_bytes)}, keys and values in "
            f"{printable(it.kv_cache) or 'an unknown form'}, {when}"
        )
    total = show_bytes(sum(it.num_bytes for it in found))
    print(f"{counted(sum(it.num_tokens for it in found), 'token')}, {total}")
    return 0


def _facts(found: ScopeSummary) -> dict[str, object]:
    return {
        "bundle": found.bundle or None,
        "namespace": found.namespace,
        "kv_cache": found.kv_cache or None,
        "made_by": found.made_by or None,
        "num_tokens": found.num_tokens,
        "num_bytes": found.num_bytes,
        "used_at": found.used_at,
        "directory": str(found.directory),
    }


def _clear(options: argparse.Namespace) -> int:
    found = summaries(options.prefix_store)
    if options.namespace is not None:
        found = [it for it in found if it.namespace == options.namespace]
    if not found:
        whose = "" if options.namespace is None else f" of namespace {options.namespace!r}"
        tell(f"{options.prefix_store}: no prefixes{whose} are stored here")
        return 0
    since = option.unused_since(options)
    freed = sum(clear(it, since) for it in found)
    tell(
        f"{options.prefix_store}: {show_bytes(freed)} removed; a server that runs stores again "
        "what it still holds in memory, when that is next used"
    )
    return 0
