"""`coordgen compile`: write context binaries for a bundle that was exported for QNN."""

import argparse
import sys

from coordgen_rs.cli import values
from coordgen_rs.cli.progress import progress
from coordgen_rs.cli.warned import warnings_told
from coordgen_rs.target.qnn.compile import compile_bundle
from coordgen_rs.target.qnn.options import SOCS, parse_options

ABOUT = "compile a bundle for its Qualcomm chip, so that it loads quickly"
EXAMPLES = """\
examples:
  coordgen compile bundle
  coordgen compile bundle --shared --soc 8-elite
  coordgen compile bundle --qnn-option vtcm_mb=8 --qnn-option finalization_mode=3
"""


def add_option_argument(parser: argparse.ArgumentParser) -> None:
    """Declare `--qnn-option`, which several commands share."""
    parser.add_argument(
        "--qnn-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the QNN provider: performance_mode, vtcm_mb, finalization_mode, "
        "context_priority, shared_memory, spill_fill, offload_io_quantization, profiling, "
        "profiling_file, or any other by the provider's own name",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument(
        "bundle", type=values.path("BUNDLE"), metavar="BUNDLE", help="from `coordgen export`"
    )
    parser.add_argument(
        "--soc",
        metavar="NAME",
        help=f"compile for this chip instead of the bundle's: {', '.join(SOCS)}",
    )
    parser.add_argument(
        "--shared",
        action="store_true",
        help="also write one binary per block that holds all its graphs, with shared weights",
    )
    add_option_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Compile the bundle, and print what was written."""
    with warnings_told(), progress() as on_progress:
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
