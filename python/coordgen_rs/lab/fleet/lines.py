"""Records of a file one by one: lines of JSON, plain or compressed, and rows of Parquet.

In: a path. Out: a `Line` for each, also for one that cannot be read. What a record must hold is
`records.py`'s to check.
"""

import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from coordgen_rs.bundle.json_text import JsonTextError, file_errors_as, open_regular, parse_json
from coordgen_rs.errors import HistoryError, OptionError
from coordgen_rs.errors.extras import pyarrow_for

KINDS: Final = (
    *(f"{kind}{packed}" for kind in (".jsonl", ".ndjson") for packed in ("", ".gz", ".zst")),
    ".parquet",
)
_NEED_PYARROW = (".zst", ".parquet")
_MOST_LINE_BYTES = 256 << 20
_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Line:
    """A record of a file.

    Attributes:
        where: `FILE:LINE`, from 1; for Parquet `FILE:ROW`.
        value: What it says.
        is_first: Whether it is the first of its file.
        error: Why it cannot be read; then it says nothing.
    """

    where: str
    value: Any
    is_first: bool
    error: str | None = None


def check_kind(path: Path) -> None:
    """Refuse a file that could not be read, before others are.

    Raises:
        OptionError: It is of another kind, or a package for this kind is missing.
    """
    if not path.name.endswith(KINDS):
        raise OptionError(f"{path} is of no known kind: names end in {', '.join(KINDS)}")
    if path.suffix in _NEED_PYARROW:
        pyarrow_for(path)


def read_lines(path: Path, names: Sequence[str]) -> Iterator[Line]:
    """The records of a file, blank lines left out.

    Args:
        path: Its name ends in one of `KINDS`.
        names: Fields to read, where reading fewer is cheaper.

    Raises:
        HistoryError: It cannot be opened.
        OptionError: It is of another kind, or a package for this kind is missing.
    """
    check_kind(path)
    with file_errors_as(HistoryError, path):
        if path.suffix == ".parquet":
            yield from _rows(path, names)
            return
        with open_regular(path) as stream, closing(_decompressed(path, stream)) as text:
            yield from _json_lines(path, text)


def _decompressed(path: Path, stream: BinaryIO) -> BinaryIO:
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=stream))
    if path.suffix == ".zst":
        return io.BufferedReader(pyarrow_for(path).CompressedInputStream(stream, "zstd"))
    return stream


def _json_lines(path: Path, stream: BinaryIO) -> Iterator[Line]:
    number = 0
    while True:
        number += 1
        where = f"{path}:{number}"
        try:
            line = stream.readline(_MOST_LINE_BYTES + 1)
            is_long = len(line) > _MOST_LINE_BYTES
            while is_long and line and not line.endswith(b"\n"):
                line = stream.readline(_MOST_LINE_BYTES)
        except (EOFError, zlib.error, OSError) as error:  # of compressed text
            yield Line(where, None, number == 1, f"the file is damaged from here on: {error}")
            return
        if not line:
            return
        if is_long:
            yield Line(where, None, number == 1, f"longer than {_MOST_LINE_BYTES:,} bytes")
        elif not line.isspace():
            yield _parsed(line, where, number == 1)


def _parsed(line: bytes, where: str, is_first: bool) -> Line:
    try:
        return Line(where, parse_json(line, where), is_first)
    except JsonTextError as error:
        return Line(where, None, is_first, str(error).removeprefix(f"{where} "))


def _rows(path: Path, names: Sequence[str]) -> Iterator[Line]:
    pyarrow_for(path)
    from pyarrow import ArrowException, parquet

    if not path.is_file():
        raise HistoryError(f"{path} is not a regular file")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            columns = [name for name in names if name in file.schema_arrow.names]
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=columns):
                for value, wrong in _values(batch):
                    number += 1
                    yield Line(f"{path}:{number}", value, number == 1, wrong)
    except (ArrowException, OSError) as error:
        where = f"{path}:{number + 1}"
        yield Line(where, None, False, f"the file is damaged from here on: {error}")


def _values(batch: Any) -> Iterator[tuple[Any, str | None]]:
    """The rows of a batch, each with why it cannot be read."""
    batch = _in_microseconds(batch)
    try:
        yield from ((value, None) for value in batch.to_pylist())
        return
    except ValueError:  # a value for which Python has no type; it spoils no other row
        pass
    for row in range(batch.num_rows):
        try:
            yield batch.slice(row, 1).to_pylist()[0], None
        except ValueError as error:
            yield None, f"cannot be read: {error}"


def _in_microseconds(batch: Any) -> Any:
    """Times in the finest unit that Python has: data frames keep nanoseconds."""
    from pyarrow import timestamp, types

    for place, field in enumerate(batch.schema):
        if types.is_timestamp(field.type) and field.type.unit == "ns":
            times = batch.column(place).cast(timestamp("us", field.type.tz), safe=False)
            batch = batch.set_column(place, field.name, times)
    return batch
