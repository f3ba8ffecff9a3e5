"""`coordgen compile`: context binaries for a bundle that was exported for QNN."""

import argparse
import sys
from pathlib import Path

from coordgen_rs.progress import progress
from coordgen_rs.qnn_compile import compile_bundle
from coordgen_rs.qnn_options import SOCS, parse_options

ABOUT = "compile a bundle for its Qualcomm chip, so that it loads quickly"
EXAMPLES = """\
examples:
  coordgen compile bundle
  coordgen compile bundle --shared --soc 8-elite
  coordgen compile bundle --qnn-option vtcm_mb=8 --qnn-option finalization_mode=3
"""


def add_option_argument(parser: argparse.ArgumentParser) -> None:
    """Declare `--qnn-option`, which several commands have."""
    parser.add_argument(
        "--qnn-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the QNN provider: performance_mode, vtcm_mb, finalization_mode, "
        "context_priority, shared_memory, spill_fill, offload_io_quantization, profiling, "
        "profiling_file, or one by the provider's own name",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument(
        "--soc", metavar="NAME", help=f"another chip than the bundle's: {', '.join(SOCS)}"
    )
    parser.add_argument(
        "--shared",
        action="store_true",
        help="also write one binary a block for all its graphs, which share their weights in it",
    )
    add_option_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Compile, and print what was written."""
    with progress() as on_progress:
        bundle = compile_bundle(
            options.bundle,
            soc=options.soc,
            shared=options.shared,
            options=parse_options(options.qnn_option),
            on_progress=on_progress,
        )
    files = bundle.manifest.files
    for kind in ("context", "shared"):
        sizes = [
            record.num_bytes
            for name, record in files.items()
            if f".{kind}-" in name and name.endswith(".bin")
        ]
        if sizes:
            print(f"{kind} binaries: {len(sizes)}, {sum(sizes) / 1e6:.2f} MB", file=sys.stderr)
    return 0
