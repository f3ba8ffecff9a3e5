"""`coordgen history add`, `remove` and `ls --documents`: the documents that are drafted from."""

import argparse
import json
import os
from contextlib import closing
from dataclasses import asdict
from itertools import chain

from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import text
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.cli.terminal.text import printable
from coordgen_rs.errors.arguments import DEFAULT_NAMESPACE
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.runtime.machine import usable_cores
from coordgen_rs.store.history.corpus import Corpus, is_below
from coordgen_rs.store.history.documents import Tables
from coordgen_rs.store.history.store import HistoryStore
from coordgen_rs.store.history.texts import AddResult, checked_paths, name_of

_MOST_NAMED = 20
"""Skipped files that are named one by one."""

_WAIT_S = 60.0
"""How long others may change the documents before the command gives up."""


def add_arguments(add: Parser, remove: Parser) -> None:
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


def add(options: argparse.Namespace) -> int:
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
        f"{options.directory}: {counted(added.num_added)} added ({added.num_tokens} tokens), "
        f"{added.num_unchanged} unchanged, {len(added.skipped)} skipped; the namespace holds "
        f"{counted(num_documents)}, {num_tokens} tokens"
    )


def counted(num_documents: int) -> str:
    """A number of documents, in words."""
    return "1 document" if num_documents == 1 else f"{num_documents} documents"


def remove(options: argparse.Namespace) -> int:
    """Remove documents; 1 if a name matched none."""
    names = {given: {given, name_of(given)} for given in options.names}
    with Corpus(options.directory, None, namespace=options.namespace) as corpus:
        removed = corpus.remove({*chain(*names.values())}, wait_s=_WAIT_S)
    text.tell(f"{options.directory}: {counted(len(removed))} removed")
    unknown = [given for given in names if not any(is_below(one, names[given]) for one in removed)]
    for given in unknown:
        text.tell(
            f"coordgen: warning: there is no document {printable(given)} in the namespace "
            f"{options.namespace!r}"
        )
    return 1 if unknown else 0


def ls(store: HistoryStore, namespace: str | None, *, as_json: bool) -> int:
    """List the documents of a namespace, or of all."""
    with closing(store):
        names = Tables.namespaces(store) if namespace is None else [namespace]
        found = [(name, document) for name in names for document in Tables(store, name).documents()]
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
