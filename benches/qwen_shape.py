"""Writes a bundle of Qwen2.5-0.5B's shape with random weights, for benches of loading.

    python benches/qwen_shape.py build/qwen-shape-int8 --weights int8
    python benches/qwen_shape.py build/qwen-htp --soc 8-elite --calibration chats.jsonl \\
        --tokenizer Qwen2.5-0.5B-Instruct/tokenizer.json --blocks 1

24 layers, hidden 896, FFN 4,864, 14 heads, 2 KV heads, vocabulary 151,936, in 6 blocks. Its answers
mean nothing; its times and bytes are those of the model. `--shape qwen2.5-3b` has 36 layers, hidden
2,048, FFN 11,008, 16 heads and 2 KV heads; `llama-3.2-1b` has 16 layers, hidden 2,048, FFN 8,192,
32 heads, 8 KV heads, vocabulary 128,256. With `--soc` the bundle is for Qualcomm's HTP, and the
report says what the export took.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from checkpoints import write_checkpoint
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.qnn.exporter import export_qnn
from support.script import add_counts, parser_of, reports_errors, run_script
from support.shapes import of_families

SHAPES = of_families("qwen2", "llama")


@reports_errors
def main(arguments: list[str] | None = None) -> None:
    """Write the bundle; 2 where that is not possible."""
    _export(_parser().parse_args(arguments))


def _export(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as directory, progress() as on_progress:
        checkpoint = Path(directory) / "checkpoint"
        write_checkpoint(checkpoint, dtype="BF16", **SHAPES[options.shape])
        if options.tokenizer is not None:
            shutil.copy(options.tokenizer, checkpoint / "tokenizer.json")
        chosen = {
            "weights": options.weights,
            "blocks": options.blocks,
            "context": options.context,
            "calibration": options.calibration,
            "on_progress": on_progress,
        }
        if options.soc is None:
            export_checkpoint(checkpoint, options.out, **chosen)
        else:
            report = export_qnn(checkpoint, options.out, soc=options.soc, **chosen)
            print("\n".join(report.lines()))


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="a directory that does not exist yet")
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-0.5b")
    parser.add_argument("--weights", choices=["fp32", "int8", "int4"], default="int8")
    add_counts(parser, blocks=(6, "of layers"), context=(1280, "tokens"))
    parser.add_argument("--soc", metavar="NAME", help="export for this chip")
    parser.add_argument("--calibration", type=Path, metavar="FILE")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json; default: characters"
    )
    return parser


if __name__ == "__main__":
    run_script(main)
