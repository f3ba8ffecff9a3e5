"""`coordgen check`: verify a bundle's files, and that it is exact on this machine."""

import argparse
import json

from coordgen_rs.cli.options import option, shared
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import text
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.lab.check import check
from coordgen_rs.loading.session import open_session
from coordgen_rs.text.tokenizer import Tokenizer

EXAMPLES = """\
examples:
  coordgen check bundle
  coordgen check bundle --prompt-file question.txt --json
"""

_PROMPT = "The quick brown fox jumps over the lazy dog. The quick brown fox sleeps."


def add_arguments(parser: Parser) -> None:
    """The options of the command."""
    parser.declare(
        shared.BUNDLE,
        option.path("--prompt-file FILE").help("a UTF-8 text file with a prompt to use"),
        *shared.PROVIDER,
        shared.KV_CACHE,
        shared.THREADS,
        shared.JSON,
    )


def run(options: argparse.Namespace) -> int:
    """Check the bundle; exit code 1 if it is not lossless here."""
    question = text.read_file(options.prompt_file) if options.prompt_file else _PROMPT
    with progress() as on_progress:
        session = open_session(
            options.bundle,
            threads=options.threads,
            kv_cache=options.kv_cache,
            provider=shared.chosen_provider(options),
            on_progress=on_progress,
        )
    with progress() as on_progress:
        session.bundle.verify(on_progress)
    prompt = Tokenizer.of(session.bundle).encode(question)
    report = check(session, prompt[: session.capacity // 2])
    if options.json:
        print(json.dumps(report.to_json()))
    else:
        sums = "all checksums match" if session.bundle.has_checksums else "without checksums"
        print(f"files: {len(session.bundle.manifest.files)}, {sums}")
        for item in report.comparisons:
            by = "" if item.largest_difference is None else f" (by {item.largest_difference:.1e})"
            print(f"{item.what}: {'identical' if item.identical else f'different{by}'}")
        print(f"exact under commit: {', '.join(report.exact_commits) or 'none'}")
    return 0 if report.lossless else 1
