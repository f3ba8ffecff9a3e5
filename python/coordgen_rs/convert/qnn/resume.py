"""What an export has done so far, in a folder beside the bundle, so that it can go on after a stop.

In: graphs as they are prepared, one after the other. Out: the same again, in this run or a later
one. The folder, `.NAME.export`, goes when the bundle is there. Another checkpoint, other options,
other texts or other code of this package start anew: a hash of them stands in the folder.
"""

import hashlib
import json
import os
import shutil
import tokenize
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.gptq import ColumnIntegers, bits_taken
from coordgen_rs.convert.qnn.calibration import Ranges
from coordgen_rs.errors import ExportError
from coordgen_rs.errors.extras import package_version
from coordgen_rs.store.files import locked

Array = NDArray[np.float32]

_KEY, _GRAPH, _STATES, _TEMPORARY = "key", "npz", "states.npy", ".part"
_ENDINGS = (f".{_GRAPH}", f".{_STATES}", _TEMPORARY)
_DAMAGES = (
    *(OSError, EOFError, ValueError, KeyError, OverflowError),
    *(RuntimeError, zipfile.BadZipFile, tokenize.TokenError),
)
"""What reading a damaged array can end with: the last three where a header is."""


@dataclass(frozen=True)
class Matrix:
    """A matrix in each number of bits that it may get."""

    forms: dict[int, ColumnIntegers]
    """The rounded matrix, by number of bits."""
    losses: dict[int, float]
    """The squared error in the residual stream as a share of that, by number of bits."""
    shape: tuple[int, int]
    """`in_features, out_features`"""

    @property
    def size(self) -> int:
        """How many weights there are."""
        return self.shape[0] * self.shape[1]

    @property
    def num_bits(self) -> dict[int, int]:
        """Bits of all weights, steps included, by number of bits of a weight."""
        return {bits: bits_taken(self.shape, bits) for bits in self.losses}


@dataclass(frozen=True)
class PreparedGraph:
    """A layer or the head: all that is left to do is choosing encodings."""

    ranges: Ranges
    matrices: dict[str, Matrix]
    """The matrices, by their names in the graph."""
    constants: dict[str, Array]
    """The other constants of the graph."""
    apart: list[int]
    """Channels of the feed-forward that are computed by themselves."""


def work_path(out: Path) -> Path:
    """Where an export to `out` keeps what it has done so far."""
    return out.absolute().with_name(f".{out.name}.export")


def num_prepared(out: Path) -> int:
    """How many graphs an export that was stopped has left for the next one."""
    return len(list(work_path(out).glob(f"*.{_GRAPH}")))


@contextmanager
def work_folder(out: Path, key: str) -> Iterator["WorkFolder"]:
    """Hold the folder of an export for a block; it goes if that ends without an exception.

    Args:
        out: Where the bundle is to be.
        key: What the work depends on; a folder of another key is emptied.

    Raises:
        ExportError: It cannot be written, holds what no export wrote, or is another export's, which
            goes on.
    """
    path = work_path(out)
    with ExitStack() as stack:
        try:
            path.mkdir(parents=True, exist_ok=True)
            is_held = stack.enter_context(locked(path))
        except OSError as error:
            raise ExportError(f"{path} cannot be written: {error}") from error
        if not is_held:
            raise ExportError(f"{out} is being exported by another process: wait for it")
        yield WorkFolder(out, key)
        shutil.rmtree(path, ignore_errors=True)


class WorkFolder:
    """The folder of one export.

    Args:
        out: Where the bundle is to be.
        key: What the work depends on; a folder of another key is emptied.

    Attributes:
        num_found: How many graphs an earlier run had left.

    Raises:
        ExportError: It cannot be written, or holds what no export wrote.
    """

    def __init__(self, out: Path, key: str) -> None:
        self.path = work_path(out)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            found, files = self.path / _KEY, list(self.path.iterdir())
            for file in files:
                if not (file.name == _KEY or file.name.endswith(_ENDINGS)) or file.is_dir():
                    raise ExportError(
                        f"{self.path} holds {file.name}, which no export wrote: move it elsewhere"
                    )
            if not found.is_file() or found.read_bytes() != key.encode():
                for file in files:
                    file.unlink()
                found.write_text(key)
            self.num_found = num_prepared(out)
        except OSError as error:
            raise ExportError(f"{self.path} cannot be written: {error}") from error

    def has(self, name: str) -> bool:
        """Whether a graph is prepared."""
        return self._file(name).is_file()

    def save(self, name: str, graph: PreparedGraph, states: Array | None = None) -> None:
        """Keep a graph, and the hidden states `(tokens, D)` that the next one reads.

        Raises:
            ExportError: The disk is full, or the folder cannot be written.
        """
        arrays: dict[str, Any] = {f"constant {key}": it for key, it in graph.constants.items()}
        for matrix_name, matrix in graph.matrices.items():
            for bits, integers in matrix.forms.items():
                arrays[f"values {bits} {matrix_name}"] = integers.values
                arrays[f"steps {bits} {matrix_name}"] = integers.steps
                if integers.multiples is not None:
                    arrays[f"multiples {bits} {matrix_name}"] = integers.multiples
        facts = {
            "ranges": graph.ranges.by_name,
            "apart": graph.apart,
            "matrices": {
                name: [matrix.losses, matrix.shape] for name, matrix in graph.matrices.items()
            },
        }
        arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        try:
            if states is not None:  # first: a graph that is there has its states
                self._replace(f"{name}.{_STATES}", lambda stream: np.save(stream, states))
            self._replace(f"{name}.{_GRAPH}", lambda stream: np.savez(stream, **arrays))
        except OSError as error:
            # Where a disk is full, NumPy's error has the bytes it could write in place of a cause.
            cause = error if error.errno else "no space is left, free some and export again"
            raise ExportError(f"{self.path} cannot be written: {cause}") from error

    def load(self, name: str, bits: Callable[[str], int] | None = None) -> PreparedGraph:
        """A graph that was kept.

        Args:
            name: The graph's name.
            bits: The form of each matrix to read; None reads none.

        Raises:
            ExportError: The folder is damaged.
        """
        path = self._file(name)
        with self._damage_named(path), np.load(path) as arrays:
            facts = json.loads(arrays["facts"].tobytes())
            matrices = {}
            for matrix, (losses, shape) in facts["matrices"].items():
                forms = {}
                for number in [] if bits is None else [bits(matrix)]:
                    values, steps = (arrays[f"{it} {number} {matrix}"] for it in _PARTS)
                    multiples = arrays.get(f"multiples {number} {matrix}")
                    forms[number] = ColumnIntegers(values, steps, number, multiples)
                by_bits = {int(number): loss for number, loss in losses.items()}
                matrices[matrix] = Matrix(forms, by_bits, tuple(shape))
            constants = {
                key.removeprefix("constant "): arrays[key]
                for key in arrays.files
                if key.startswith("constant ")
            }
        ranges = {key: (low, high) for key, (low, high) in facts["ranges"].items()}
        return PreparedGraph(Ranges(ranges), matrices, constants, facts["apart"])

    def states(self, name: str) -> Array:
        """The hidden states behind a layer.

        Raises:
            ExportError: They are damaged.
        """
        path = self.path / f"{name}.{_STATES}"
        with self._damage_named(path):
            states: Array = np.load(path, mmap_mode="r")
        return states

    def forget_states(self, name: str) -> None:
        """Remove the hidden states behind a layer, which nothing reads any more."""
        (self.path / f"{name}.{_STATES}").unlink(missing_ok=True)

    @contextmanager
    def _damage_named(self, path: Path) -> Iterator[None]:
        """Within the block, a file is read.

        Raises:
            ExportError: It is damaged.
        """
        try:
            yield
        except _DAMAGES as error:
            raise ExportError(f"{path} is damaged: remove {self.path} and export again") from error

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.{_GRAPH}"

    def _replace(self, name: str, write: Callable[[Any], None]) -> None:
        temporary = self.path / f"{name}{_TEMPORARY}"
        with temporary.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(self.path / name)


_PARTS = ("values", "steps")
_CODE = Path(__file__).parents[2]
"""This package: what exports, and what it uses."""


def work_key(source: Checkpoint, texts: Sequence[Sequence[int]], *options: object) -> str:
    """A hash of what the work depends on: the first, middle and last row of each tensor among it.

    The code is, too, so that a development build does not go on from another's work, and the
    version, for an installation without its sources.

    Raises:
        CheckpointError: A tensor is damaged.
    """
    facts = (package_version(), source.config, options, list(map(list, texts)))
    digest = hashlib.sha256(repr(facts).encode())
    for file in sorted(_CODE.rglob("*.py")):
        digest.update(file.read_bytes())
    for name, tensor in sorted(source.tensors.items()):
        digest.update(repr((name, tensor.shape)).encode())
        for row in sorted({0, tensor.shape[0] // 2, tensor.shape[0] - 1}):
            digest.update(tensor.read_rows(row, row + 1).tobytes())
    return digest.hexdigest()
