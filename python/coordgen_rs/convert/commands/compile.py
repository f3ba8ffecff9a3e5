"""`coordgen compile`: write context binaries for a bundle that was exported for QNN."""

import argparse
import sys

from coordgen_rs.bundle.qnn import SOCS
from coordgen_rs.cli import option
from coordgen_rs.cli.option import QNN_OPTION
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.convert.qnn.compile import compile_bundle
from coordgen_rs.runtime.qnn.options import parse_options

EXAMPLES = """\
examples:
  coordgen compile bundle
  coordgen compile bundle --shared --soc 8-elite
  coordgen compile bundle --qnn-option vtcm_mb=8 --qnn-option finalization_mode=3
"""


def add_arguments(parser: Parser) -> None:
    """Declare the options of the command."""
    parser.declare(
        option.EXPORTED_BUNDLE,
        option.word("--soc NAME").help(
            f"compile for this chip instead of the bundle's: {', '.join(SOCS)}"
        ),
        option.flag("--shared").help(
            "also write one binary per block that holds all its graphs, with shared weights"
        ),
        QNN_OPTION,
    )


def run(options: argparse.Namespace) -> int:
    """Compile the bundle, and print what was written."""
    with progress() as on_progress:
        report = compile_bundle(
            options.bundle,
            soc=options.soc,
            shared=options.shared,
            options=parse_options(options.qnn_option),
            on_progress=on_progress,
        )
    ratio = report.compile_s / report.load_s
    print(
        f"{report.num_graphs} graphs, {report.binary_bytes / 1e6:.2f} MB: compiled in "
        f"{report.compile_s:.2f} s, loaded in {report.load_s:.2f} s ({ratio:.0f} times as fast)",
        file=sys.stderr,
    )
    if report.shared_bytes is not None:
        share = report.shared_bytes / report.apart_bytes
        print(
            f"weight-shared binaries of the blocks: {report.shared_bytes / 1e6:.2f} MB, "
            f"{share:.2f} times the {report.apart_bytes / 1e6:.2f} MB of separate ones",
            file=sys.stderr,
        )
    return 0
