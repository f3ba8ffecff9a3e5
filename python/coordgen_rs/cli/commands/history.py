"""`coordgen history`: list, export, import and clear finished requests.

Documents are `history_documents.py`'s; what many machines recorded is built in `lab/fleet/`.
"""

import argparse
import json
import sqlite3
import time
from contextlib import closing
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

import numpy as np

from coordgen_rs.cli.commands import history_documents
from coordgen_rs.cli.options import option, shared
from coordgen_rs.cli.options.shared import history_max_tokens
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import text
from coordgen_rs.cli.terminal.formatting import printable
from coordgen_rs.errors import HistoryError
from coordgen_rs.errors.json_text import JsonTextError, open_regular
from coordgen_rs.store.history.fleet import EXPORT_FORMAT, ExportHeader, read_exported
from coordgen_rs.store.history.segments import Segments
from coordgen_rs.store.history.store import (
    HistoryStore,
    remove_indexes,
    told_evictions,
)

EXAMPLES = """\
examples:
  coordgen history ls answers
  coordgen history export answers --namespace mail/alice > alice.jsonl
  coordgen history import answers alice.jsonl
  coordgen history clear answers --namespace mail/alice
  coordgen history add answers src templates/mail.txt --tokenizer bundle
  coordgen history remove answers templates/mail.txt
  coordgen history build fleet --from 'logs/*.jsonl' --tokenizer bundle
"""

_BUILD = "coordgen_rs.lab.fleet.command"
"""Loaded by name, as `main.py` loads commands: what answers imports nothing that measures."""


def add_arguments(parser: Parser) -> None:
    """Declare the commands; each sets `run_history`."""
    parser.add_commands({name: about for name, (about, _) in _COMMANDS.items()})
    commands = parser.commands
    for name, command in commands.items():
        example = next(line for line in EXAMPLES.splitlines() if f" {name} " in line)
        command.epilog = f"example:\n{example}\n"
        command.set_defaults(run_history=_COMMANDS[name][1])
        command.declare(option.path("directory DIR"))
    commands["ls"].declare(
        option.flag("--documents").help("list the documents that were added, by namespace"),
        option.text("--namespace NAME").help("only this namespace; default: all"),
        shared.JSON.help("print one JSON array instead"),
    )
    commands["import"].declare(
        option.word("file FILE", nargs="?", default="-").help(
            "a file from `history export`; default: stdin"
        ),
        history_max_tokens("--max-tokens N"),
    )
    import_module(_BUILD).add_arguments(commands["build"])
    history_documents.add_arguments(commands["add"], commands["remove"])
    for name in ("export", "clear"):
        commands[name].declare(
            option.text("--namespace NAME").help("only this namespace; default: all")
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


def _ls(options: argparse.Namespace) -> int:
    store = _opened_to_read(options.directory)
    if options.documents:
        return history_documents.ls(store, options.namespace, as_json=options.json)
    namespaces = [
        summary for summary in store.namespaces() if options.namespace in (None, summary.namespace)
    ]
    if options.json:
        print(json.dumps([asdict(summary) for summary in namespaces]))
        return 0
    for summary in namespaces:
        print(
            f"{printable(summary.namespace)}: {summary.num_requests} requests, "
            f"{summary.num_tokens} tokens, last {_date(summary.last_finished_at)}"
        )
    if told := _told_documents(store, options.namespace):
        text.tell(f"coordgen: and {told}: `ls --documents` lists them")
    return 0


def _date(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # of a clock that was wrong, or a damaged file
        return "unknown"


def _opened_to_read(directory: Path) -> HistoryStore:
    """The store, read-only if this user cannot write there."""
    try:
        return HistoryStore(directory)
    except sqlite3.OperationalError:
        return HistoryStore(directory, read_only=True)


def _export(options: argparse.Namespace) -> int:
    store = _opened_to_read(options.directory)
    print(json.dumps(asdict(ExportHeader(EXPORT_FORMAT, store.fingerprint, store.vocab_size))))
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
        return _import_from(options, text.stdin_bytes(), "stdin")
    try:
        with open_regular(Path(options.file)) as stream:
            return _import_from(options, stream, options.file)
    except JsonTextError as error:
        raise HistoryError(str(error)) from error


def _import_from(options: argparse.Namespace, stream: BinaryIO, name: str) -> int:
    header, requests = read_exported(stream, name)
    whole = list(requests)  # before the database is made, or anything in it evicted
    store = HistoryStore(
        options.directory, fingerprint=header.fingerprint, vocab_size=header.vocab_size
    )
    with closing(store):
        if options.max_tokens is not None:
            store.max_tokens = options.max_tokens
        evicted = store.add(whole)
        text.tell(f"{options.directory}: {len(whole)} requests imported")
        if evicted:
            text.tell(f"coordgen: warning: {told_evictions(store, evicted)}")
    return 0


def _clear(options: argparse.Namespace) -> int:
    with closing(HistoryStore(options.directory)) as store:
        names = store.names() if options.namespace is None else [options.namespace]
        num_requests = store.clear(options.namespace)
        remove_indexes(options.directory, names, others=options.namespace is None)
        text.tell(f"{options.directory}: {num_requests} requests cleared")
        if told := _told_documents(store, options.namespace):
            text.tell(f"coordgen: {told} stay: `coordgen history remove` erases them")
    return 0


def _told_documents(store: HistoryStore, namespace: str | None) -> str | None:
    """How many documents there are; None if there are none. What is damaged is told."""
    try:
        holding = [name for name in Segments.namespaces(store) if namespace in (None, name)]
        num_documents = sum(len(Segments(store, name).documents()) for name in holding)
    except (HistoryError, sqlite3.Error) as error:
        text.tell(f"coordgen: warning: the documents cannot be counted: {error}")
        return None
    return history_documents.counted(num_documents) if num_documents else None


def _build(options: argparse.Namespace) -> int:
    code: int = import_module(_BUILD).run(options)
    return code


_COMMANDS = {
    "ls": ("list namespaces", _ls),
    "export": ("print requests as JSON lines", _export),
    "import": ("store requests from JSON lines", _import),
    "clear": ("erase requests", _clear),
    "add": ("add documents to draft from", history_documents.add),
    "remove": ("remove documents that were added", history_documents.remove),
    "build": ("build the indexes of a fleet from records of many machines", _build),
}
"""What each command does, and how."""
