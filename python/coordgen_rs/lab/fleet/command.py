"""`coordgen history build`: indexes of many machines' requests; its options, and what it prints."""

import argparse
import json

from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import text
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.errors.arguments import DEFAULT_NAMESPACE
from coordgen_rs.lab.fleet.tasks import RAY, chosen
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.store.history.store import DEFAULT_MAX_TOKENS


def add_arguments(parser: Parser) -> None:
    """The options of the command, besides DIR."""
    parser.declare(
        option.text(
            "--from PATTERN", may_be_empty=False, dest="sources", nargs="+", required=True
        ).help(
            "records: .jsonl, .jsonl.gz, .jsonl.zst or .parquet files, with * and **; or the "
            "directories of other builds, to merge them"
        ),
        option.path("--tokenizer BUNDLE", required=True).help(
            "a bundle with the tokenizer of the devices"
        ),
        option.names("--fields FIELD=NAME,..", default=[]).help(
            "what prompt, answer, token_ids, namespace and finished_at are called in the records"
        ),
        option.text("--namespace NAME", may_be_empty=False, default=DEFAULT_NAMESPACE).help(
            "of records that do not say one; default: %(default)s"
        ),
        option.count("--max-tokens N", most=2**31 - 1, default=DEFAULT_MAX_TOKENS).help(
            "leave out the oldest requests of a namespace beyond this; default %(default)s"
        ),
        option.flag("--strict").help("stop at the first record that is no request"),
        option.JSON.help("print one JSON object"),
        RAY,
    )


def run(options: argparse.Namespace) -> int:
    """Build, and print what was built and what was left out."""
    from coordgen_rs.lab.fleet.build import BuildResult, build, find_sources
    from coordgen_rs.lab.fleet.records import FieldNames

    sources = find_sources(options.sources)
    names = FieldNames.parse(options.fields)
    bundle = open_bundle(options.tokenizer)
    with chosen(options) as tasks, progress() as on_progress:
        built: BuildResult = build(
            options.directory,
            sources,
            bundle,
            names=names,
            namespace=options.namespace,
            max_tokens=options.max_tokens,
            is_strict=options.strict,
            tasks=tasks,
            on_progress=on_progress,
        )
    for where in built.bad:
        text.tell(f"coordgen: warning: {where}")
    if built.num_bad:
        text.tell(f"coordgen: warning: {built.num_bad} records are no requests and were left out")
    figures = {
        "requests": built.num_requests,
        "tokens": built.num_tokens,
        "namespaces": len(built.listed.namespaces),
        "read": built.num_read,
        "left_out": built.num_read - built.num_requests,
        "bad": built.num_bad,
    }
    if options.json:
        print(json.dumps(figures))
    else:
        text.tell(
            f"{options.directory}: {built.num_requests} requests, {built.num_tokens} tokens in "
            f"{len(built.listed.namespaces)} namespaces; {figures['left_out']} requests left out, "
            "as duplicates or beyond --max-tokens"
        )
    return 0
