"""`coordgen warm-up`: let a model read texts, and save what it expects as a look-up table."""

import argparse

from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import outputs, text
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.generation.drafting.warm_up import save_table, table_path, warm_up
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.loading.session import open_session
from coordgen_rs.text.tokenizer import Tokenizer

EXAMPLES = """\
examples:
  coordgen warm-up bundle mails/*.txt
  coordgen warm-up bundle mails/*.txt --out mails.lookup-table
  coordgen generate --model bundle --prompt "Dear" --draft diaa --lookup-table bundle.lookup-table
"""


def add_arguments(parser: Parser) -> None:
    """The options of the command."""
    parser.declare(
        option.EXPORTED_BUNDLE,
        option.path("texts TEXT", nargs="+").help("UTF-8 text files"),
        option.path("--out FILE").help("default: BUNDLE.lookup-table, next to the bundle"),
        option.THREADS,
    )


def run(options: argparse.Namespace) -> int:
    """Read the texts and write the table."""
    texts = [text.read_file(path) for path in options.texts]
    out = options.out or table_path(open_bundle(options.bundle))
    outputs.check_file("--out", out)
    with progress() as on_progress:
        session = open_session(options.bundle, threads=options.threads, on_progress=on_progress)
        encode = Tokenizer.of(session.bundle).encode
        done = 0

        def on_text() -> None:
            nonlocal done
            done += 1
            on_progress("reading", done, len(texts))

        table = warm_up(session, (encode(read) for read in texts), on_text=on_text)
    outputs.write(out, lambda path: save_table(table, path, session.bundle))
    text.tell(f"{out}: {table.num_rows} tokens, at most {table.k} entries each")
    return 0
