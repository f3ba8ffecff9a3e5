"""Instructions that the kernels take, as qemu counts them: the one figure that emulation gives.

    python benches/instructions.py PROGRAM --processor "NEON I8MM" [--processor ..] \\
        --emulator "qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu max"

The program is what `cargo build --release --bench instructions` builds, for arm64 or x86-64. It
runs some turns, then twice as many, and the difference is what they took. Printed are instructions
of a row, for 1,000 products: of a matrix, without rounding the row; of attention, of scores and
values alike. An instruction of one processor may do more than another's, and take longer.

Needs qemu-user with plugins, as Debian 12 has it, and a C compiler for `instructions/count.c`.
"""

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from support.script import parser_of, run_script

WORKS = ("Q4_0", "Q8_0", "Q4_K", "attention")
ROWS = (1, 4, 16)
TURNS = 4
PRODUCTS = {"attention": 2 * 512 * 8 * 64}
"""Products of a row; those of a matrix are `MATRIX`."""
MATRIX = 256 * 1024


def built_plugin(folder):
    """The plugin, compiled."""
    source = Path(__file__).parent / "instructions" / "count.c"
    plugin = folder / "count.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", plugin, source], check=True)
    return plugin


def count(emulator, plugin, program, arguments):
    """Instructions of one run."""
    command = [*emulator, "-plugin", str(plugin), program, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"^instructions: (\d+)$", ran.stderr, re.MULTILINE)
    if ran.returncode != 0 or found is None:
        sys.exit(f"{shlex.join(command)} ended with {ran.returncode}: {ran.stderr}")
    return int(found[1])


def main():
    parser = parser_of(__doc__)
    parser.add_argument("program")
    parser.add_argument("--emulator", type=shlex.split, required=True)
    parser.add_argument("--processor", action="append", required=True)
    options = parser.parse_args()
    print("| processor | work |", " | ".join(f"{rows} row{'s' * (rows > 1)}" for rows in ROWS), "|")
    print("|---|---|" + "--:|" * len(ROWS))
    with tempfile.TemporaryDirectory() as folder:
        plugin = built_plugin(Path(folder))
        for processor in options.processor:
            for work in WORKS:
                cells = []
                for rows in ROWS:
                    once, twice = (
                        count(
                            options.emulator,
                            plugin,
                            options.program,
                            [processor, work, rows, turns],
                        )
                        for turns in (TURNS, 2 * TURNS)
                    )
                    products = PRODUCTS.get(work, MATRIX)
                    cells.append(f"{1000 * (twice - once) / TURNS / rows / products:.1f}")
                print(f"| {processor} | {work} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    run_script(main)
