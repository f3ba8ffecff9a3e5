"""What is killed or starved: exports, compilations with a stub of the compiler, tables."""

import itertools
import random
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from coordgen_rs import LookupTable
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.qnn import compile as qnn_compile
from coordgen_rs.runtime.qnn.provider import QnnVersion

VOCAB_SIZE = 200
KEY = bytes(32)


def export_forever(checkpoint: Path, folder: Path, number: int, told: Connection) -> None:
    """Export to one directory after another, telling the number of each that is done."""
    warnings.simplefilter("ignore")
    told.send("begun")
    for done in itertools.count(number):
        export_checkpoint(checkpoint, folder / f"out-{done}", prefill_rows=8, decode_rows=4)
        told.send(done)


def stub_compiler(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let the compiler write files of random bytes, a few of each graph, at once."""

    def compiled(
        model: Path, soc: Any, options: Any, entries: dict[str, str] | None = None
    ) -> None:
        if entries is not None:
            path = Path(entries["ep.context_file_path"])
            path.write_bytes(random.randbytes(5_000))
            path.with_name(f"{path.stem}_qnn.bin").write_bytes(random.randbytes(50_000))

    put(qnn_compile, "qnn_session", compiled)
    put(qnn_compile, "version", lambda: QnnVersion("0", "0"))


def compile_forever(bundle: Path, told: Connection) -> None:
    """Compile one bundle again and again."""
    warnings.simplefilter("ignore")
    stub_compiler()
    told.send("begun")
    while True:
        qnn_compile.compile_bundle(bundle)
        told.send("compiled")


def table(number: int) -> LookupTable:
    """A look-up table, the same one at every call."""
    rng = np.random.default_rng(number)
    learned = LookupTable()
    rows = rng.random((VOCAB_SIZE, VOCAB_SIZE)).astype(np.float32)
    learned.learn(np.arange(VOCAB_SIZE, dtype=np.uint32), rows)
    return learned


def save_forever(path: Path, told: Connection) -> None:
    """Save one table after another at one place, as a warm-up does at its end."""
    tables = [table(number) for number in range(2)]
    told.send("begun")
    for number in itertools.count():
        tables[number % 2].save(path, VOCAB_SIZE, KEY)
        told.send(number)
