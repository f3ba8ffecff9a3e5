"""`coordgen history`: finished requests, and the documents that are drafted from.

What many machines recorded is built in `lab/fleet/`.
"""

import argparse
import json
import os
import sqlite3
from contextlib import closing
from dataclasses import asdict
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np

from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import text
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.cli.terminal.text import counted, printable, show_time
from coordgen_rs.errors import HistoryError
from coordgen_rs.errors.arguments import DEFAULT_NAMESPACE
from coordgen_rs.errors.json_text import JsonTextError, open_regular
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.runtime.machine import usable_cores
from coordgen_rs.store.history.corpus import Corpus, is_below
from coordgen_rs.store.history.fleet import EXPORT_FORMAT, ExportHeader, read_exported
from coordgen_rs.store.history.segments import Segments
from coordgen_rs.store.history.store import HistoryStore, remove_indexes, told_evictions
from coordgen_rs.store.history.texts import AddResult, checked_paths, name_of

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

_BUILD = "coordgen_rs.lab.fleet.build"
"""Loaded by name, as `main.py` loads commands: what answers imports nothing that measures."""

_MOST_NAMED = 20
"""Skipped files that are named one by one."""

_WAIT_S = 60.0
"""How long others may change the documents before the command gives up."""


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
        option.JSON.help("print one JSON array instead"),
    )
    commands["import"].declare(
        option.word("file FILE", nargs="?", default="-").help(
            "a file from `history export`; default: stdin"
        ),
        option.history_max_tokens("--max-tokens N"),
    )
    import_module(_BUILD).add_arguments(commands["build"])
    _declare_documents(commands["add"], commands["remove"])
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
        return _ls_documents(store, options.namespace, as_json=options.json)
    namespaces = [
        summary for summary in store.namespaces() if options.namespace in (None, summary.namespace)
    ]
    if options.json:
        print(json.dumps([asdict(summary) for summary in namespaces]))
        return 0
    for summary in namespaces:
        print(
            f"{printable(summary.namespace)}: {summary.num_requests} requests, "
            f"{summary.num_tokens} tokens, last {show_time(summary.last_finished_at)}"
        )
    if told := _told_documents(store, options.namespace):
        text.tell(f"coordgen: and {told}: `ls --documents` lists them")
    return 0


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
        names = [*store.epochs()] if options.namespace is None else [options.namespace]
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
    return counted(num_documents, "document") if num_documents else None


def _declare_documents(add: Parser, remove: Parser) -> None:
    """The options of both commands, besides DIR."""
    namespace = option.text("--namespace NAME", may_be_empty=False, default=DEFAULT_NAMESPACE).help(
        "only its requests draft from the documents; default: %(default)s"
    )
    add.declare(
        option.path("files FILE", nargs="+").help(
            "text in UTF-8, or directories of it; below these, what begins with a dot and links "
            "are left out"
        ),
        option.path("--tokenizer BUNDLE", required=True).help(
            "a bundle with the tokenizer of the model that is to draft from them"
        ),
        namespace,
        option.count("--threads N", most=256).help(
            "how many tokenize, at low priority; default: one per core"
        ),
        option.JSON.help("print one JSON object"),
    )
    remove.declare(
        option.text("names NAME", may_be_empty=False, nargs="+").help(
            "documents as `ls --documents` names them, files, or directories that held them"
        ),
        option.path("--tokenizer BUNDLE").help("not needed: the history knows its tokenizer"),
        namespace,
    )


def _add(options: argparse.Namespace) -> int:
    """Add documents, and print how many, and what was skipped.

    Raises:
        OptionError: A file is not there.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # parts are shared out by threads of ours
    paths = checked_paths(options.files)  # before a history is made
    threads = options.threads or usable_cores()
    with Corpus(
        options.directory, open_bundle(options.tokenizer), namespace=options.namespace
    ) as corpus:
        with progress() as on_progress:
            added = corpus.add(
                paths,
                threads=threads,
                wait_s=_WAIT_S,
                on_progress=lambda added: on_progress("adding documents", added.num_added, 0),
            )
        documents = corpus.documents()
    _tell(options, added, len(documents), sum(document.num_tokens for document in documents))
    return 0


def _tell(
    options: argparse.Namespace, added: AddResult, num_documents: int, num_tokens: int
) -> None:
    for skipped in added.skipped[:_MOST_NAMED]:
        text.tell(f"coordgen: warning: {printable(skipped)}; skipped")
    if len(added.skipped) > _MOST_NAMED:
        text.tell(f"coordgen: warning: {len(added.skipped) - _MOST_NAMED} more files were skipped")
    if options.json:
        figures = asdict(added) | {"num_documents": num_documents, "all_tokens": num_tokens}
        print(json.dumps(figures))
        return
    text.tell(
        f"{options.directory}: {counted(added.num_added, 'document')} added "
        f"({added.num_tokens} tokens), {added.num_unchanged} unchanged, "
        f"{len(added.skipped)} skipped; the namespace holds "
        f"{counted(num_documents, 'document')}, {num_tokens} tokens"
    )


def _remove(options: argparse.Namespace) -> int:
    """Remove documents; 1 if a name matched none."""
    names = {given: {given, name_of(given)} for given in options.names}
    with Corpus(options.directory, None, namespace=options.namespace) as corpus:
        removed = corpus.remove({*chain(*names.values())}, wait_s=_WAIT_S)
    text.tell(f"{options.directory}: {counted(len(removed), 'document')} removed")
    unknown = [given for given in names if not any(is_below(one, names[given]) for one in removed)]
    for given in unknown:
        text.tell(
            f"coordgen: warning: there is no document {printable(given)} in the namespace "
            f"{options.namespace!r}"
        )
    return 1 if unknown else 0


def _ls_documents(store: HistoryStore, namespace: str | None, *, as_json: bool) -> int:
    """List the documents of a namespace, or of all."""
    with closing(store):
        names = Segments.namespaces(store) if namespace is None else [namespace]
        found = [
            (name, document) for name in names for document in Segments(store, name).documents()
        ]
    if as_json:
        print(json.dumps([{"namespace": name, **asdict(document)} for name, document in found]))
        return 0
    for name, document in found:
        partly = "" if document.is_whole else f", {document.read_bytes} of them added so far"
        print(
            f"{printable(name)}: {printable(document.name)}: {document.num_bytes} bytes{partly}, "
            f"{document.num_tokens} tokens"
        )
    return 0


def _build(options: argparse.Namespace) -> int:
    code: int = import_module(_BUILD).run(options)
    return code


_COMMANDS = {
    "ls": ("list namespaces", _ls),
    "export": ("print requests as JSON lines", _export),
    "import": ("store requests from JSON lines", _import),
    "clear": ("erase requests", _clear),
    "add": ("add documents to draft from", _add),
    "remove": ("remove documents that were added", _remove),
    "build": ("build the indexes of a fleet from records of many machines", _build),
}
"""What each command does, and how."""
