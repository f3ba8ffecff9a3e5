"""Writes a bundle of Qwen2.5-0.5B's shape with random weights, for benches of loading.

    python benches/qwen_shape.py build/qwen-shape-int8 --weights int8

24 layers, hidden 896, FFN 4,864, 14 heads, 2 KV heads, vocabulary 151,936, in 6 blocks. Its answers
mean nothing; its times and bytes are those of the model.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from checkpoints import write_checkpoint
from coordgen_rs.cli.progress import progress
from coordgen_rs.export import export_checkpoint

SHAPE = {
    "family": "qwen2",
    "hidden": 896,
    "ffn": 4864,
    "layers": 24,
    "heads": 14,
    "kv_heads": 2,
    "vocab": 151_936,
    "max_positions": 32_768,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="a directory that does not exist yet")
    parser.add_argument("--weights", choices=["fp32", "int8", "int4", "w8a8"], default="int8")
    parser.add_argument("--blocks", type=int, default=6, metavar="N")
    parser.add_argument("--context", type=int, default=1280, metavar="N")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, progress() as on_progress:
        checkpoint = write_checkpoint(Path(directory) / "checkpoint", dtype="BF16", **SHAPE)
        export_checkpoint(
            checkpoint,
            options.out,
            weights=options.weights,
            blocks=options.blocks,
            context=options.context,
            on_progress=on_progress,
        )


if __name__ == "__main__":
    main()
