"""`coordgen history`: list, export, import and clear finished requests.

Also the options of `coordgen generate` that concern the history.
"""

import argparse
import json
import sqlite3
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from coordgen_rs.errors import HistoryError, HistoryWarning
from coordgen_rs.history.requests import (
    DEFAULT_MAX_TOKENS,
    DEFAULT_NAMESPACE,
    INDEX_SUFFIX,
    index_name,
)
from coordgen_rs.history.store import HistoryStore, Request

_FORMAT = "coordgen-history-1"

ABOUT = "list, export, import and clear finished requests"
EXAMPLES = """\
examples:
  coordgen history ls answers
  coordgen history export answers --namespace mail/alice > alice.jsonl
  coordgen history import answers alice.jsonl
  coordgen history clear answers --namespace mail/alice
"""


def add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `coordgen generate`."""
    parser.add_argument(
        "--history",
        type=Path,
        metavar="DIR",
        help="also draft from earlier requests kept here, and keep this one; created if missing",
    )
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        help="e.g. task and user; requests of other namespaces are not drafted from; "
        f"default: {DEFAULT_NAMESPACE}",
    )


@contextmanager
def warnings_told() -> Iterator[None]:
    """Print each warning of a history as one line on stderr."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", HistoryWarning)
        warnings.showwarning = _show_warning
        yield


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"coordgen: warning: {message}", file=sys.stderr)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the four commands; each sets `run_history`."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = _command(commands, "ls", _ls, "list namespaces")
    listing.add_argument("--json", action="store_true", help="print one JSON array instead")
    export = _command(commands, "export", _export, "print requests as JSON lines")
    importing = _command(commands, "import", _import, "store requests from JSON lines")
    importing.add_argument(
        "file",
        nargs="?",
        default="-",
        metavar="FILE",
        help="a file from `history export`; default: stdin",
    )
    importing.add_argument(
        "--max-tokens",
        type=int,
        default=DEFAULT_MAX_TOKENS,
        metavar="N",
        help="evict the oldest requests beyond this; default %(default)s",
    )
    clear = _command(commands, "clear", _clear, "erase requests")
    for narrowed in (export, clear):
        narrowed.add_argument(
            "--namespace", metavar="NAME", help="only this namespace; default: all"
        )


def run(options: argparse.Namespace) -> int:
    """Run the chosen command.

    Raises:
        HistoryError: The directory or the file to import cannot be used.
    """
    try:
        code: int = options.run_history(options)
    except sqlite3.Error as error:
        raise HistoryError(f"{options.directory}: {error}") from error
    return code


def _command(
    commands: Any, name: str, run_history: Callable[[argparse.Namespace], int], about: str
) -> argparse.ArgumentParser:
    example = next(line for line in EXAMPLES.splitlines() if f" {name} " in line)
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=about,
        epilog=f"example:\n{example}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.set_defaults(run_history=run_history)
    return parser


def _ls(options: argparse.Namespace) -> int:
    namespaces = _opened_to_read(options.directory).namespaces()
    if options.json:
        print(json.dumps([asdict(summary) for summary in namespaces]))
        return 0
    for summary in namespaces:
        last = time.strftime("%Y-%m-%d %H:%M", time.localtime(summary.last_finished_at))
        print(
            f"{summary.namespace}: {summary.num_requests} requests, {summary.num_tokens} tokens, "
            f"last {last}"
        )
    return 0


def _opened_to_read(directory: Path) -> HistoryStore:
    """The store, read-only if this user cannot write there."""
    try:
        return HistoryStore(directory)
    except sqlite3.OperationalError:
        return HistoryStore(directory, read_only=True)


def _export(options: argparse.Namespace) -> int:
    store = _opened_to_read(options.directory)
    header = {"format": _FORMAT, "fingerprint": store.fingerprint, "vocab_size": store.vocab_size}
    print(json.dumps(header))
    for request in store.read(options.namespace):
        line = {
            "namespace": request.namespace,
            "finished_at": request.finished_at,
            "prompt_len": request.prompt_len,
            "token_ids": np.frombuffer(request.token_ids, "<u4").tolist(),
        }
        print(json.dumps(line))
    return 0


def _import(options: argparse.Namespace) -> int:
    if options.file == "-":
        return _import_lines(options, sys.stdin)
    with Path(options.file).open(encoding="utf-8") as lines:
        return _import_lines(options, lines)


def _import_lines(options: argparse.Namespace, lines: Iterable[str]) -> int:
    objects = _objects(lines)
    try:
        _, header = next(objects)
        if header["format"] != _FORMAT:
            raise HistoryError(f"line 1 has format {header['format']!r}, not {_FORMAT!r}")
        fingerprint, vocab_size = str(header["fingerprint"]), int(header["vocab_size"])
    except (StopIteration, KeyError, TypeError, ValueError) as error:
        raise HistoryError("line 1 is not the header of an exported history") from error
    requests = [_request(number, line, vocab_size) for number, line in objects]
    store = HistoryStore(options.directory, fingerprint=fingerprint, vocab_size=vocab_size)
    store.add(requests, options.max_tokens)
    print(f"{options.directory}: {len(requests)} requests imported", file=sys.stderr)
    return 0


def _objects(lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, 1):
        try:
            yield number, json.loads(line)
        except ValueError as error:
            raise HistoryError(f"line {number} is not JSON: {error}") from error


def _request(number: int, line: Any, vocab_size: int) -> Request:
    try:
        token_ids = np.asarray(line["token_ids"], np.int64).reshape(-1)
        if len(token_ids) and not 0 <= token_ids.min() <= token_ids.max() < vocab_size:
            raise ValueError("token ids outside the vocabulary")
        return Request(
            str(line["namespace"]),
            float(line["finished_at"]),
            int(line["prompt_len"]),
            token_ids.astype("<u4").tobytes(),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise HistoryError(f"line {number} is not a request: {error}") from error


def _clear(options: argparse.Namespace) -> int:
    store = HistoryStore(options.directory)
    num_requests = store.clear(options.namespace)
    pattern = f"*{INDEX_SUFFIX}" if options.namespace is None else index_name(options.namespace)
    for path in options.directory.glob(pattern):
        path.unlink(missing_ok=True)
    print(f"{options.directory}: {num_requests} requests cleared", file=sys.stderr)
    return 0
